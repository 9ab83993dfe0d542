"""Causal scorers: log-probabilities of the tokens after a path, from left to right.

An n-gram model (KenLM, `specbench train ngram`) or any causal LM with the target's vocabulary.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drafters.diffuspec.ngram import ScorerFacts, load_kenlm, tokenizer_hash
from specbench.api import KVCache, Proposal, Target, TargetView, UserError
from specbench.drafting.checkpoints import find_checkpoint
from specbench.drafting.kv import cache_buffers
from specbench.drafting.vocabulary import require_same_vocabulary

EMBEDDED = "tiny-ngram"
"""The embedded scorer, for the embedded family's tokenizer."""
FLOOR = -99.0
"""Log-probability of impossible tokens; finite, since infinity times 0 is not a number."""

Scores = NDArray[np.float64]


class ScorerContext(Protocol):
    """One sequence. A state stands for the committed tokens and a path after them."""

    def extend(self, tokens: Iterable[int]) -> None:
        """Append committed tokens (target ids)."""

    def start(self) -> Any:
        """The state of the empty path."""

    def score(self, states: Sequence[Any], tokens: Sequence[int]) -> Scores:
        """``[states, tokens]`` natural log-probabilities; the states' paths are equally long."""

    def step(self, state: Any, token: int) -> Any:
        """The state after one more token."""

    def buffers(self) -> Iterable[Tensor]:
        """Name the preallocated buffers, for `DraftSession.buffers`."""


@dataclass(frozen=True)
class Scorer:
    """A causal model, loaded once.

    Attributes:
        kind: what it is, for the record of a run.
        sha256: of the n-gram model's file; None for a causal LM, whose name says it.
        open: start a sequence of at most so many positions; the second number is the most tokens
            that the states of one `ScorerContext.score` call hold together.
    """

    kind: str
    sha256: str | None
    open: Callable[[int, int], ScorerContext]


def load_scorer(name: str | None, target: TargetView) -> Scorer:
    """Load a scorer from a folder, an embedded model or a hub id; None: the embedded scorer.

    Raises:
        UserError: there is nothing usable, or it was made for another tokenizer.
    """
    folder = find_checkpoint(name or EMBEDDED, None, role="scorer")
    if name is not None and (folder / "config.json").is_file():
        model = Target.load(name, device=target.device, dtype=target.dtype, role="scorer")
        require_same_vocabulary(target, model, role="scorer")
        return causal_scorer(model)
    facts = ScorerFacts.read(folder)
    tokenizer = target.tokenizer
    ids = target.vocab_size if tokenizer is None else len(tokenizer.get_vocab())
    fits = (ids, tokenizer_hash(tokenizer)) == (facts.vocabulary, facts.tokenizer)
    if not fits and name is None:
        raise UserError(
            f"diffuspec searches with a causal scorer for the tokenizer of {target.name!r}, and "
            "none comes with specbench: make one with `specbench train ngram --target "
            f"{target.name} --corpus FILE --out FOLDER` and name it with "
            "--set diffuspec.scorer=FOLDER, or take --set diffuspec.search=false."
        )
    if not fits:
        raise UserError(
            f"The scorer {name!r} was counted with another tokenizer ({facts.vocabulary} ids) than "
            f"that of {target.name!r}: count one with `specbench train ngram --target "
            f"{target.name}`."
        )
    return ngram_scorer(folder / facts.file)


def ngram_scorer(path: Path) -> Scorer:
    """Load a KenLM model whose words are decimal token ids.

    Raises:
        UserError: as `load_kenlm`.
    """
    model = load_kenlm(path)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Scorer(f"{model.order}-gram", digest, lambda capacity, paths: NgramContext(model))


def causal_scorer(model: Target) -> Scorer:
    """Score by a small causal LM with the target's vocabulary."""
    return Scorer(f"causal LM, {model.num_layers} layers", None, partial(CausalContext, model))


class NgramContext:
    """States are KenLM's. Only the last order - 1 tokens matter, so only they are kept."""

    def __init__(self, model: Any) -> None:
        import kenlm

        self._model = model
        self._state = kenlm.State
        self._spare = kenlm.State()
        self._tail: list[int] = []

    def extend(self, tokens: Iterable[int]) -> None:
        self._tail = [*self._tail, *tokens][-(self._model.order - 1) :]

    def start(self) -> Any:
        state = self._state()
        if len(self._tail) < self._model.order - 1:
            self._model.BeginSentenceWrite(state)
        else:
            self._model.NullContextWrite(state)
        for token in self._tail:
            state = self.step(state, token)
        return state

    def score(self, states: Sequence[Any], tokens: Sequence[int]) -> Scores:
        score, after = self._model.BaseScore, self._spare
        words = [str(token) for token in tokens]
        return math.log(10) * np.array([[score(s, word, after) for word in words] for s in states])

    def step(self, state: Any, token: int) -> Any:
        after = self._state()
        self._model.BaseScore(state, str(token), after)
        return after

    def buffers(self) -> Iterable[Tensor]:
        return ()


class CausalContext:
    """States are the paths themselves.

    All paths run as parallel chains after the last committed token, again at every depth: the
    cache keeps committed tokens only.
    """

    def __init__(self, model: Target, capacity: int, paths: int) -> None:
        self._model = model
        limit = model.context_limit
        self._limit = capacity if limit is None else min(capacity, limit)
        self._cache = KVCache(model.num_layers, self._limit + paths)
        self._pending: list[int] = []

    def extend(self, tokens: Iterable[int]) -> None:
        last = self._model.vocab_size - 1  # The target may have more padding rows.
        self._pending += [min(token, last) for token in tokens]

    def start(self) -> tuple[int, ...]:
        ids = torch.tensor(self._pending[:-1], device=self._model.device)
        if len(ids) and self._cache.length + len(ids) <= self._limit:
            tree = Proposal.chain(ids[1:]) if self._cache.length else None
            self._model.forward(ids, self._cache, tree=tree, last_only=True)
            self._pending = self._pending[-1:]
        return ()

    def score(self, states: Sequence[tuple[int, ...]], tokens: Sequence[int]) -> Scores:
        depth, start = len(states[0]), self._cache.length
        if len(self._pending) > 1 or start + 1 + depth > self._limit:
            return np.zeros((len(states), len(tokens)))  # Past its context all paths score alike.
        paths = torch.tensor(states, dtype=torch.long, device=self._model.device)
        anchor = paths.new_tensor(self._pending)
        tree = Proposal.chains(paths.view(len(states), depth))
        logits, _ = self._model.forward(torch.cat([anchor, tree.tokens]), self._cache, tree=tree)
        self._cache.truncate(start)
        rows = torch.arange(1, len(states) + 1, device=paths.device) * depth
        missing = max(0, max(tokens) + 1 - logits.shape[-1])
        padded = torch.nn.functional.pad(logits[rows].float(), (0, missing), value=-torch.inf)
        scores = padded.log_softmax(-1)[:, list(tokens)].clamp(min=FLOOR)
        return scores.double().cpu().numpy()

    def step(self, state: tuple[int, ...], token: int) -> tuple[int, ...]:
        return (*state, min(token, self._model.vocab_size - 1))

    def buffers(self) -> Iterable[Tensor]:
        return cache_buffers(self._cache)
