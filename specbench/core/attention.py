"""Attention for verification: grouped queries over K and V that are never repeated."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "specbench_sdpa"


def grouped_attention(
    q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float | None = None
) -> Tensor:
    """Attend with q ``[b, h, n, d]`` to keys and values ``[b, g, m, d]``.

    Query heads of a group are stacked as rows, so K and V are never repeated. A mask already
    repeated per head is used as it is.

    Args:
        mask: bool, ``[..., n, m]`` or ``[..., h / g * n, m]``; None masks nothing.
        scale: factor of the scores; None means ``d ** -0.5``.

    Returns:
        ``[b, n, h, d]``.
    """
    batch, heads, rows, width = q.shape
    groups = heads // keys.shape[1]
    packed = q.reshape(batch, -1, groups * rows, width)
    if mask is not None and mask.shape[-2] != groups * rows:
        mask = mask.repeat(*[1] * (mask.ndim - 2), groups, 1)
    out = F.scaled_dot_product_attention(packed, keys, values, attn_mask=mask, scale=scale)
    return out.reshape(batch, heads, rows, -1).transpose(1, 2)


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute SDPA through `grouped_attention`.

    transformers repeats K and V for every query head as soon as there is a mask and more than
    one query, which copies the whole history in every layer of every round. Without a mask
    (prefill, one row) it copies nothing, so its own function is used.
    """
    groups = getattr(module, "num_key_value_groups", 1)
    if attention_mask is None or groups == 1:
        out, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return out, None
    out = grouped_attention(query, key, value, attention_mask, kwargs.get("scaling"))
    return out.contiguous(), None


AttentionInterface.register(NAME, packed_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
