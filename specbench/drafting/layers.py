"""Parts that draft networks share: norms, rotary positions, grouped attention.

Names of shapes: n rows, m rows of history and block together, h query heads, g key/value heads,
d head_dim.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specbench.core.attention import grouped_attention as grouped_attention

Rope = tuple[Tensor, Tensor]
"""Cosines and signed sines, each ``[..., 1, d]``."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Over the last axis, in float32, rounded to x's dtype before the weight (as in Llama)."""
    return weight * F.rms_norm(x.float(), x.shape[-1:], None, eps).to(x.dtype)


class Norm(nn.Module):
    """`rms_norm` with its weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


def heads_of(x: Tensor, head_dim: int) -> Tensor:
    """``[..., heads * d]`` as ``[..., heads, d]``."""
    return x.view(*x.shape[:-1], -1, head_dim)


def rotate(x: Tensor, rope: Rope) -> Tensor:
    """Rotary embedding of ``[..., n, heads, d]``, halves against each other, in the tables' dtype
    and rounded to x's."""
    cos, sin = rope
    return (x * cos + x.roll(x.shape[-1] // 2, -1) * sin).to(x.dtype)


class RotaryConfig(Protocol):
    """What rotary tables depend on.

    Attributes:
        head_dim: d.
        rope: transformers' ``rope_parameters``.
        max_positions: a length that some scalings use; tables are right beyond it too.
    """

    @property
    def head_dim(self) -> int: ...
    @property
    def rope(self) -> Mapping[str, Any]: ...
    @property
    def max_positions(self) -> int: ...


def rope_table(config: RotaryConfig, positions: Tensor, dtype: torch.dtype = torch.float32) -> Rope:
    """Tables for ``positions`` ``[...]``, computed in float32, in ``dtype``.

    The sines of the first half are negated: `rotate` then needs no negation of its own.
    """
    rotary = LlamaRotaryEmbedding(
        LlamaConfig(
            head_dim=config.head_dim,
            max_position_embeddings=config.max_positions,
            rope_parameters=dict(config.rope),
        )
    ).to(positions.device)
    probe = torch.empty(0, dtype=dtype, device=positions.device)
    cos, sin = rotary(probe, positions.reshape(1, -1))
    cos, sin = (table.view(*positions.shape, config.head_dim) for table in (cos, sin))
    half = config.head_dim // 2
    signed = torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)
    return cos[..., None, :], signed[..., None, :]


class RopeTables:
    """`rope_table` of the positions from 0 on, made again only for a longer sequence."""

    def __init__(
        self, config: RotaryConfig, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> None:
        self._config, self._device, self._dtype = config, device, dtype
        self._tables: Rope = (torch.empty(0), torch.empty(0))

    def __call__(self, length: int) -> Rope:
        """Tables of the positions below ``length`` (and more)."""
        if len(self._tables[0]) < length:
            positions = torch.arange(length, device=self._device)
            self._tables = rope_table(self._config, positions, self._dtype)
        return self._tables


def attention(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """`grouped_attention` of one sequence's rows: q ``[n, h, d]``, keys and values
    ``[g, m, d]``, to ``[n, h * d]``."""
    out = grouped_attention(q.transpose(0, 1)[None], keys[None], values[None], mask)
    return out[0].reshape(len(q), -1)
