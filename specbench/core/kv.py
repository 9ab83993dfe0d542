"""The one file that knows transformers' cache interface: a preallocated K/V cache."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin


def cache_argument(model: PreTrainedModel) -> str:
    """Return the name of the forward's cache argument; it changed within transformers 5."""
    parameters = inspect.signature(inspect.unwrap(type(model).forward)).parameters
    return "cache" if "cache" in parameters else "past_key_values"


class PreallocatedLayer(CacheLayerMixin):  # type: ignore[misc]
    """K and V of one layer in buffers of fixed capacity; appending writes in place.

    ``update`` returns views, so no round copies the history. Sliding-window layers also keep
    every position, and the mask applies the window: dropped positions could not be rolled back.
    """

    is_compileable = False
    is_sliding = False

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        batch, heads = key_states.shape[:2]
        self.keys = key_states.new_empty(batch, heads, self.capacity, key_states.shape[-1])
        self.values = value_states.new_empty(batch, heads, self.capacity, value_states.shape[-1])
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append ``[batch, heads, n, head_dim]`` and return views of all positions held."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.length + key_states.shape[-2]
        if end > self.capacity:
            raise ValueError(f"the cache has {self.capacity} positions, but {end} are needed")
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def keep(self, start: int, rows: Tensor) -> None:
        """Keep the first ``start`` positions, and move those at ``rows`` ``[m]`` behind them."""
        end = start + rows.shape[0]
        self.keys[:, :, start:end] = self.keys[:, :, rows]
        self.values[:, :, start:end] = self.values[:, :, rows]
        self.length = end

    def reset(self) -> None:
        """Drop all positions, but keep the buffers."""
        self.length = 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return self.capacity

    def get_max_cache_shape(self) -> int:
        """Return the capacity; transformers' older name of `get_max_length`."""
        return self.capacity


class KVCache(Cache):  # type: ignore[misc]
    """A transformers cache of `PreallocatedLayer`, with the two changes that a verifier needs."""

    def __init__(self, num_layers: int, capacity: int) -> None:
        super().__init__(layers=[PreallocatedLayer(capacity) for _ in range(num_layers)])
        self.capacity = capacity

    @property
    def length(self) -> int:
        """Number of positions held."""
        return int(self.layers[0].length)

    def truncate(self, length: int) -> None:
        """Drop every position from ``length`` on."""
        for layer in self.layers:
            layer.length = length

    def compact(self, start: int, offsets: list[int]) -> None:
        """Keep the first ``start`` positions and those at ``start + offsets`` (increasing)."""
        if offsets == list(range(len(offsets))):
            self.truncate(start + len(offsets))
            return
        first = self.layers[0].keys
        rows = torch.tensor(offsets, device=first.device) + start
        for layer in self.layers:
            layer.keep(start, rows.to(layer.keys.device))
