"""A growing sequence in front of masked slots, with or without cached keys and values."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from drafters.diffusion.model import DiffusionModel
from drafters.diffusion.options import CACHES
from specbench.api import KVCache, UserError
from specbench.drafting.kv import cache_buffers


class Prefix:
    """Committed tokens and, behind them, the slots to predict.

    A block-causal model always sees whole blocks, as in training: positions behind the slots are
    masked up to the end of the block.

    Caches:
        ``none``: every pass runs the whole sequence under the family's own attention.
        ``prefix_causal``: a committed token sees only the tokens before it, so its keys and values
        never change and are kept; slots see everything. An approximation of full attention.
        ``block``: keys and values of finished blocks are kept, which is exact; block-causal
        families only.

    Args:
        model: the model that is run.
        capacity: the most positions, committed tokens and slots together.
        cache: one of the above.

    Raises:
        UserError: an unknown cache, or one that the family cannot have.
    """

    @torch.inference_mode()
    def __init__(self, model: DiffusionModel, capacity: int, cache: str = "none") -> None:
        _check_cache(model, cache)
        self._model = model
        self._kind = cache
        self._block = model.block_size or 1
        size = capacity + self._block - 1
        self._ids = torch.zeros(size, dtype=torch.long, device=model.device)
        self._cache = None if cache == "none" else KVCache(model.num_layers, size)
        self.length = 0

    @torch.inference_mode()
    def extend(self, tokens: Sequence[int] | Tensor) -> None:
        """Append committed tokens."""
        new = torch.as_tensor(tokens, dtype=torch.long, device=self._ids.device)
        self._ids[self.length : self.length + len(new)] = new
        self.length += len(new)

    def buffers(self) -> list[Tensor]:
        """Name the buffers, for `DraftSession.buffers`."""
        return [self._ids, *cache_buffers(self._cache)]

    def predict_block(self, count: int) -> Tensor:
        """Predict ``[count, vocab_size]`` logits of masked slots behind the committed tokens."""
        return self.predict_given(self._ids.new_full((count,), self._model.mask_id))

    @torch.inference_mode()
    def predict_given(self, block: Tensor) -> Tensor:
        """As `predict_block`, for slots with the contents ``[count]``, `mask_id` where masked."""
        model, start, count = self._model, self.length, len(block)
        if model.shift and start == 0:
            raise ValueError("a shifted model predicts from the committed token before the slots")
        end = -(-(start + count) // self._block) * self._block
        self._ids[start : start + count] = block
        self._ids[start + count : end] = model.mask_id
        kept = self._reuse()
        first = start - int(model.shift) - kept
        logits = model(
            self._ids[None, kept:end],
            self._visible(kept, end),
            slice(first, first + count),
            cache=self._cache,
        )
        if self._cache is not None:
            self._cache.truncate(self._final())
        return model.finish(logits[0])

    def _reuse(self) -> int:
        """Cut the cache to the positions that this pass need not run, and count them.

        The row before the slots is run again where it predicts the first of them.
        """
        if self._cache is None:
            return 0
        kept = min(self._cache.length, self.length - int(self._model.shift))
        self._cache.truncate(kept)
        return kept

    def _final(self) -> int:
        """Count the leading positions whose keys and values later tokens cannot change."""
        return self.length - self.length % self._block

    def _visible(self, first: int, end: int) -> Tensor | None:
        """Make ``[end - first, end]`` bool: what the rows from ``first`` on may see; None: all."""
        if self._kind != "prefix_causal":
            return self._model.visibility(end, first)
        columns = torch.arange(end, device=self._ids.device)
        rows = columns[first:, None]
        return (columns <= rows) | (rows >= self.length)


def _check_cache(model: DiffusionModel, cache: str) -> None:
    if cache not in CACHES:
        raise UserError(f"There is no cache {cache!r}: take one of {', '.join(CACHES)}.")
    blocks = model.block_size is not None
    if cache == "block" and not blocks:
        raise UserError(
            f"The model {model.name!r} ({model.family.name}) attends to every position, so it has "
            "no finished blocks: take the cache none, or prefix_causal, which approximates."
        )
    if cache == "prefix_causal" and blocks:
        raise UserError(
            f"The model {model.name!r} ({model.family.name}) is block-causal: take the cache "
            "block, which is exact, or none."
        )
