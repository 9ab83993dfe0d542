"""Prompt lookup: copy what followed the last occurrence of the newest tokens.

The idea is Apoorv Saxena's prompt lookup decoding (2023); the same copying from a reference text
is arXiv 2304.04487. No model: the draft costs a few dictionary look-ups.
"""

from __future__ import annotations

import torch

from drafters.prompt_lookup.options import PromptLookupOptions
from specbench.api import (
    Commit,
    Drafter,
    DraftSession,
    Proposal,
    Request,
    TargetView,
)


class PromptLookup(Drafter):
    """Proposes a chain copied from prompt and output, or nothing where no suffix occurs again."""

    name = "prompt-lookup"
    Options = PromptLookupOptions

    def bind(self, target: TargetView) -> None:
        self.width = self.options.tokens
        self._device = target.device

    def open(self, request: Request) -> DraftSession:
        return _Lookup(self.options, self._device)


class _Lookup(DraftSession):
    """Keeps, for every n-gram, where its newest occurrence ended; a round adds only new ones."""

    def __init__(self, options: PromptLookupOptions, device: torch.device) -> None:
        self._options = options
        self._device = device
        self._lengths = range(options.max_ngram, options.min_ngram - 1, -1)
        self._text: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}

    def commit(self, commit: Commit) -> None:
        for token in commit.tokens:
            # A suffix is stored once a token follows it, so it never finds itself.
            for suffix in self._suffixes():
                self._after[suffix] = len(self._text)
            self._text.append(token)

    def propose(self, budget: int) -> Proposal:
        places = (self._after[suffix] for suffix in self._suffixes() if suffix in self._after)
        place = next(places, len(self._text))
        found = self._text[place : place + self._options.tokens]
        # A match that reaches the end of the text is periodic, and so is its continuation.
        count = min(budget, self._options.tokens) if found else 0
        copied = [found[i % len(found)] for i in range(count)]
        return Proposal.chain(torch.tensor(copied, dtype=torch.long, device=self._device))

    def _suffixes(self) -> list[tuple[int, ...]]:
        return [tuple(self._text[-n:]) for n in self._lengths if n <= len(self._text)]
