"""Acceptance rules: kept tokens worked out by hand, and the distribution under `reject`."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from specbench.core import rules
from specbench.core.proposal import Proposal
from specbench.core.rules import (
    REJECT,
    SELECT,
    SELECT_RATIO,
    WALK,
    Rule,
    reject,
    residual,
    walk,
)
from specbench.core.sampling import Sampling
from tests.helpers.token_distributions import Distributions, Draft, Prefix, pick, pvalue


def one_hot_logits(*tokens: int, vocabulary: int = 8) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(tokens), vocabulary).float()


def tree(tokens: list[int], parents: list[int]) -> Proposal:
    return Proposal(torch.tensor(tokens), torch.tensor(parents))


@pytest.mark.parametrize(
    ("tokens", "wanted", "kept"),
    [
        ([1, 2, 3], (1, 2, 3, 4), (1, 2, 3, 4)),
        ([1, 2, 3], (1, 2, 7, 4), (1, 2, 7)),
        ([1, 2, 3], (7, 2, 3, 4), (7,)),
        ([], (5,), (5,)),
    ],
)
def test_walk_on_a_chain(tokens: list[int], wanted: tuple[int, ...], kept: tuple[int, ...]) -> None:
    proposal = Proposal.chain(torch.tensor(tokens, dtype=torch.long))
    got = walk(proposal, one_hot_logits(*wanted), Sampling(), torch.rand(8))
    assert got.tokens == kept
    assert got.path == tuple(range(len(kept) - 1))


def test_walk_finds_the_longest_of_duplicate_siblings() -> None:
    #                 0  1  2  3  4
    proposal = tree([1, 1, 2, 2, 3], [-1, -1, 0, 1, 3])
    got = walk(proposal, one_hot_logits(1, 2, 2, 3, 3, 6), Sampling(), torch.rand(8))
    assert (got.path, got.tokens) == ((1, 3, 4), (1, 2, 3, 6))


def test_greedy_reject_is_walk() -> None:
    proposal = tree([1, 2, 2, 3], [-1, -1, 1, 2])
    logits = one_hot_logits(2, 5, 2, 3, 6)
    generator = torch.Generator().manual_seed(0)
    assert reject(proposal, logits, Sampling(), torch.rand(8), generator) == walk(
        proposal, logits, Sampling(), torch.rand(8)
    )


def test_residual_falls_back_to_p_when_nothing_is_left() -> None:
    p = torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.2, 0.3, 0.5]])
    q = torch.tensor([[0.5, 0.5, 0.0], [0.6, 0.7, 0.1], [0.4, 0.3, 0.3]])
    want = torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    torch.testing.assert_close(residual(p, q), want)


@pytest.mark.parametrize("is_chain", [True, False])
@pytest.mark.parametrize(("u", "accepted"), [(0.25, 0), (0.25 - 2**-24, 1), (0.0, 1)])
def test_acceptance_is_strict(
    is_chain: bool, u: float, accepted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "_uniform", lambda count, like, generator: torch.full((count,), u))
    probs = torch.tensor([[1.0, 0, 0, 0]])
    proposal = Proposal(torch.tensor([0]), torch.tensor([-1]), probs, is_chain=is_chain)
    kept = reject(proposal, torch.zeros(2, 4), Sampling(1.0), torch.rand(4), torch.Generator())
    assert len(kept.path) == accepted


@pytest.mark.parametrize("is_chain", [True, False])
def test_a_token_of_probability_zero_is_never_kept(
    is_chain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "_uniform", lambda count, like, generator: torch.zeros(count))
    logits = torch.zeros(2, 4)
    logits[:, 0] = -torch.inf
    probs = torch.tensor([[0.5, 0.5, 0, 0]])
    proposal = Proposal(torch.tensor([0]), torch.tensor([-1]), probs, is_chain=is_chain)
    kept = reject(proposal, logits, Sampling(1.0), torch.rand(4), torch.Generator())
    assert kept.path == ()
    assert kept.tokens[0] in (2, 3)


def chain(
    model: Distributions, prefix: Prefix, chance: random.Random
) -> tuple[Proposal, list[Prefix]]:
    texts = [prefix]
    for _ in range(2):
        texts.append((*texts[-1], pick(model.q[texts[-1]], chance)))
    tokens = torch.tensor([text[-1] for text in texts[1:]])
    probs = torch.stack([model.q[text] for text in texts[:-1]])
    return Proposal.chain(tokens, probs), texts


def siblings(
    model: Distributions, prefix: Prefix, chance: random.Random
) -> tuple[Proposal, list[Prefix]]:
    """Draw two children per node without replacement, on two levels."""
    texts, parents, rows = [prefix], [], []
    for parent in (0, 1, 2):
        q = model.q[texts[parent]]
        for _ in range(2):
            token = pick(q, chance)
            parents.append(parent - 1)
            rows.append(q)
            texts.append((*texts[parent], token))
            q = q.clone()
            q[token] = 0
            q = q / q.sum()
    tokens = torch.tensor([text[-1] for text in texts[1:]])
    return Proposal(tokens, torch.tensor(parents), torch.stack(rows)), texts


def fixed(
    model: Distributions, prefix: Prefix, chance: random.Random
) -> tuple[Proposal, list[Prefix]]:
    """Propose fixed one-hot tokens with duplicates among the siblings."""
    texts = [prefix, *((*prefix, token) for token in (1, 1, 0)), (*prefix, 1, 2)]
    tokens = torch.tensor([text[-1] for text in texts[1:]])
    return Proposal(tokens, torch.tensor([-1, -1, -1, 0])), texts


@pytest.mark.parametrize("draft", [chain, siblings, fixed])
@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(0.6, top_k=2)], ids=str)
def test_reject_keeps_the_joint_distribution_of_the_target(
    draft: Draft, sampling: Sampling
) -> None:
    assert pvalue(draft, sampling, reject) > 1e-3


@pytest.mark.parametrize("draft", [chain, siblings, fixed])
def test_the_same_test_fails_without_the_residual(
    draft: Draft, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "residual", lambda p, q: p)
    assert pvalue(draft, Sampling(1.0), reject) < 1e-9


class HostWaits(TorchDispatchMode):
    """Counts how often the host waits for a device: to read a scalar, or a tensor as a list."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.count = 0
        tolist = torch.Tensor.tolist

        def counted(tensor: torch.Tensor) -> Any:
            self.count += 1
            return tolist(tensor)

        monkeypatch.setattr(torch.Tensor, "tolist", counted)

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += op is torch.ops.aten._local_scalar_dense.default
        return op(*args, **(kwargs or {}))


@pytest.mark.parametrize("rule", [WALK, REJECT, SELECT, SELECT_RATIO], ids=lambda rule: rule.name)
@pytest.mark.parametrize("chains", [1, 5])
def test_a_rule_waits_for_the_device_once(
    rule: Rule, chains: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = torch.Generator().manual_seed(0)
    probs = torch.rand(chains, 3, 8, generator=noise).softmax(-1)
    drafted = torch.randint(8, (chains, 3), generator=noise)
    logits = torch.randn(3 * chains + 1, 8, generator=noise)
    proposal = Proposal.chains(drafted, probs)
    with HostWaits(monkeypatch) as waits:
        rule.keep(proposal, logits, Sampling(1.0), torch.rand(4, generator=noise), noise)
    assert waits.count == 1
