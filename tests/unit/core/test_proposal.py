"""Proposals: how they are made, and which are refused."""

from __future__ import annotations

import pytest
import torch

from specbench.core.proposal import Proposal
from specbench.core.rules import reject, walk
from specbench.core.sampling import Sampling

VOCABULARY = 8


def tree(tokens: list[int], parents: list[int], **more: object) -> Proposal:
    return Proposal(torch.tensor(tokens), torch.tensor(parents), **more)  # type: ignore[arg-type]


def test_parallel_chains_start_at_one_anchor() -> None:
    proposal = Proposal.chains(torch.tensor([[1, 2], [3, 4], [5, 6]]))
    assert proposal.parents.tolist() == [-1, 0, -1, 2, -1, 4]
    assert proposal.depths.tolist() == [0, 1, 2, 1, 2, 1, 2]
    assert not proposal.is_chain


def test_one_parallel_chain_is_a_chain() -> None:
    assert Proposal.chains(torch.tensor([[1, 2, 3]])).is_chain


def test_an_empty_proposal_is_plain_autoregression() -> None:
    empty = Proposal(torch.empty(0, dtype=torch.long), torch.empty(0, dtype=torch.long))
    logits = torch.zeros(1, VOCABULARY)
    logits[0, 3] = 1
    kept = walk(empty, logits, Sampling(), torch.rand(1))
    assert (kept.path, kept.tokens) == ((), (3,))


@pytest.mark.parametrize(
    ("tokens", "parents", "probs"),
    [((2, 3), (1, 2), None), ((3,), (3,), (2, VOCABULARY)), ((3,), (3,), (VOCABULARY,))],
    ids=["tokens and parents differ", "too few distributions", "a flat distribution"],
)
def test_wrong_shapes_are_refused(
    tokens: tuple[int, ...], parents: tuple[int, ...], probs: tuple[int, ...] | None
) -> None:
    rows = None if probs is None else torch.ones(probs)
    with pytest.raises(ValueError, match="must be"):
        Proposal(torch.zeros(tokens).long(), torch.zeros(parents).long(), rows)


def nan_probs() -> Proposal:
    probs = torch.full((2, VOCABULARY), 1 / VOCABULARY)
    probs[1, 0] = torch.nan
    return tree([1, 2], [-1, 0], probs=probs)


MALFORMED = {
    "cycle": tree([1, 2, 3], [-1, 2, 1]),
    "own parent": tree([1, 2], [-1, 1]),
    "parent after child": tree([1, 2], [1, -1]),
    "parent outside": tree([1, 2], [-1, 9]),
    "parent below the anchor": tree([1, 2], [-1, -7]),
    "id outside": tree([1, VOCABULARY], [-1, 0]),
    "negative id": tree([-1, 2], [-1, 0]),
    "NaN probability": nan_probs(),
    "NaN logits": tree([1, 2], [-1, 0], finite=torch.tensor(False)),
    "NaN logits of a chain": tree([1, 2], [-1, 0], is_chain=True, finite=torch.tensor(False)),
    "no chain, but is_chain": tree([1, 2, 3], [-1, -1, 0], is_chain=True),
}


@pytest.mark.parametrize("name", MALFORMED)
@pytest.mark.parametrize("rule", [walk, reject])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_malformed_proposals_are_refused(name: str, rule: object, temperature: float) -> None:
    proposal = MALFORMED[name]
    logits = torch.zeros(len(proposal) + 1, VOCABULARY)
    with pytest.raises(ValueError, match="malformed proposal"):
        rule(  # type: ignore[operator]
            proposal, logits, Sampling(temperature), torch.rand(8), torch.Generator()
        )


@pytest.mark.parametrize("rule", [walk, reject])
@pytest.mark.parametrize("parents", [[-1, 0], [-1, -1]], ids=["chain", "tree"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_logits_that_are_not_finite_are_refused(
    rule: object, parents: list[int], bad: float
) -> None:
    logits = torch.zeros(3, VOCABULARY)
    logits[2, 5] = bad
    with pytest.raises(ValueError, match="not finite"):
        rule(  # type: ignore[operator]
            tree([1, 2], parents), logits, Sampling(), torch.rand(8), torch.Generator()
        )
