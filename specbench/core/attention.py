"""Attention for verification: grouped queries against an unrepeated cache."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "specbench_sdpa"


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """SDPA with the query heads of a group laid under one another as rows.

    transformers repeats K and V for every query head as soon as there is a mask and more than
    one query, which copies the whole history in every layer of every round. Here
    ``query [1, heads, n, d]`` becomes ``[1, kv_heads, group * n, d]`` instead, and only the small
    mask is repeated: here or, once for all layers, by who made it. Without a mask (prefill, one
    row) transformers' own way is already lean.
    """
    groups = getattr(module, "num_key_value_groups", 1)
    if attention_mask is None or groups == 1:
        out, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return out, None
    batch, heads, rows, width = query.shape
    packed = query.reshape(batch, heads // groups, groups * rows, width)
    if attention_mask.shape[2] != groups * rows:
        attention_mask = attention_mask.repeat(1, 1, groups, 1)
    out = F.scaled_dot_product_attention(
        packed, key, value, attn_mask=attention_mask, scale=kwargs.get("scaling")
    )
    return out.reshape(batch, heads, rows, -1).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, packed_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
