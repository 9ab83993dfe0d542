"""Proposals from the logits of one pass: their rule, draws, and broken logits."""

from __future__ import annotations

import pytest
import torch

from specbench.api import (
    REJECT,
    SELECT,
    WALK,
    Sampling,
    all_finite,
    drawn,
    probabilities,
    rule_of,
    with_candidates,
)

LOGITS = torch.randn(4, 9, generator=torch.Generator().manual_seed(0))


def noise() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def test_the_rule_goes_with_what_is_proposed() -> None:
    assert rule_of(sample=False) is WALK
    assert rule_of(sample=True) is REJECT
    assert rule_of(sample=True, candidates=2) is rule_of(sample=False, candidates=2) is SELECT


def test_a_drawn_chain_carries_the_distributions_it_was_drawn_from() -> None:
    sampling = Sampling(0.7, top_k=3)
    proposal = drawn(LOGITS, sampling, noise())
    assert proposal.is_chain
    assert proposal.probs is not None
    assert torch.equal(proposal.probs, probabilities(LOGITS, sampling))
    assert (proposal.probs.gather(1, proposal.tokens[:, None]) > 0).all()
    assert torch.equal(proposal.tokens, drawn(LOGITS, sampling, noise()).tokens)


@pytest.mark.parametrize("count", [1, 3])
def test_candidates_begin_with_the_drafters_own(count: int) -> None:
    own = LOGITS.argmax(-1)
    proposal = with_candidates(own, LOGITS, count, 1.5, noise())
    assert torch.equal(proposal.tokens[:4], own)
    assert proposal.is_chain == (count == 1)
    assert proposal.probs is None
    assert proposal.finite is not None
    assert bool(proposal.finite)


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_one_broken_row_is_told(broken: float) -> None:
    logits = LOGITS.clone()
    assert bool(all_finite(logits.amax(-1)))
    logits[2, 5] = broken
    assert not bool(all_finite(logits.amax(-1)))
    assert not bool(with_candidates(logits.argmax(-1), logits, 1, 1.0, noise()).finite)


def test_ids_that_may_not_be_drafted_are_no_fault() -> None:
    logits = LOGITS.clone()
    logits[:, :3] = -torch.inf
    assert bool(all_finite(logits.amax(-1)))
