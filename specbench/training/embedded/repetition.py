"""Unlikelihood of repetition: what a model's own looping answers teach it (arXiv 1908.04319).

A small model trained by likelihood alone falls into loops under greedy decoding, however low its
loss. Here it is shown its own answers, and every token that completes a run of tokens already in
the answer is made less likely.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from specbench.training.corpus.batches import Batch, PackedBatches
from specbench.training.corpus.evaluation import training_chats
from specbench.training.corpus.tokenizer import Encoded, encode_chats

RUN = 4
"""Tokens in a run."""


def repeated(tokens: Sequence[int], run: int = RUN) -> NDArray[np.bool_]:
    """Mark the tokens ``[n]`` that end a run which is in the answer already."""
    seen: set[tuple[int, ...]] = set()
    marks = np.zeros(len(tokens), dtype=np.bool_)
    for end in range(run, len(tokens) + 1):
        gram = tuple(tokens[end - run : end])
        marks[end - 1] = gram in seen
        seen.add(gram)
    return marks


def load_answers(tokenizer: PreTrainedTokenizerBase, path: Path) -> list[Encoded]:
    """Read a file of responses, and mark the repetitions inside the answers.

    Raises:
        UserError: unreadable or evaluation text.
    """
    encoded = encode_chats(tokenizer, training_chats(path))
    for document in encoded:
        places = document.response.nonzero()[0]
        document.response[places] = repeated(document.tokens[places].tolist())
    return encoded


def unlikelihood(logits: Tensor, tokens: Tensor, marked: Tensor) -> Tensor:
    """Mean of -log(1 - p) over the marked tokens; 0 if there are none.

    Args:
        logits: ``[b, n - 1, vocabulary]`` of the tokens after the first.
        tokens, marked: ``[b, n]``.
    """
    at = marked[:, 1:]
    chosen = tokens[:, 1:, None]
    likely = logits.float().log_softmax(-1).gather(-1, chosen).squeeze(-1).exp()
    losses = -torch.log1p(-likely.clamp(max=1 - 1e-4))
    return (losses * at).sum() / at.sum().clamp(min=1)


class WithAnswers:
    """Batches of a corpus, each followed by as many windows of marked answers."""

    def __init__(self, corpus: PackedBatches, answers: PackedBatches) -> None:
        self._sources = {"corpus": corpus, "answers": answers}

    def next(self) -> Batch:
        """Return rows of the corpus, then rows of the answers."""
        parts = zip(*(source.next() for source in self._sources.values()), strict=True)
        return Batch(*map(torch.cat, parts))

    def state(self) -> dict[str, int]:
        """The places of both sources."""
        return {
            f"{name}/{key}": value
            for name, source in self._sources.items()
            for key, value in source.state().items()
        }

    def restore(self, state: dict[str, int]) -> None:
        """Go to the places of both sources."""
        for name, source in self._sources.items():
            source.restore({key: state[f"{name}/{key}"] for key in source.state()})
