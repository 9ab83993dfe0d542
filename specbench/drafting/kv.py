"""Keys and values of one sequence, in buffers that are allocated once."""

from __future__ import annotations

import torch
from torch import Tensor

from specbench.core.kv import KVCache
from specbench.drafting.layers import attention, causal_attention


class DraftKV:
    """Keys and values of all layers of a draft network.

    The first ``length`` rows belong to committed tokens. The rows of a draft are written behind
    them, and the next commit overwrites those, so nothing of a draft outlives its round and the
    history is never copied.

    Attributes:
        keys, values: ``[layers, g, capacity, d]``.
        length: committed rows.
    """

    def __init__(
        self, shape: tuple[int, int, int, int], *, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Allocate buffers of ``shape`` ``(layers, g, capacity, d)``."""
        self.keys = torch.empty(shape, dtype=dtype, device=device)
        self.values = torch.empty_like(self.keys)
        self.length = 0

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Commit the ``[layers, g, n, d]`` keys and values of all layers at once."""
        rows = slice(self.length, self.length + keys.shape[2])
        self.keys[:, :, rows] = keys
        self.values[:, :, rows] = values
        self.length = rows.stop

    def attend(
        self,
        layer: int,
        rows: slice,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
        *,
        first: int = 0,
        causal: bool = False,
    ) -> Tensor:
        """Write one layer's keys and values at ``rows``, then attend to everything up to there.

        Args:
            rows: of the buffers; they are not committed by this.
            q: ``[n, h, d]``.
            k, v: ``[n, g, d]``.
            mask: as `grouped_attention` takes it, over the rows ``first`` to ``rows.stop``.
            first: the first row that is visible.
            causal: every row sees itself and the rows before it; for rows that start at 0.

        Returns:
            ``[n, h * d]``.
        """
        self.keys[layer, :, rows] = k.transpose(0, 1)
        self.values[layer, :, rows] = v.transpose(0, 1)
        keys, values = (
            self.keys[layer, :, first : rows.stop],
            self.values[layer, :, first : rows.stop],
        )
        return causal_attention(q, keys, values) if causal else attention(q, keys, values, mask)

    def buffers(self) -> tuple[Tensor, Tensor]:
        """Name the buffers, for `DraftSession.buffers`."""
        return self.keys, self.values


def cache_buffers(cache: KVCache | None) -> list[Tensor]:
    """Name the buffers of a transformers cache; those of a layer exist from its first forward."""
    layers = [] if cache is None else [layer for layer in cache.layers if layer.is_initialized]
    return [buffer for layer in layers for buffer in (layer.keys, layer.values)]
