"""From the logits of one pass to a proposal: drawn, most likely, or several drafts merged."""

from __future__ import annotations

import torch
from torch import Tensor

from specbench.core.proposal import Proposal
from specbench.core.rules import REJECT, SELECT, WALK, Rule
from specbench.core.sampling import Sampling, draw, probabilities


def rule_of(sample: bool, candidates: int = 1) -> Rule:
    """Return the rule for what this module makes: merged candidates, drawn or one-hot tokens."""
    if candidates > 1:
        return SELECT
    return REJECT if sample else WALK


def all_finite(peaks: Tensor) -> Tensor:
    """Say for `Proposal.finite` whether the logits behind a draft hold numbers; no host sync.

    Args:
        peaks: the largest logit (or log-probability) of every row that a token was taken from.
            It is NaN or infinite where the row is broken.
    """
    return peaks.isfinite().all()


def drawn(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> Proposal:
    """Draw a chain from ``[n, V]`` logits, every place independently; for `reject`."""
    probs = probabilities(logits, sampling)
    uniforms = torch.rand(len(probs), generator=generator, device=probs.device)
    return Proposal.chain(draw(probs, uniforms), probs)


def draw_candidates(probs: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draw ``[count, n]`` drafts from the marginals ``[n, V]`` of n places, all independent.

    By inverse CDF in float64, as `draw` does it, but with one sum over the vocabulary per place
    instead of one per token.
    """
    cdf = probs.double().cumsum(-1)
    shape = len(probs), count
    uniforms = torch.rand(shape, generator=generator, device=generator.device).to(cdf)
    tokens = torch.searchsorted(cdf, uniforms * cdf[:, -1:], right=True)
    return tokens.clamp_(max=probs.shape[-1] - 1).T.contiguous()


def merge_chains(
    chains: Tensor, probs: Tensor | None = None, finite: Tensor | None = None
) -> Proposal:
    """Merge K chains ``[K, n]`` below one anchor into their trie: every prefix once, in the order
    of the chains.

    Costs one host synchronisation, to know how many rows are left. For every rule but `reject`,
    which must see each draw (`Proposal.chains`).

    Args:
        chains: tokens; all chains have the same length.
        probs: ``[n, V]`` what the tokens of each place were drawn from, where the rule needs it.
        finite: see `Proposal`.
    """
    count, length = chains.shape
    if count == 1:
        return Proposal.chain(chains[0], probs, finite)
    # [K, K, n]: whether two chains are equal up to and including this place.
    same = (chains[:, None] == chains).long().cumprod(-1)
    first = same.argmax(1)
    own = first == torch.arange(count, device=chains.device)[:, None]
    node = (own.flatten().cumsum(0) - 1).view(count, length).gather(0, first)
    parents = torch.cat([torch.full_like(node[:, :1], -1), node[:, :-1]], dim=1)
    kept = own.flatten().nonzero()[:, 0]
    rows = None if probs is None else probs[kept % length]
    return Proposal(chains.flatten()[kept], parents.flatten()[kept], rows, finite=finite)


def with_candidates(
    own: Tensor, logits: Tensor, count: int, temperature: float, generator: torch.Generator
) -> Proposal:
    """Merge a drafter's own chain with ``count - 1`` drawn from the same pass; for `select`.

    Args:
        own: ``[n]`` tokens, the first candidate.
        logits: ``[n, V]`` of that pass; candidates are drawn at ``temperature``.
    """
    sound = all_finite(logits.amax(-1))
    if count == 1:
        return Proposal.chain(own, finite=sound)
    marginals = probabilities(logits, Sampling(temperature))
    others = draw_candidates(marginals, count - 1, generator)
    return merge_chains(torch.cat([own[None], others]), finite=sound)
