"""Drafting for one sequence with an EAGLE network."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

import torch
from torch import Tensor

from drafters.eagle import tree
from drafters.eagle.base import Eagle
from specbench.api import (
    REJECT,
    Commit,
    DraftSession,
    Proposal,
    Request,
    all_finite,
    probabilities,
    seeded_generator,
)
from specbench.drafting.kv import DraftKV


class EagleSession(DraftSession):
    """One sequence.

    The committed rows of ``kv`` belong to the committed tokens before the anchor, and all of them
    are made from real target features; the rows of a tree are scratch behind them.
    """

    @torch.inference_mode()
    def __init__(self, drafter: Eagle, request: Request) -> None:
        config, target = drafter.config, drafter.target
        self._drafter = drafter
        self._request = request
        rows = request.capacity + drafter.scratch
        shape = (config.layers, config.kv_heads, rows, config.head_dim)
        self.kv = DraftKV(shape, dtype=target.dtype, device=target.device)
        self._cos, self._sin = drafter.rope(rows)
        self._groups = config.heads // config.kv_heads
        self._itself = torch.eye(drafter.level_size, dtype=torch.bool, device=target.device)
        # What the rows of the last level see: the committed rows, their ancestors, themselves.
        self._visible = self._itself[:1, :0]
        self._outputs = torch.empty(0)
        self._level = self._used = 0

    @torch.inference_mode()
    def commit(self, commit: Commit) -> None:
        """Catch up: run every new pair of a target feature and the token behind it."""
        assert commit.features is not None, "an EAGLE drafter taps the target"
        count = len(commit.features)
        known = self._drafter.condition(commit.features)
        ids = torch.tensor(commit.tokens[-count:], device=known.device)
        mask, length = None, self.kv.length
        if length and count > 1:
            mask = torch.ones(count, length + count, dtype=torch.bool, device=known.device)
            mask = mask.tril_(length).repeat(self._groups, 1)
        positions = slice(length, length + count)
        self._outputs = self._step(ids, known, positions, positions, mask)[-1:]
        self.kv.length += count

    @torch.inference_mode()
    def propose(self, budget: int) -> Proposal:
        self._level = self._used = 0
        self._visible = self._itself.new_ones(1, self.kv.length)
        return self._grow(self._logits(), budget)

    def buffers(self) -> Iterable[Tensor]:
        return self.kv.buffers()

    @abstractmethod
    def _grow(self, logits: Tensor, budget: int) -> Proposal:
        """Propose at most ``budget`` levels, from the logits ``[1, Vd]`` behind the anchor."""

    def _logits(self) -> Tensor:
        """Compute ``[k, Vd]`` logits of the rows that ran last."""
        return self._drafter.model.logits(self._outputs, self._drafter.target.head)

    def _expand(self, tokens: Tensor, ranks: Tensor) -> Tensor:
        """Run one level of a tree (`tree.Expand`)."""
        rows = len(tokens)
        inherited = self._visible.index_select(0, ranks)
        self._visible = torch.cat([inherited, self._itself[:rows, :rows]], dim=1)
        known = self._outputs.index_select(0, ranks)
        return self._run_level(tokens, known, self._visible.repeat(self._groups, 1))

    def _run_level(self, tokens: Tensor, known: Tensor, mask: Tensor | None) -> Tensor:
        """Run draft ids ``[k]``, which share one position, in the next scratch rows; logits."""
        first, position = self.kv.length + self._used, self.kv.length + self._level
        rows = slice(first, first + len(tokens))
        ids = self._drafter.to_target(tokens)
        positions = slice(position, position + 1)
        self._outputs = self._step(ids, known, positions, rows, mask)
        self._level += 1
        self._used += len(tokens)
        return self._logits()

    def _step(
        self, ids: Tensor, known: Tensor, positions: slice, rows: slice, mask: Tensor | None
    ) -> Tensor:
        """Run one forward of the draft over target ids ``[n]``.

        Args:
            known: ``[n, H]`` conditioned features or the outputs of the step before.
            positions: rotary positions, one per row or one for all.
            rows: of the buffers, where the keys and values go.
            mask: ``[h / g * n, rows.stop]`` bool, the query heads of a group stacked as rows; None
                is causal, or a single row that sees everything.
        """
        causal = mask is None and len(ids) > 1

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return self.kv.attend(layer, rows, q, k, v, mask, causal=causal)

        rope = self._cos[positions], self._sin[positions]
        return self._drafter.model(self._drafter.embed(ids), known, rope, attend)  # type: ignore[no-any-return]


class TreeSession(EagleSession):
    """EAGLE-2's dynamic tree."""

    def __init__(self, drafter: Eagle, request: Request, top_k: int, depth: int) -> None:
        super().__init__(drafter, request)
        self._top_k, self._depth = top_k, depth

    def _grow(self, logits: Tensor, budget: int) -> Proposal:
        pool = tree.grow(logits, self._top_k, min(self._depth, budget - 1), self._expand)
        tokens, parents = tree.rerank(pool, self._drafter.width)
        finite = all_finite(pool.best_children)
        return Proposal(self._drafter.to_target(tokens), parents, finite=finite)


class ChainSession(EagleSession):
    """A tree of one node per level."""

    def _grow(self, logits: Tensor, budget: int) -> Proposal:
        best = tree.chain(logits, min(self._drafter.width, budget), self._extend)
        tokens = self._drafter.to_target(best.indices)
        return Proposal.chain(tokens, finite=all_finite(best.values))

    def _extend(self, tokens: Tensor, ranks: Tensor) -> Tensor:
        return self._run_level(tokens, self._outputs, None)


class FixedSession(EagleSession):
    """EAGLE-1's tree of one shape; siblings are the best tokens or drawn without replacement."""

    def __init__(self, drafter: Eagle, request: Request) -> None:
        super().__init__(drafter, request)
        device = drafter.target.device
        self._draws = drafter.rule.at(request.sampling) is REJECT
        self._generator = seeded_generator(request.seed, "draft", device)
        self._ranks = [torch.tensor(ranks, device=device) for ranks in tree.fixed_ranks()]
        self._parents = torch.tensor(tree.fixed_parents(), device=device)
        self._peaks: list[Tensor] = []

    def _grow(self, logits: Tensor, budget: int) -> Proposal:
        self._peaks = []
        tokens, probs = tree.fixed(logits, self._ranks[: budget - 1], self._pick, self._expand)
        ids, parents = self._drafter.to_target(tokens), self._parents[: len(tokens)]
        return Proposal(ids, parents, probs, finite=all_finite(torch.stack(self._peaks)))

    def _pick(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor | None]:
        self._peaks.append(logits.max())
        if not self._draws:
            return logits.topk(count).indices, None
        probs = probabilities(logits, self._request.sampling)
        return tree.without_replacement(probs, count, self._generator)
