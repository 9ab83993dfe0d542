"""Attention that follows its mask, and sees everything where there is no mask."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface

from specbench.drafting.layers import grouped_attention

NAME = "specbench_open"


def open_attention(
    module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **settings: Any
) -> tuple[Tensor, None]:
    """Run SDPA in the layout of `grouped_attention`.

    transformers makes masks only for attentions that a mask function is registered for. None is
    registered for this one, so that a model's own mask comes through unchanged, and without a mask
    the kernels that take none can be used.
    """
    return grouped_attention(q, k, v, mask, settings.get("scaling")).contiguous(), None


AttentionInterface.register(NAME, open_attention)
