"""Attention for verification: grouped queries against an unrepeated cache."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from specbench.layers import grouped_attention

NAME = "specbench_sdpa"


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """SDPA as `grouped_attention` lays it out.

    transformers repeats K and V for every query head as soon as there is a mask and more than
    one query, which copies the whole history in every layer of every round. Without a mask
    (prefill, one row) its own way is already lean.
    """
    groups = getattr(module, "num_key_value_groups", 1)
    if attention_mask is None or groups == 1:
        out, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return out, None
    out = grouped_attention(query, key, value, attention_mask, kwargs.get("scaling"))
    return out.contiguous(), None


AttentionInterface.register(NAME, packed_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
