"""A third party's drafter: whatever was said last is said again."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specbench.api import Commit, Drafter, DraftSession, Proposal, Request, TargetView


@dataclass(frozen=True)
class Options:
    """Settings: the most ``tokens`` proposed a round."""

    tokens: int = 2


class EchoLast(Drafter):
    """Proposes the newest token over and over."""

    name = "echo-last"
    Options = Options

    def bind(self, target: TargetView) -> None:
        self.width = self.options.tokens
        self._device = target.device

    def open(self, request: Request) -> DraftSession:
        return _Echo(self.width, self._device)


class _Echo(DraftSession):
    def __init__(self, width: int, device: torch.device) -> None:
        self._width = width
        self._device = device

    def commit(self, commit: Commit) -> None:
        self._last = commit.tokens[-1]

    def propose(self, budget: int) -> Proposal:
        count = min(budget, self._width)
        return Proposal.chain(torch.full((count,), self._last, device=self._device))
