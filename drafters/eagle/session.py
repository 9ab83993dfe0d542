"""Drafting for one sequence with an EAGLE network."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from drafters.eagle import tree
from specbench.api import (
    REJECT,
    Commit,
    DraftSession,
    Proposal,
    Request,
    probabilities,
    seeded_generator,
)
from specbench.drafting.layers import attention

if TYPE_CHECKING:
    from drafters.eagle.draft import Eagle, Eagle3


class EagleSession(DraftSession):
    """One sequence; keys and values of all layers in buffers allocated once.

    The first ``length`` rows belong to the committed tokens before the anchor, all of them made
    from real target features. A tree's rows are written behind them and are overwritten by the
    next commit, so that nothing of a draft outlives its round.
    """

    @torch.inference_mode()
    def __init__(self, drafter: Eagle, request: Request) -> None:
        config = drafter.config
        self._drafter = drafter
        self._request = request
        rows = request.capacity + drafter.scratch
        shape = (config.layers, config.kv_heads, rows, config.head_dim)
        target = drafter.target
        self._keys = torch.empty(shape, dtype=target.dtype, device=target.device)
        self._values = torch.empty_like(self._keys)
        self._cos, self._sin = drafter.rope(rows)
        self._groups = config.heads // config.kv_heads
        self._itself = torch.eye(drafter.level_size, dtype=torch.bool, device=target.device)
        # What the rows of the last level see: the committed ones, their ancestors, themselves.
        self._visible = self._itself[:1, :0]
        self._outputs = torch.empty(0)
        self._level = self._used = 0
        self.length = 0

    @torch.inference_mode()
    def commit(self, commit: Commit) -> None:
        """The catch-up pass: every new pair of a target feature and the token behind it."""
        assert commit.features is not None, "an EAGLE drafter taps the target"
        count = len(commit.features)
        known = self._drafter.condition(commit.features)
        ids = torch.tensor(commit.tokens[-count:], device=known.device)
        mask = None
        if self.length and count > 1:
            mask = torch.ones(count, self.length + count, dtype=torch.bool, device=known.device)
            mask = mask.tril_(self.length).repeat(self._groups, 1)
        positions = slice(self.length, self.length + count)
        self._outputs = self._step(ids, known, positions, positions, mask)[-1:]
        self.length += count

    @torch.inference_mode()
    def propose(self, budget: int) -> Proposal:
        self._level = self._used = 0
        self._visible = self._itself.new_ones(1, self.length)
        return self._grow(self._logits(), budget)

    @abstractmethod
    def _grow(self, logits: Tensor, budget: int) -> Proposal:
        """A proposal of at most ``budget`` levels from the logits ``[1, Vd]`` behind the anchor."""

    def _logits(self) -> Tensor:
        """``[k, Vd]`` of the rows that ran last."""
        return self._drafter.model.logits(self._outputs, self._drafter.target.head)

    def _expand(self, tokens: Tensor, ranks: Tensor) -> Tensor:
        """Run one level of a tree (`tree.Expand`)."""
        rows = len(tokens)
        inherited = self._visible.index_select(0, ranks)
        self._visible = torch.cat([inherited, self._itself[:rows, :rows]], dim=1)
        known = self._outputs.index_select(0, ranks)
        return self._run_level(tokens, known, self._visible.repeat(self._groups, 1))

    def _run_level(self, tokens: Tensor, known: Tensor, mask: Tensor | None) -> Tensor:
        """Logits of draft ids ``[k]``, which share one position, in the next scratch rows."""
        first, position = self.length + self._used, self.length + self._level
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
        """One forward of the draft over target ids ``[n]``.

        Args:
            known: ``[n, H]`` conditioned features or the outputs of the step before.
            positions: rotary positions, one a row or one for all.
            rows: of the buffers, where the keys and values go.
            mask: ``[h / g * n, rows.stop]`` bool, the query heads of a group under one another;
                None is causal, or a single row that sees everything.
        """

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self._keys[layer, :, rows] = k.transpose(0, 1)
            self._values[layer, :, rows] = v.transpose(0, 1)
            seen = slice(0, rows.stop)
            keys, values = self._keys[layer, :, seen], self._values[layer, :, seen]
            if mask is None and len(q) > 1:
                return causal_attention(q, keys, values)
            return attention(q, keys, values, mask)

        rope = self._cos[positions], self._sin[positions]
        return self._drafter.model(self._drafter.embed(ids), known, rope, attend)  # type: ignore[no-any-return]


class TreeSession(EagleSession):
    """EAGLE-2's dynamic tree."""

    _drafter: Eagle3

    def _grow(self, logits: Tensor, budget: int) -> Proposal:
        drafter = self._drafter
        depth = min(drafter.depth, budget - 1)
        pool = tree.grow(logits, drafter.top_k, depth, self._expand)
        tokens, parents = tree.rerank(pool, drafter.width)
        # Logits that are no numbers make a score that is none.
        finite = ~pool.scores.isnan().any()
        return Proposal(drafter.to_target(tokens), parents, finite=finite)


class ChainSession(EagleSession):
    """The tree of one node a level."""

    def _grow(self, logits: Tensor, budget: int) -> Proposal:
        best = tree.chain(logits, min(self._drafter.width, budget), self._extend)
        tokens = self._drafter.to_target(best.indices)
        return Proposal.chain(tokens, finite=best.values.isfinite().all())

    def _extend(self, tokens: Tensor, ranks: Tensor) -> Tensor:
        return self._run_level(tokens, self._outputs, None)


class FixedSession(EagleSession):
    """EAGLE-1's tree of one shape, its siblings the best ones or drawn without replacement."""

    def __init__(self, drafter: Eagle, request: Request) -> None:
        super().__init__(drafter, request)
        device = drafter.target.device
        self._draws = drafter.rule is REJECT and not request.sampling.greedy
        self._generator = seeded_generator(request.seed, "draft", device)
        self._ranks = [torch.tensor(ranks, device=device) for ranks in tree.fixed_ranks()]
        self._parents = torch.tensor(tree.fixed_parents(), device=device)
        self._peaks: list[Tensor] = []

    def _grow(self, logits: Tensor, budget: int) -> Proposal:
        self._peaks = []
        tokens, probs = tree.fixed(logits, self._ranks[: budget - 1], self._pick, self._expand)
        ids, parents = self._drafter.to_target(tokens), self._parents[: len(tokens)]
        return Proposal(ids, parents, probs, finite=torch.stack(self._peaks).isfinite().all())

    def _pick(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor | None]:
        self._peaks.append(logits.max())
        if not self._draws:
            return logits.topk(count).indices, None
        probs = probabilities(logits, self._request.sampling)
        return tree.without_replacement(probs, count, self._generator)


def causal_attention(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """q ``[n, h, d]`` over keys and values ``[g, n, d]`` of the same rows to ``[n, h * d]``."""
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None], keys[None], values[None], is_causal=True, enable_gqa=True
    )
    return out[0].transpose(0, 1).reshape(len(q), -1)
