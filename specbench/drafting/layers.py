"""Parts that draft networks share: norms, rotary positions, grouped attention.

Names of shapes: n rows, m rows of history and block together, h query heads, g key/value heads,
d head_dim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specbench.core.attention import grouped_attention as grouped_attention

Rope = tuple[Tensor, Tensor]
"""Cosines and signed sines, each ``[..., 1, d]``."""

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q ``[..., n, h, d]``, k and v ``[..., n, g, d]``) to ``[..., n, h * d]``: how a draft
network attends is up to its caller."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise the last axis in float32; round to x's dtype before the weight, as Llama does."""
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
    """View ``[..., heads * d]`` as ``[..., heads, d]``."""
    return x.view(*x.shape[:-1], -1, head_dim)


def rotate(x: Tensor, rope: Rope) -> Tensor:
    """Apply the rotary embedding to ``[..., n, heads, d]``: the two halves of a head form pairs.

    Computed in the tables' dtype, rounded to x's.
    """
    cos, sin = rope
    return (x * cos + x.roll(x.shape[-1] // 2, -1) * sin).to(x.dtype)


class RotaryConfig(Protocol):
    """The settings that rotary tables depend on.

    Attributes:
        head_dim: d.
        rope: transformers' ``rope_parameters``.
        max_positions: a length that some scalings use; tables beyond it are right too.
    """

    @property
    def head_dim(self) -> int: ...
    @property
    def rope(self) -> Mapping[str, Any]: ...
    @property
    def max_positions(self) -> int: ...


def rope_table(config: RotaryConfig, positions: Tensor, dtype: torch.dtype = torch.float32) -> Rope:
    """Compute tables for ``positions`` ``[...]`` in float32 and return them in ``dtype``.

    The sines of the first half are negated, so that `rotate` needs no negation.
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
    """Keep `rope_table` of the positions from 0; recompute it only for a longer sequence."""

    def __init__(
        self, config: RotaryConfig, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> None:
        self._config, self._device, self._dtype = config, device, dtype
        self._tables: Rope = (torch.empty(0), torch.empty(0))

    def __call__(self, length: int) -> Rope:
        """Return tables of at least the positions below ``length``."""
        if len(self._tables[0]) < length:
            positions = torch.arange(length, device=self._device)
            self._tables = rope_table(self._config, positions, self._dtype)
        return self._tables


def attention(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """`grouped_attention` of one sequence.

    Args:
        q: ``[n, h, d]``.
        keys, values: ``[g, m, d]``.
        mask: as `grouped_attention` takes it; None: every row sees every column.

    Returns:
        ``[n, h * d]``.
    """
    out = grouped_attention(q.transpose(0, 1)[None], keys[None], values[None], mask)
    return out[0].reshape(len(q), -1)


def causal_attention(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attend from q ``[n, h, d]`` to keys and values ``[g, n, d]`` of the same rows and of those
    before them; returns ``[n, h * d]``."""
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None], keys[None], values[None], is_causal=True, enable_gqa=True
    )
    return out[0].transpose(0, 1).reshape(len(q), -1)
