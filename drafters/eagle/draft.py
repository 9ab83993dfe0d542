"""EAGLE-1, EAGLE-2 and EAGLE-3 as drafters: one base class, and three kinds of trees."""

from __future__ import annotations

from typing import Any, ClassVar

from drafters.eagle.base import Eagle
from drafters.eagle.options import Eagle1Options, Eagle2Options, Eagle3Options
from drafters.eagle.session import ChainSession, FixedSession, TreeSession
from drafters.eagle.tree import FIXED_TREE
from specbench.api import DraftSession, Request, Rule, UserError, rule_of


class Eagle3(Eagle):
    """EAGLE-3 with a tree grown by score (arXiv 2503.01840)."""

    name = "eagle3"
    Options: ClassVar[type] = Eagle3Options

    def _shape(self) -> None:
        options = self.options
        if options.top_k > self.config.draft_vocab_size:
            raise UserError(
                f"{self.name}.top_k is {options.top_k}, but the draft knows "
                f"{self.config.draft_vocab_size} tokens only."
            )
        top_k = self.level_size = options.top_k
        pool = top_k + options.depth * top_k**2
        self.width = min(options.total_tokens - 1, pool)
        # A node of level l needs l nodes above it, so deeper nodes could never be kept.
        self.depth = min(options.depth, self.width - 1)
        self.scratch = self.depth * top_k

    def open(self, request: Request) -> DraftSession:
        if self.options.top_k == 1:
            return ChainSession(self, request)
        return TreeSession(self, request, self.options.top_k, self.depth)

    @property
    def details(self) -> dict[str, Any]:
        # The levels that are grown: fewer than asked for where so few tokens cannot reach them.
        return super().details | {"depth": self.depth, "levels": self.depth + 1}


class Eagle2(Eagle3):
    """The heads of EAGLE-1 with a tree grown by score (arXiv 2406.16858)."""

    name = "eagle2"
    version = 1
    Options: ClassVar[type] = Eagle2Options


class Eagle1(Eagle):
    """EAGLE (arXiv 2401.15077) with its fixed tree."""

    name = "eagle1"
    version = 1
    Options: ClassVar[type] = Eagle1Options

    @property
    def rule(self) -> Rule:
        return rule_of(self.options.sample)

    def _shape(self) -> None:
        self.width = sum(map(sum, FIXED_TREE))
        self.scratch = sum(map(len, FIXED_TREE[1:]))
        self.level_size = max(map(len, FIXED_TREE))

    def open(self, request: Request) -> DraftSession:
        return FixedSession(self, request)

    @property
    def details(self) -> dict[str, Any]:
        return super().details | {"levels": len(FIXED_TREE)}
