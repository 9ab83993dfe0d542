"""Selecting among several drafts: the score, the walk it is, and whose law is kept."""

from __future__ import annotations

import itertools
import random
from functools import partial

import pytest
import torch
from scipy import stats
from torch import Tensor

from specbench.core.proposal import Proposal
from specbench.core.rules import (
    REJECT,
    SELECT,
    SELECT_RATIO,
    WALK,
    Keep,
    Kept,
    Rule,
    best_path,
    expected_streaks,
    reject,
    select,
    select_ratio,
    walk,
)
from specbench.core.sampling import Sampling, probabilities
from specbench.drafting.proposals import draw_candidates, merge_chains
from tests.helpers.token_laws import LENGTH, VOCABULARY, Draft, Laws, Prefix, pick, pvalue

PLAIN = Sampling(1.0)
RUNS = 400


def scored(laws: Laws, texts: list[Prefix]) -> Tensor:
    return torch.stack([laws.logits[text] for text in texts])


def marginals(laws: Laws, prefix: Prefix) -> Tensor:
    """One pass: a law for every place behind the prefix, whatever stands before it there."""
    return torch.stack([laws.q[prefix], *(laws.q[(*prefix, i)] for i in range(LENGTH - 1))])


def drawn(laws: Laws, prefix: Prefix, chance: random.Random, count: int) -> tuple[Tensor, Tensor]:
    probs = marginals(laws, prefix)
    return torch.tensor([[pick(q, chance) for q in probs] for _ in range(count)]), probs


def texts_of(prefix: Prefix, proposal: Proposal) -> list[Prefix]:
    texts = [prefix]
    for token, parent in zip(proposal.tokens.tolist(), proposal.parents.tolist(), strict=True):
        texts.append((*texts[parent + 1], token))
    return texts


def trie(
    laws: Laws, prefix: Prefix, chance: random.Random, count: int
) -> tuple[Proposal, list[Prefix]]:
    proposal = merge_chains(*drawn(laws, prefix, chance, count))
    return proposal, texts_of(prefix, proposal)


def chains(
    laws: Laws, prefix: Prefix, chance: random.Random, count: int
) -> tuple[Proposal, list[Prefix]]:
    tokens, probs = drawn(laws, prefix, chance, count)
    proposal = Proposal.chains(tokens, probs.expand(count, -1, -1))
    return proposal, texts_of(prefix, proposal)


def test_the_score_is_the_expected_accepted_length() -> None:
    """By enumeration of all that the target may say."""
    laws = Laws(PLAIN)
    every = list(itertools.product(range(VOCABULARY), repeat=LENGTH))
    proposal = merge_chains(torch.tensor(every))
    texts = texts_of((), proposal)
    scores = expected_streaks(proposal, scored(laws, texts).softmax(-1))
    for text, score in zip(texts[1:], scores.tolist(), strict=True):
        alike = {
            said: sum(said[: i + 1] == text[: i + 1] for i in range(len(text))) for said in every
        }
        due = sum(p * alike[said] for said, p in laws.joint().items())
        assert score == pytest.approx(due, abs=1e-6), text


def test_the_best_path_is_the_likeliest_streak() -> None:
    laws = Laws(PLAIN)
    for seed in range(20):
        proposal, texts = chains(laws, (), random.Random(seed), 8)
        probs = scored(laws, texts).softmax(-1)
        scores = expected_streaks(proposal, probs).view(8, LENGTH)[:, -1]
        path = best_path(proposal, probs).view(8, LENGTH)
        assert path.any(1).sum() == 1, "one of the chains"
        assert scores[path.any(1)] == scores.max()


@pytest.mark.parametrize("shape", [trie, chains])
@pytest.mark.parametrize("count", [1, 8])
def test_greedy_selection_is_the_longest_match(shape: Draft, count: int) -> None:
    laws = Laws(Sampling())
    for seed in range(20):
        proposal, texts = shape(laws, (), random.Random(seed), count)  # type: ignore[call-arg]
        logits = scored(laws, texts)
        got = select(proposal, logits, Sampling(), torch.rand(LENGTH + 1))
        assert got == walk(proposal, logits, Sampling(), torch.rand(LENGTH + 1))


def test_selection_says_what_walk_says_and_keeps_no_more() -> None:
    laws, shorter = Laws(PLAIN), 0
    for seed in range(60):
        proposal, texts = trie(laws, (), random.Random(seed), 4)
        uniforms = torch.rand(LENGTH + 1, generator=torch.Generator().manual_seed(seed))
        logits = scored(laws, texts)
        chosen = select(proposal, logits, PLAIN, uniforms)
        walked = walk(proposal, logits, PLAIN, uniforms)
        assert chosen.tokens == walked.tokens[: len(chosen.tokens)]
        shorter += len(chosen.tokens) < len(walked.tokens)
    assert shorter, "there was nothing to choose"


def draws_again(
    proposal: Proposal,
    logits: Tensor,
    sampling: Sampling,
    uniforms: Tensor,
    generator: torch.Generator,
) -> Kept:
    """A broken `select`: what is emitted at a refusal may be the refused token."""
    kept = select(proposal, logits, sampling, uniforms)
    row = kept.path[-1] + 1 if kept.path else 0
    again = torch.multinomial(probabilities(logits[row], sampling), 1, generator=generator)
    return Kept(kept.path, (*kept.tokens[:-1], int(again)))


FILTERED = Sampling(0.6, top_k=2)
EXACT = [(select, trie, 1, PLAIN), (select, trie, 8, PLAIN), (select, trie, 8, FILTERED)]
EXACT += [(reject, chains, 8, PLAIN), (reject, chains, 8, FILTERED)]


@pytest.mark.parametrize(("rule", "shape", "count", "sampling"), EXACT)
def test_the_target_s_law_is_kept(rule: Keep, shape: Draft, count: int, sampling: Sampling) -> None:
    assert pvalue(partial(shape, count=count), sampling, rule, RUNS) > 1e-3


@pytest.mark.parametrize("rule", [select_ratio, draws_again])
def test_the_same_test_fails(rule: Keep) -> None:
    """For the ratio rule on a chosen chain, and for a draw that forgets what was refused."""
    assert pvalue(partial(trie, count=8), PLAIN, rule, 2 * RUNS) < 1e-9


@pytest.mark.parametrize("merged", [False, True])
def test_rejection_must_see_every_draw(merged: bool) -> None:
    q, p = torch.tensor([[0.8, 0.15, 0.05]]), torch.tensor([0.1, 0.3, 0.6])
    generator = torch.Generator().manual_seed(3)
    said = []
    for _ in range(400):
        tokens = draw_candidates(q, 4, generator)
        shape = merge_chains(tokens, q) if merged else Proposal.chains(tokens, q.expand(4, 1, 3))
        logits = p.log().expand(len(shape) + 1, 3)
        said.append(reject(shape, logits, PLAIN, torch.empty(0), generator).tokens[0])
    found = stats.chisquare(
        torch.tensor(said).bincount(minlength=3), 400 * p.double() / p.double().sum()
    )
    assert found.pvalue < 1e-9 if merged else found.pvalue > 1e-3


def test_rejection_follows_equal_prefixes() -> None:
    """The second chain begins like the first: its second token is tried too."""
    proposal = Proposal.chains(torch.tensor([[1, 2], [1, 3]]))
    logits = torch.eye(4)[[1, 3, 0, 3, 0]].log()
    kept = reject(proposal, logits, PLAIN, torch.empty(0), torch.Generator().manual_seed(0))
    assert kept == Kept((2, 3), (1, 3, 0))


def test_only_the_ratio_rule_on_a_chosen_chain_is_marked_lossy() -> None:
    rules = (WALK, REJECT, SELECT, SELECT_RATIO)
    assert [rule.name for rule in rules if not rule.lossless] == ["select-ratio"]
    assert [rule.name for rule in rules if rule.same_text] == ["walk", "select"]


def test_a_rule_must_say_whether_it_is_lossless() -> None:
    with pytest.raises(TypeError, match="lossless"):
        Rule("mine", walk)  # type: ignore[call-arg]


def test_one_chain_is_not_selected() -> None:
    proposal, texts = trie(Laws(PLAIN), (), random.Random(0), 1)
    logits = scored(Laws(PLAIN), texts)
    one, two = (torch.Generator().manual_seed(1) for _ in range(2))
    uniforms = torch.rand(LENGTH + 1)
    want = reject(proposal, logits, PLAIN, uniforms, one)
    assert select_ratio(proposal, logits, PLAIN, uniforms, two) == want


def test_the_ratio_rule_asks_for_distributions() -> None:
    with pytest.raises(ValueError, match="drawn from"):
        select_ratio(
            Proposal.chains(torch.tensor([[1], [2]])),
            torch.zeros(3, VOCABULARY),
            PLAIN,
            torch.rand(2),
            torch.Generator(),
        )
