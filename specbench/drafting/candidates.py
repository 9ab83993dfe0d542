"""Several drafts of one pass: drawn from its marginals, and merged where they begin alike."""

from __future__ import annotations

import torch
from torch import Tensor

from specbench.core.proposal import Proposal
from specbench.core.sampling import Sampling, probabilities


def draw_candidates(probs: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """``[count, n]`` drafts from the marginals ``[n, V]`` of n places, each place on its own.

    By inverse CDF in float64, as `draw` does it, but with one sum over the vocabulary a place
    instead of one a token.
    """
    cdf = probs.double().cumsum(-1)
    shape = len(probs), count
    uniforms = torch.rand(shape, generator=generator, device=generator.device).to(cdf)
    tokens = torch.searchsorted(cdf, uniforms * cdf[:, -1:], right=True)
    return tokens.clamp_(max=probs.shape[-1] - 1).T.contiguous()


def merge_chains(
    chains: Tensor, probs: Tensor | None = None, finite: Tensor | None = None
) -> Proposal:
    """The trie of K chains ``[K, n]`` below one anchor: every prefix once, in order of the chains.

    Costs one host synchronisation, to know how many rows are left. For every rule but `reject`,
    which must see each draw (`Proposal.chains`).

    Args:
        chains: tokens; chains are as long as one another.
        probs: ``[n, V]``, where the rule needs what the tokens of each place were drawn from.
        finite: see `Proposal`.
    """
    count, length = chains.shape
    if count == 1:
        return Proposal.chain(chains[0], probs, finite)
    # [K, K, n]: two chains are the same up to and with this place.
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
    """A drafter's own chain and ``count - 1`` drawn from the same pass, merged; for `select`.

    Args:
        own: ``[n]`` tokens, the first candidate.
        logits: ``[n, V]`` of that pass, drawn from at ``temperature``.
    """
    finite = logits.max().isfinite()
    if count == 1:
        return Proposal.chain(own, finite=finite)
    marginals = probabilities(logits, Sampling(temperature))
    drawn = draw_candidates(marginals, count - 1, generator)
    return merge_chains(torch.cat([own[None], drawn]), finite=finite)
