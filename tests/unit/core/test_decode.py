"""The loop: it is lossless for every proposal shape, and a sequence ends as it should."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.api import Kept, Rule
from specbench.core.decode import cut, generate
from specbench.core.drafter import Request
from specbench.core.proposal import Proposal
from specbench.core.rules import WALK, walk
from specbench.core.sampling import Sampling
from specbench.core.target import Target
from specbench.core.verifier import Verifier
from specbench.errors import UserError
from specbench.testing import (
    NO_STOPS,
    ScriptedDrafter,
    ScriptedOptions,
    assert_counts,
    assert_lossless,
    plain,
    tiny_target,
)

PROMPT = [7, 3, 21, 40, 3]


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(window=8, full_layers=1, context=64)


def scripted(target: Target, continuation: Any = None, **options: Any) -> ScriptedDrafter:
    drafter = ScriptedDrafter(target, ScriptedOptions(**options), continuation)
    drafter.bind(target.view())
    return drafter


@pytest.mark.parametrize("shape", ["chain", "chains", "tree"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.6), Sampling(1.0)], ids=str)
def test_same_seed_same_text(target: Target, shape: Any, sampling: Sampling) -> None:
    drafter = scripted(target, shape=shape, wrong=0.4)
    outputs = assert_lossless(target, drafter, [PROMPT], 40, sampling=sampling, seeds=range(3))
    accepted = [r.accepted for output in outputs for r in output.rounds]
    assert min(accepted) == 0
    assert max(accepted) > 1


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0)], ids=str)
def test_a_perfect_draft_is_accepted_completely(target: Target, sampling: Sampling) -> None:
    drafter = scripted(target, shape="chain", width=4, wrong=0.0)
    (output,) = assert_lossless(target, drafter, [PROMPT], 41, sampling=sampling)
    assert [(r.drafted, r.accepted, len(r.tokens)) for r in output.rounds] == [(4, 4, 5)] * 8


def test_different_seeds_give_different_texts(target: Target) -> None:
    texts = {plain(target, PROMPT, 12, Sampling(1.0), seed).tokens for seed in range(5)}
    assert len(texts) == 5


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_sampled_drafts_are_verified_by_rejection(target: Target, shape: Any) -> None:
    """The text equals plain sampling's in distribution only, and the rounds add up."""
    drafter = scripted(target, shape=shape, sampled=True)
    outputs = [
        generate(target, drafter, PROMPT, 30, sampling=Sampling(1.0), seed=seed)
        for seed in range(4)
    ]
    for output in outputs:
        assert_counts(output, drafter.width)
    accepted = {r.accepted for output in outputs for r in output.rounds}
    assert {0, 1, 2} <= accepted
    with pytest.raises(ValueError, match="does not keep the text"):
        assert_lossless(target, drafter, [PROMPT], 4, sampling=Sampling(1.0))


def test_assert_lossless_notices_a_different_text(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    def greedy_bonus(p: Proposal, logits: Tensor, s: Sampling, u: Tensor, g: Any) -> Kept:
        return walk(p, logits, Sampling() if len(p) else s, u, g)

    bent = replace(WALK, keep=greedy_bonus)
    monkeypatch.setattr(ScriptedDrafter, "rule", property(lambda self: bent))
    with pytest.raises(AssertionError, match=r"seed 0: token \d+ is \d+ instead of"):
        assert_lossless(target, scripted(target), [PROMPT], 30, sampling=Sampling(1.0))


def test_a_stop_token_in_the_middle_of_a_block_cuts_it(target: Target) -> None:
    text = plain(target, PROMPT, 20).tokens
    position = next(i for i in range(3, 10) if text[i] not in text[:i])
    drafter = scripted(target, shape="chain", width=12, wrong=0.0)
    output = generate(target, drafter, PROMPT, 20, stop_ids=frozenset({text[position], 63}))
    assert output.tokens == text[: position + 1]
    assert output.finish == "stop"
    assert [(r.accepted, len(r.tokens)) for r in output.rounds] == [(12, position)]


def test_the_first_token_may_be_a_stop_token(target: Target) -> None:
    first = plain(target, PROMPT, 1).tokens[0]
    output = generate(target, scripted(target), PROMPT, 20, stop_ids=frozenset({first}))
    assert (output.tokens, output.rounds, output.finish) == ((first,), (), "stop")


def test_a_budget_of_one_has_no_round(target: Target) -> None:
    output = generate(target, scripted(target), PROMPT, 1, stop_ids=NO_STOPS)
    assert (len(output.tokens), output.rounds, output.finish) == (1, (), "length")


@pytest.mark.parametrize("budget", [2, 3, 4, 12, 13, 14])
def test_a_budget_smaller_than_a_block(target: Target, budget: int) -> None:
    drafter = scripted(target, shape="chain", width=12, wrong=0.0)
    (output,) = assert_lossless(target, drafter, [PROMPT], budget)
    assert (len(output.tokens), output.finish) == (budget, "length")
    assert output.rounds[0].drafted == min(12, budget - 1)


def test_the_context_ends_the_output(target: Target) -> None:
    prompt = [i % 60 for i in range(59)]
    (output,) = assert_lossless(target, scripted(target), [prompt], 40)
    assert (len(output.tokens), output.finish) == (5, "length")
    with pytest.raises(UserError, match="64 tokens, but the context"):
        generate(target, scripted(target), [1] * 64, 4)


@pytest.mark.parametrize(
    ("tokens", "budget", "stops", "want"),
    [
        ((1, 2, 3), 5, {9}, ((1, 2, 3), None)),
        ((1, 2, 3), 3, {9}, ((1, 2, 3), "length")),
        ((1, 2, 3), 2, {9}, ((1, 2), "length")),
        ((1, 2, 3), 5, {2, 3}, ((1, 2), "stop")),
        ((1, 2, 3), 3, {3}, ((1, 2, 3), "stop")),
        ((1, 2, 3), 2, {3}, ((1, 2), "length")),
        ((9,), 1, {9}, ((9,), "stop")),
    ],
)
def test_cut(tokens: Any, budget: int, stops: set[int], want: Any) -> None:
    assert cut(tokens, budget, frozenset(stops)) == want


def test_commits_carry_the_features_of_every_committed_token_but_the_anchor(
    target: Target,
) -> None:
    taps = (0, 2)
    drafter = scripted(target, shape="tree", wrong=0.3)
    verifier = Verifier(target, Sampling(), 0, len(PROMPT), 30, drafter.width, taps)
    session = drafter.open(Request(Sampling(), 0, verifier.capacity))
    commits = [verifier.prefill(PROMPT)]
    session.commit(commits[0])
    for _ in range(6):
        commits.append(verifier.verify(session.propose(20)))
        session.commit(commits[-1])
    assert any(commit.accepted for commit in commits)
    text = [token for commit in commits for token in commit.tokens]
    rows = torch.cat([commit.features for commit in commits if commit.features is not None])
    hidden = target.model(
        torch.tensor([text[:-1]]), output_hidden_states=True, use_cache=False
    ).hidden_states
    torch.testing.assert_close(rows, torch.stack([hidden[t][0] for t in taps], dim=1))


def test_a_proposal_wider_than_the_drafters_width_is_refused(target: Target) -> None:
    verifier = Verifier(target, Sampling(), 0, len(PROMPT), 30, width=2)
    verifier.prefill(PROMPT)
    with pytest.raises(ValueError, match="3 tokens exceed the drafter's width of 2"):
        verifier.verify(Proposal.chain(torch.tensor([1, 2, 3])))


class _Undeclared(ScriptedDrafter):
    """Samples its tokens, but has a rule for one-hot tokens."""

    @property
    def rule(self) -> Rule:
        return WALK


def test_a_rule_that_ignores_distributions_refuses_them(target: Target) -> None:
    drafter = _Undeclared(target, ScriptedOptions(shape="chain", sampled=True))
    drafter.bind(target.view())
    with pytest.raises(ValueError, match="its rule `walk` ignores"):
        generate(target, drafter, PROMPT, 8, sampling=Sampling(1.0), stop_ids=NO_STOPS)


def test_a_rule_of_ones_own_needs_no_table(target: Target) -> None:
    """A drafter ships its rule; here one that keeps nothing, and says so by name."""

    def nothing(p: Proposal, logits: Tensor, s: Sampling, u: Tensor, g: Any) -> Kept:
        return Kept((), (int(logits[0].argmax()),))

    mine = Rule("keep-nothing", nothing, lossless=False, same_text=False)

    class Mine(ScriptedDrafter):
        rule = mine  # type: ignore[assignment]

    drafter = Mine(target, ScriptedOptions(shape="chain", wrong=0.0))
    drafter.bind(target.view())
    output = generate(target, drafter, PROMPT, 8, sampling=Sampling(1.0), stop_ids=NO_STOPS)
    assert {r.accepted for r in output.rounds} == {0}
    # At temperature 0 every proposal is walked, whatever the drafter's rule.
    greedy = generate(target, drafter, PROMPT, 8, stop_ids=NO_STOPS)
    assert max(r.accepted for r in greedy.rounds) > 1
