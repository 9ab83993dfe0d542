"""Acceptance rules: which drafted tokens a round keeps, and the target's own token after them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.core.proposal import Proposal
from specbench.core.sampling import Sampling, draw, probabilities


@dataclass(frozen=True, slots=True)
class Kept:
    """What one round keeps, on the host.

    Attributes:
        path: indices into the proposal, from the anchor's child downwards.
        tokens: the accepted tokens along ``path``, then the bonus.
    """

    path: tuple[int, ...]
    tokens: tuple[int, ...]


Keep = Callable[[Proposal, Tensor, Sampling, Tensor, torch.Generator], Kept]
"""(proposal, logits ``[n + 1, V]``, sampling, uniforms ``[>= depth + 1]``, generator) to Kept."""


@dataclass(frozen=True)
class Rule:
    """An acceptance rule; a drafter hands over this object.

    Attributes:
        name: name in records and tables.
        keep: the rule itself, a pure function.
        lossless: whether the output keeps the target's distribution. A rule that does not keep
            it is marked in every table.
        same_text: whether the text equals plain sampling with the same seed, token for token, at
            any temperature.
    """

    name: str
    keep: Keep
    lossless: bool
    same_text: bool

    def at(self, sampling: Sampling) -> Rule:
        """Return this rule, or `WALK` for greedy sampling, where every proposal is walked."""
        return WALK if sampling.greedy else self


def walk(
    proposal: Proposal,
    logits: Tensor,
    sampling: Sampling,
    uniforms: Tensor,
    generator: torch.Generator | None = None,
) -> Kept:
    """Step from the anchor to the child that carries the target's own next token, until none does.

    This is the rule for one-hot proposals. The target's token at a node of depth d is the argmax,
    or it is drawn with ``uniforms[d]``. So every emitted token uses the uniform of its own output
    position, and the text equals plain sampling with the same uniforms (lossless at any
    temperature).

    Equal prefixes on different branches are followed together: the path ends at the deepest node
    that matches together with all its ancestors. This equals a walk over the merged trie.

    Raises:
        ValueError: the proposal is malformed or the logits are not finite.
    """
    if sampling.greedy:
        wanted = logits.argmax(-1)
    else:
        wanted = draw(probabilities(logits, sampling), uniforms[proposal.depths])
    if proposal.is_chain:
        matches = (proposal.tokens == wanted[:-1]).long().cumprod(0).sum()
        return _fetch_chain(proposal, matches, _at(wanted, matches), logits)
    row = _deepest(proposal, proposal.tokens != wanted[_parent_rows(proposal)])
    return _fetch_tree(proposal, row, _at(wanted, row), logits)


def select(
    proposal: Proposal,
    logits: Tensor,
    sampling: Sampling,
    uniforms: Tensor,
    generator: torch.Generator | None = None,
) -> Kept:
    """Select a path by self-selection (arXiv 2511.00606, algorithm 1), then `walk` along it only.

    The target's token is drawn, and the walk goes on if the path carries it. So x is accepted
    with P(x), and otherwise a draw from P without x is emitted: point-mass acceptance. The path
    is chosen before any draw, so the rule is exact, and its text equals plain sampling with the
    same uniforms. `walk` follows every path at once, so it keeps at least as many tokens.

    Raises:
        ValueError: the proposal is malformed or the logits are not finite.
    """
    if proposal.is_chain:
        return walk(proposal, logits, sampling, uniforms)
    probs = probabilities(logits, sampling)
    wanted = draw(probs, uniforms[proposal.depths])
    missed = proposal.tokens != wanted[_parent_rows(proposal)]
    row = _deepest(proposal, missed | ~best_path(proposal, probs))
    return _fetch_tree(proposal, row, _at(wanted, row), logits)


def select_ratio(
    proposal: Proposal,
    logits: Tensor,
    sampling: Sampling,
    uniforms: Tensor,
    generator: torch.Generator,
) -> Kept:
    """Select a path by self-selection, then apply `reject` to it; this is not lossless.

    Once the target has chosen the path, its tokens no longer follow the distributions that they
    were drawn from. The kept tokens are biased towards those that the target finds likely.

    Raises:
        ValueError: no distributions, a malformed proposal, or logits that are not finite.
    """
    if proposal.is_chain:
        return reject(proposal, logits, sampling, uniforms, generator)
    if proposal.probs is None:
        raise ValueError("select-ratio needs the distribution that each token was drawn from")
    p, q, rows = probabilities(logits, sampling), proposal.probs, _parent_rows(proposal)
    path = best_path(proposal, p)
    u = _uniform(len(proposal) + 1, p, generator)
    index = torch.arange(len(proposal), device=p.device), proposal.tokens.clamp(0, p.shape[-1] - 1)
    row = _deepest(proposal, ~path | (u[1:] * q[index] >= p[rows, index[1]]))
    following = path & (rows == row)
    refused = _at(q, following.long().argmax()) * following.any()
    return _fetch_tree(proposal, row, draw(residual(_at(p, row), refused), u[0]), logits)


def best_path(proposal: Proposal, probs: Tensor) -> Tensor:
    """Return ``[n]`` bool: the nodes of the path with the largest `expected_streaks`."""
    chosen = expected_streaks(proposal, probs).argmax()
    return _at(proposal.ancestors[1:, 1:], chosen)


def expected_streaks(proposal: Proposal, probs: Tensor) -> Tensor:
    """Return the ``[n]`` expected accepted tokens on the path to each node (the paper's Eq. 7).

    This is a sum over the nodes of the path. A node contributes the probability that all tokens
    up to it are accepted: the product of their target probabilities ``probs`` ``[n + 1, V]``.
    """
    above = proposal.ancestors[1:, 1:]
    tokens = proposal.tokens.clamp(0, probs.shape[-1] - 1)
    reached = torch.where(above, probs[_parent_rows(proposal), tokens], 1.0).prod(-1)
    return torch.where(above, reached, 0.0).sum(-1)


def _parent_rows(proposal: Proposal) -> Tensor:
    """Return the logits row of each token's parent.

    It is clamped, because a malformed tree is refused only when the results are fetched.
    """
    return proposal.parents.clamp(-1, len(proposal) - 1) + 1


def _deepest(proposal: Proposal, missed: Tensor) -> Tensor:
    """Return the row of the deepest node that, like all its ancestors, is not missed."""
    alive = ~(proposal.ancestors[1:, 1:] & missed).any(-1)
    depth_if_alive = proposal.depths[1:] * alive
    return (depth_if_alive.argmax() + 1) * alive.any()


def reject(
    proposal: Proposal,
    logits: Tensor,
    sampling: Sampling,
    uniforms: Tensor,
    generator: torch.Generator,
) -> Kept:
    """Apply speculative sampling (arXiv 2211.17192, algorithm 1; siblings: arXiv 2310.15141).

    A token x drawn from q is kept if u < p(x) / q(x), strictly. Otherwise p becomes the
    normalised positive part of p - q (p itself if nothing is left), and the next sibling is
    tried against it. One-hot tokens have q(x) = 1. The rule is exact for chains, and for siblings
    if each was drawn from its own ``probs`` row, given the siblings before it.

    Equal prefixes on different branches are followed together, so K independently drawn chains
    are tried one after another for as long as they match (SpecInfer, arXiv 2305.09781, algorithm
    2). Their order and their duplicates matter: a token that was refused is refused again, but
    its q is subtracted from p once more. So chains for this rule must not be merged.
    """
    target = probabilities(logits, sampling)
    if proposal.is_chain and proposal.probs is not None:
        return _reject_chain(proposal, proposal.probs, target, logits, generator)
    return _reject_tree(proposal, target, logits, generator)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """Normalise the positive part of p - q over the last axis; return p if nothing is left."""
    rest = (p - q).clamp_(min=0)
    mass = rest.sum(-1, keepdim=True)
    return torch.where(mass > 0, rest / mass.clamp(min=torch.finfo(mass.dtype).tiny), p)


def _uniform(count: int, like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.rand(count, generator=generator, device=generator.device).to(like.device)


def _reject_chain(
    proposal: Proposal, q: Tensor, p: Tensor, logits: Tensor, generator: torch.Generator
) -> Kept:
    count = len(proposal)
    u = _uniform(count + 1, p, generator)
    # Clamped, because a malformed proposal is refused only when the results are fetched.
    picked = proposal.tokens.clamp(0, p.shape[-1] - 1)[:, None]
    kept = u[:count] * q.gather(1, picked)[:, 0] < p[:count].gather(1, picked)[:, 0]
    accepted = kept.long().cumprod(0).sum()
    # After the last token there is nothing to subtract: the bonus comes from p itself.
    q_at = _at(torch.cat([q, torch.zeros_like(q[:1])]), accepted)
    bonus = draw(residual(_at(p, accepted), q_at), u[count])
    return _fetch_chain(proposal, accepted, bonus, logits)


def _reject_tree(
    proposal: Proposal, target: Tensor, logits: Tensor, generator: torch.Generator
) -> Kept:
    """Visit every node in order of depth; the device alone decides which of them are tried.

    A node is tried if its parent carries the text kept so far. The effect of a trial is selected
    on the device, so the device is waited for once per round, however many siblings are tried.
    """
    order = proposal.depths[1:].argsort(stable=True)
    tokens = proposal.tokens.clamp(0, target.shape[-1] - 1)
    parent_rows = _parent_rows(proposal)
    uniforms = _uniform(len(proposal) + 1, target, generator)
    no_root = torch.zeros(1, dtype=torch.bool, device=tokens.device)
    # The rows that carry the text kept so far; the anchor's at first.
    carrying = torch.cat([~no_root, no_root.expand(len(proposal))])
    row = tried = torch.zeros(1, dtype=torch.long, device=tokens.device)
    p = target[0]
    for node in torch.split(order, 1):
        token = tokens[node]
        q = _draft_row(proposal, node, token, p)
        is_tried = carrying[parent_rows[node]]
        is_kept = is_tried & (uniforms[tried] * q[token] < p[token])
        siblings = carrying[parent_rows] & (tokens == token)
        p = torch.where(is_kept, target[node + 1][0], torch.where(is_tried, residual(p, q), p))
        carrying = torch.where(is_kept, torch.cat([no_root, siblings]), carrying)
        row = torch.where(is_kept, node + 1, row)
        tried = tried + is_tried
    return _fetch_tree(proposal, row[0], draw(p, uniforms[tried][0]), logits)


def _draft_row(proposal: Proposal, node: Tensor, token: Tensor, like: Tensor) -> Tensor:
    """Return the ``[V]`` draft distribution at ``node`` ``[1]``; one-hot without ``probs``."""
    if proposal.probs is not None:
        return proposal.probs[node][0]
    return torch.zeros_like(like).scatter_(0, token, 1.0)


def _at(x: Tensor, index: Tensor) -> Tensor:
    """Return ``x[index]`` for a 0-d ``index`` on the device, without waiting for the device."""
    return x.index_select(0, index.view(1))[0]


def _fetch_chain(proposal: Proposal, accepted: Tensor, bonus: Tensor, logits: Tensor) -> Kept:
    """Fetch what is kept of a chain: the one time per round that the device is waited for."""
    (count, last), tokens, _ = _fetch(proposal, logits, accepted, bonus)
    return Kept(tuple(range(count)), (*tokens[:count], last))


def _fetch_tree(proposal: Proposal, row: Tensor, bonus: Tensor, logits: Tensor) -> Kept:
    """Fetch what is kept of a tree: the one time per round that the device is waited for."""
    (last_row, last), tokens, parents = _fetch(proposal, logits, row, bonus)
    return _kept(tokens, parents, last_row - 1, last)


def _fetch(
    proposal: Proposal, logits: Tensor, *results: Tensor
) -> tuple[list[int], list[int], list[int]]:
    """Fetch 0-d results, the proposal's tokens and its parents, waiting for the device once.

    Raises:
        ValueError: the proposal is malformed or the logits are not finite.
    """
    sound = torch.stack([proposal.is_wellformed(logits.shape[-1]), logits.max().isfinite()])
    parts = [part[None] for part in results]
    packed = torch.cat([sound.long(), *parts, proposal.tokens, proposal.parents]).tolist()
    wellformed, finite, *rest = packed
    if not wellformed:
        raise ValueError(f"malformed proposal: {proposal.fault(logits.shape[-1])}")
    if not finite:
        raise ValueError("the target's logits are not finite")
    ends = len(results), len(results) + len(proposal)
    return rest[: ends[0]], rest[ends[0] : ends[1]], rest[ends[1] :]


def _kept(tokens: list[int], parents: list[int], node: int, bonus: int) -> Kept:
    """Keep the path down to ``node`` (-1 is the anchor), then the bonus."""
    path: list[int] = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    path.reverse()
    return Kept(tuple(path), (*(tokens[i] for i in path), bonus))


WALK = Rule("walk", walk, lossless=True, same_text=True)
REJECT = Rule("reject", reject, lossless=True, same_text=False)
SELECT = Rule("select", select, lossless=True, same_text=True)
SELECT_RATIO = Rule("select-ratio", select_ratio, lossless=False, same_text=False)
