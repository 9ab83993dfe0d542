"""Growing draft trees: EAGLE-2's by score (arXiv 2406.16858, section 4), EAGLE-1's fixed one.

Everything stays on the device: no function here looks at a value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

Expand = Callable[[Tensor, Tensor], Tensor]
"""(draft ids ``[k]``, ranks ``[k]`` of their parents in the level before) to logits ``[k, Vd]``."""

FIXED_TREE = ((4,), (3, 2, 2, 1), (3, 2, 2, 1), (3,), (2,))
"""EAGLE-1's tree of 25 (its ``mc_sim_7b_63``): the number of children of each node, per level.

The nodes with children come first in their level; level 0 is the anchor alone.
"""


class Best(NamedTuple):
    """Draft ids ``[n]`` and the logit of each ``[n]``."""

    values: Tensor
    indices: Tensor


@dataclass(frozen=True)
class Pool:
    """All nodes that were scored, in the order of their creation.

    Attributes:
        tokens: ``[m]`` draft ids.
        scores: ``[m]`` sums of log-probabilities along the path.
        expanded: ``[m / k]`` index of every node that was expanded, the anchor (-1) first. Each
            has k children, in this order.
        top_k: that k.
    """

    tokens: Tensor
    scores: Tensor
    expanded: Tensor
    top_k: int

    @property
    def best_children(self) -> Tensor:
        """``[m / k]`` score of the best child of every node that was expanded."""
        return self.scores[:: self.top_k]

    def parents(self, nodes: Tensor) -> Tensor:
        """Return the index of each node's parent, -1 for the anchor."""
        return self.expanded.index_select(0, nodes // self.top_k)


def grow(logits: Tensor, top_k: int, depth: int, expand: Expand) -> Pool:
    """Grow ``depth + 1`` levels: k nodes, then the k best children of k nodes at a time.

    Args:
        logits: ``[1, Vd]`` behind the anchor.
        expand: runs one level; called ``depth`` times.
    """
    best, tokens = (part.view(-1) for part in _children(logits, top_k))
    order = torch.arange(top_k, device=logits.device)
    ranks = torch.zeros_like(order)
    chosen, scores, ids, orders = tokens, [best], [tokens], []
    for level in range(depth):
        orders.append(order)
        added, tokens = (part.view(-1) for part in _children(expand(chosen, ranks), top_k, best))
        scores.append(added)
        ids.append(tokens)
        if level + 1 < depth:
            best, order = _best(added, top_k)
            chosen, ranks = tokens.index_select(0, order), order // top_k
    expanded = _expanded(orders, top_k, logits.device)
    return Pool(torch.cat(ids), torch.cat(scores), expanded, top_k)


def rerank(pool: Pool, count: int) -> tuple[Tensor, Tensor]:
    """Pick the ``count`` best nodes, or all of them if there are fewer, in pool order.

    A parent's score is never below its child's and its index is lower, so with ties broken by
    the index it is always among them.

    Returns:
        Draft ids, and the parent of each in the picked order.
    """
    kept = _best(pool.scores, count)[1].sort().values
    parents = pool.parents(kept)
    inside = torch.searchsorted(kept, parents)
    return pool.tokens.index_select(0, kept), torch.where(parents < 0, parents, inside)


def chain(logits: Tensor, count: int, expand: Expand) -> Best:
    """Grow a chain: ``[count]`` draft ids, each the most likely token behind the one before it, and
    their logits."""
    best = [logits.max(-1)]
    rank = torch.zeros_like(best[0].indices)
    while len(best) < count:
        best.append(expand(best[-1].indices, rank).max(-1))
    return Best(*(torch.cat(parts) for parts in zip(*best, strict=True)))


def fixed(
    logits: Tensor,
    ranks: Sequence[Tensor],
    pick: Callable[[Tensor, int], tuple[Tensor, Tensor | None]],
    expand: Expand,
) -> tuple[Tensor, Tensor | None]:
    """Grow the first levels of `FIXED_TREE`: draft ids, and their distributions.

    Args:
        logits: ``[1, Vd]`` behind the anchor.
        ranks: `fixed_ranks` as tensors; one level more than their number is grown.
        pick: (logits ``[m, Vd]``, c) to c children of each node, ``[m, c]``, best or first drawn
            first, and the distributions ``[m, c, Vd]`` they were drawn from (None: one-hot).
        expand: runs one level.
    """
    tokens: list[Tensor] = []
    probs: list[Tensor] = []
    for level in range(len(ranks) + 1):
        counts = FIXED_TREE[level]
        if level:
            logits = expand(tokens[-1][: len(counts)], ranks[level - 1])
        children, drawn = pick(logits, max(counts))
        tokens.append(torch.cat([children[i, :c] for i, c in enumerate(counts)]))
        if drawn is not None:
            probs += [drawn[i, :c] for i, c in enumerate(counts)]
    return torch.cat(tokens), torch.cat(probs) if probs else None


def fixed_ranks() -> list[list[int]]:
    """Return, per expanded level, the ranks of its nodes' parents in the level before."""
    return [_ranks(level)[: len(FIXED_TREE[level])] for level in range(1, len(FIXED_TREE))]


def fixed_parents() -> list[int]:
    """Return the parent of every node of `FIXED_TREE`, level by level; -1 is the anchor."""
    parents: list[int] = []
    start = -1
    for level in range(len(FIXED_TREE)):
        ranks = _ranks(level + 1)
        parents += [start + rank for rank in ranks]
        start = len(parents) - len(ranks)
    return parents


def without_replacement(
    probs: Tensor, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw ``count`` different tokens from each row of ``probs`` ``[m, V]``.

    The order of p / Exp(1) is that of drawing one after the other (exponential races).

    Returns:
        Ids ``[m, count]`` in the order drawn, and ``[m, count, V]`` the distribution of each: the
        row without the ids drawn before it, renormalised. Where nothing is left to draw, the token
        is arbitrary but chosen before the target's noise, so its distribution is one-hot.
    """
    noise = torch.empty_like(probs).exponential_(generator=generator)
    tiny = torch.finfo(probs.dtype).tiny
    ids = (probs / noise.clamp_(min=tiny)).topk(count).indices
    left = probs[:, None].repeat(1, count, 1)
    not_before = torch.ones(count, count, dtype=probs.dtype, device=probs.device).triu()
    index = ids[:, None].expand(-1, count, -1)
    left.scatter_(2, index, probs.gather(1, ids)[:, None] * not_before)
    mass = left.sum(-1, keepdim=True)
    point = torch.zeros_like(left).scatter_(2, ids[..., None], 1.0)
    return ids, torch.where(mass > 0, left / mass.clamp(min=tiny), point)


def _children(logits: Tensor, top_k: int, scores: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return scores and draft ids ``[k, top_k]`` of the best children of nodes with ``scores``
    ``[k]``, best first."""
    values, ids = F.log_softmax(logits, dim=-1, dtype=torch.float32).topk(top_k)
    return values if scores is None else values + scores[:, None], ids


def _expanded(orders: list[Tensor], top_k: int, device: torch.device) -> Tensor:
    """Make `Pool.expanded` of the nodes expanded per level, given as indices into the level."""
    anchor = torch.full((1,), -1, dtype=torch.long, device=device)
    if not orders:
        return anchor
    # The first level holds k nodes, every other one k * k.
    starts = torch.arange(len(orders), device=device) * top_k**2 + (top_k - top_k**2)
    return torch.cat([anchor, (torch.stack(orders) + starts.clamp_(min=0)[:, None]).view(-1)])


def _best(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the best scores and their indices, best first; of equals the lower index first."""
    values, order = scores.sort(descending=True, stable=True)
    return values[:count], order[:count]


def _ranks(level: int) -> list[int]:
    """Return, for each node of a level of `FIXED_TREE`, its parent's rank in the level before."""
    return [rank for rank, count in enumerate(FIXED_TREE[level - 1]) for _ in range(count)]
