"""Attention that sees what its mask shows, and everything where there is none."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface

from specbench.drafting.layers import grouped_attention

NAME = "specbench_open"


def open_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **settings: Any,
) -> tuple[Tensor, None]:
    """SDPA as `grouped_attention` lays it out.

    transformers makes a mask only for attention that it has a mask for, and this has none: what a
    model is given comes through as it is, and without one the kernels that take none can be used.
    """
    out = grouped_attention(query, key, value, attention_mask, settings.get("scaling"))
    return out.contiguous(), None


AttentionInterface.register(NAME, open_attention)
