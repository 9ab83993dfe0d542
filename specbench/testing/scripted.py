"""A drafter that knows the answer and makes errors on purpose."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from specbench.api import (
    REJECT,
    WALK,
    Commit,
    Drafter,
    DraftSession,
    Proposal,
    Request,
    Rule,
    Target,
    TargetView,
)
from specbench.testing.lossless import plain


@dataclass(frozen=True)
class ScriptedOptions:
    """Settings of `ScriptedDrafter`.

    Attributes:
        shape: a random tree, one chain, or ``branches`` parallel chains.
        width: number of tokens in a proposal; fewer if the budget is smaller.
        branches: number of parallel chains.
        wrong: share of tokens that are random instead of the known continuation's.
        sampled: whether tokens are drawn from distributions around the continuation, which the
            proposal then carries; siblings are drawn without replacement.
        seed: random seed of the errors.
    """

    shape: Literal["tree", "chain", "chains"] = "tree"
    width: int = 12
    branches: int = 3
    wrong: float = 0.2
    sampled: bool = False
    seed: int = 0


class ScriptedDrafter(Drafter):
    """Knows the target's answer and makes errors on purpose, in proposals of any shape.

    Args:
        target: the model; plain decoding with the request's sampling and seed gives the answer.
        options: shape and errors.
        continuation: the answer's tokens, if they are already known.
    """

    name = "scripted"
    Options = ScriptedOptions

    def __init__(
        self,
        target: Target,
        options: ScriptedOptions | None = None,
        continuation: Sequence[int] | None = None,
    ) -> None:
        super().__init__(options)
        self._target = target
        self._continuation = continuation

    @property
    def rule(self) -> Rule:
        return REJECT if self.options.sampled else WALK

    def bind(self, target: TargetView) -> None:
        self.width = self.options.width
        self.device = target.device
        self.vocabulary = target.vocab_size

    def open(self, request: Request) -> DraftSession:
        return _Script(self, request)

    def script(self, prompt: list[int], request: Request) -> list[int]:
        """Return the output tokens after ``prompt``, as far as they are known."""
        if self._continuation is not None:
            return list(self._continuation)
        room = request.capacity - len(prompt)
        return list(plain(self._target, prompt, room, request.sampling, request.seed).tokens)


class _Script(DraftSession):
    def __init__(self, drafter: ScriptedDrafter, request: Request) -> None:
        self._drafter = drafter
        self._options: ScriptedOptions = drafter.options
        self._request = request
        self._chance = random.Random(f"{self._options.seed} {request.seed}")
        self._script: list[int] | None = None
        self._emitted = 0

    def commit(self, commit: Commit) -> None:
        if self._script is None:
            self._script = self._drafter.script(list(commit.tokens[:-1]), self._request)
            self._emitted = 1
        else:
            self._emitted += len(commit.tokens)

    def propose(self, budget: int) -> Proposal:
        parents = self._parents(budget)
        depths: list[int] = []
        tokens: list[int] = []
        rows: list[Tensor] = []
        for node, parent in enumerate(parents):
            depths.append(0 if parent < 0 else depths[parent] + 1)
            known = self._known(depths[-1])
            if self._sends_probs:
                before = [tokens[i] for i in range(node) if parents[i] == parent]
                rows.append(self._distribution(known, before))
                tokens.append(self._chance.choices(range(len(rows[-1])), rows[-1].tolist())[0])
            else:
                wrong = self._chance.random() < self._options.wrong
                tokens.append(self._random_token() if wrong else known)
        device = self._drafter.device
        return Proposal(
            torch.tensor(tokens, dtype=torch.long, device=device),
            torch.tensor(parents, dtype=torch.long, device=device),
            torch.stack(rows).to(device) if rows else None,
            is_chain=self._options.shape == "chain",
        )

    @property
    def _sends_probs(self) -> bool:
        return self._options.sampled and not self._request.sampling.greedy

    def _parents(self, budget: int) -> list[int]:
        width, branches = self._options.width, self._options.branches
        if self._options.shape == "chain":
            return list(range(-1, min(width, budget) - 1))
        if self._options.shape == "chains":
            length = min(width // branches, budget)
            return [i - 1 if i % length else -1 for i in range(branches * length)]
        parents: list[int] = []
        depths: list[int] = []
        for node in range(width):
            # Half of the nodes extend the newest path; the others have a random parent.
            parent = node - 1 if self._chance.random() < 0.5 else self._chance.randrange(-1, node)
            if parent >= 0 and depths[parent] == budget:
                parent = -1
            parents.append(parent)
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return parents

    def _known(self, depth: int) -> int:
        position = self._emitted + depth
        script = self._script or []
        return script[position] if position < len(script) else self._random_token()

    def _random_token(self) -> int:
        return self._chance.randrange(self._drafter.vocabulary)

    def _distribution(self, known: int, before: list[int]) -> Tensor:
        """Put half of the mass on ``known``, none on siblings ``before``, the rest at random."""
        weights = torch.tensor(
            [self._chance.expovariate(1) for _ in range(self._drafter.vocabulary)]
        )
        weights[known] += weights.sum()
        weights[before] = 0
        return weights / weights.sum()
