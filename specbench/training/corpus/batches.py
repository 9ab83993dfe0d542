"""Batches of token ids in a seeded order that a resumed run continues exactly."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specbench.training.corpus.tokenizer import Encoded


class Batch(NamedTuple):
    """Token ids ``[b, n]`` and which of them the assistant wrote ``[b, n]``."""

    tokens: Tensor
    response: Tensor

    def to(self, device: torch.device) -> Self:
        """The same batch on a device."""
        return type(self)(self.tokens.to(device), self.response.to(device))


class Batches(Protocol):
    """An endless source of batches whose place can be saved and restored."""

    def next(self) -> Batch:
        """Return the batch at the present place, and move on."""

    def state(self) -> dict[str, int]:
        """The present place."""

    def restore(self, state: dict[str, int]) -> None:
        """Go to a place that `state` returned."""


Documents = Sequence[Encoded]


class _Shuffled(ABC):
    """Documents epoch after epoch, in an order that depends on the seed and the epoch alone.

    Each epoch shows a document ``weight`` times: the whole part always, the fraction by a seeded
    draw.
    """

    def __init__(
        self, documents: Documents, weights: Sequence[float], *, batch: int, length: int, seed: int
    ) -> None:
        self._documents, self._weights = documents, np.asarray(weights)
        self._batch, self._length, self._seed = batch, length, seed
        self._enter(epoch=0, place=0)

    def state(self) -> dict[str, int]:
        """Epoch and batch inside it."""
        return {"epoch": self._epoch, "place": self._place}

    def restore(self, state: dict[str, int]) -> None:
        """Arrange the saved epoch again."""
        self._enter(state["epoch"], state["place"])

    def _enter(self, epoch: int, place: int) -> None:
        self._epoch, self._place = epoch, place
        self._arrange(epoch_order(self._weights, self._seed, epoch))

    @abstractmethod
    def _arrange(self, order: NDArray[np.int64]) -> None:
        """Prepare the present epoch, which shows documents in this order."""


class PackedBatches(_Shuffled):
    """Windows of fixed length over an endless shuffled stream of documents.

    Only their own end tokens separate documents.
    """

    def next(self) -> Batch:
        """Return a full batch ``[batch, length]``; skip the short one at the end of an epoch."""
        if (self._place + 1) * self._batch > len(self._windows[0]):
            self._enter(self._epoch + 1, place=0)
        rows = slice(self._place * self._batch, (self._place + 1) * self._batch)
        self._place += 1
        tokens, response = (torch.from_numpy(part[rows]) for part in self._windows)
        return Batch(tokens.long(), response)

    def _arrange(self, order: NDArray[np.int64]) -> None:
        """Cut the epoch into windows ``[w, length]``."""
        tokens = np.concatenate([self._documents[i].tokens for i in order])
        response = np.concatenate([self._documents[i].response for i in order])
        count = len(tokens) // self._length
        if count < self._batch:
            raise ValueError(f"{len(tokens)} tokens do not fill a batch of {self._batch} windows")
        end = count * self._length
        self._windows = tokens[:end].reshape(count, -1), response[:end].reshape(count, -1)


class DocumentBatches(_Shuffled):
    """Whole documents from their start, cut at ``length``, padded on the right.

    Documents of similar length share a batch, so little is padding; the order of the batches is
    shuffled. Padding is no response, so a loss over responses skips it.
    """

    POOL = 64
    """Batches sorted by length together."""

    def __init__(
        self, documents: Documents, weights: Sequence[float], *, pad: int, **shape: int
    ) -> None:
        super().__init__(documents, weights, **shape)
        self._pad = pad

    def next(self) -> Batch:
        """Return up to ``batch`` documents, padded to the longest of them."""
        if self._place == len(self._order):
            self._enter(self._epoch + 1, place=0)
        chosen = [self._documents[i] for i in self._order[self._place]]
        self._place += 1
        return pad_right(chosen, self._length, self._pad)

    def _arrange(self, order: NDArray[np.int64]) -> None:
        """Choose the documents of every batch of the epoch."""
        batches: list[list[int]] = []
        for start in range(0, len(order), self._batch * self.POOL):
            pool = sorted(
                order[start : start + self._batch * self.POOL].tolist(),
                key=lambda i: len(self._documents[i].tokens),
            )
            batches += [pool[i : i + self._batch] for i in range(0, len(pool), self._batch)]
        shuffle = np.random.default_rng([self._seed, self._epoch, 1]).permutation(len(batches))
        self._order = [batches[i] for i in shuffle]


def epoch_order(weights: NDArray[np.float64], seed: int, epoch: int) -> NDArray[np.int64]:
    """Shuffle the document indices of an epoch, each as often as its weight says."""
    generator = np.random.default_rng([seed, epoch])
    whole = np.floor(weights)
    extra = generator.random(len(weights)) < weights - whole
    return generator.permutation(np.repeat(np.arange(len(weights)), (whole + extra).astype(int)))


def pad_right(documents: Documents, length: int, pad: int) -> Batch:
    """Make one batch of documents, cut at ``length``."""
    width = min(length, max(len(d.tokens) for d in documents))
    tokens = torch.full((len(documents), width), pad, dtype=torch.long)
    response = torch.zeros((len(documents), width), dtype=torch.bool)
    for row, document in enumerate(documents):
        n = min(width, len(document.tokens))
        tokens[row, :n] = torch.from_numpy(document.tokens[:n]).long()
        response[row, :n] = torch.from_numpy(document.response[:n])
    return Batch(tokens, response)
