"""Selection among several chains: scores, equality with `walk`, and the kept distribution."""

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
from tests.helpers.token_distributions import (
    LENGTH,
    VOCABULARY,
    Distributions,
    Draft,
    Prefix,
    pick,
    pvalue,
)

PLAIN = Sampling(1.0)
RUNS = 400


def scored(model: Distributions, texts: list[Prefix]) -> Tensor:
    return torch.stack([model.logits[text] for text in texts])


def marginals(model: Distributions, prefix: Prefix) -> Tensor:
    """Return a distribution per position after the prefix, independent of the drafted tokens."""
    return torch.stack([model.q[prefix], *(model.q[(*prefix, i)] for i in range(LENGTH - 1))])


def drawn(
    model: Distributions, prefix: Prefix, chance: random.Random, count: int
) -> tuple[Tensor, Tensor]:
    probs = marginals(model, prefix)
    return torch.tensor([[pick(q, chance) for q in probs] for _ in range(count)]), probs


def texts_of(prefix: Prefix, proposal: Proposal) -> list[Prefix]:
    texts = [prefix]
    for token, parent in zip(proposal.tokens.tolist(), proposal.parents.tolist(), strict=True):
        texts.append((*texts[parent + 1], token))
    return texts


def trie(
    model: Distributions, prefix: Prefix, chance: random.Random, count: int
) -> tuple[Proposal, list[Prefix]]:
    proposal = merge_chains(*drawn(model, prefix, chance, count))
    return proposal, texts_of(prefix, proposal)


def chains(
    model: Distributions, prefix: Prefix, chance: random.Random, count: int
) -> tuple[Proposal, list[Prefix]]:
    tokens, probs = drawn(model, prefix, chance, count)
    proposal = Proposal.chains(tokens, probs.expand(count, -1, -1))
    return proposal, texts_of(prefix, proposal)


def test_the_score_is_the_expected_accepted_length() -> None:
    """Enumerate all texts of the target and compare."""
    model = Distributions(PLAIN)
    every = list(itertools.product(range(VOCABULARY), repeat=LENGTH))
    proposal = merge_chains(torch.tensor(every))
    texts = texts_of((), proposal)
    scores = expected_streaks(proposal, scored(model, texts).softmax(-1))
    for text, score in zip(texts[1:], scores.tolist(), strict=True):
        accepted = {
            answer: sum(answer[: i + 1] == text[: i + 1] for i in range(len(text)))
            for answer in every
        }
        expected = sum(p * accepted[answer] for answer, p in model.joint().items())
        assert score == pytest.approx(expected, abs=1e-6), text


def test_the_best_path_has_the_largest_expected_streak() -> None:
    model = Distributions(PLAIN)
    for seed in range(20):
        proposal, texts = chains(model, (), random.Random(seed), 8)
        probs = scored(model, texts).softmax(-1)
        scores = expected_streaks(proposal, probs).view(8, LENGTH)[:, -1]
        path = best_path(proposal, probs).view(8, LENGTH)
        assert path.any(1).sum() == 1, "one of the chains"
        assert scores[path.any(1)] == scores.max()


@pytest.mark.parametrize("shape", [trie, chains])
@pytest.mark.parametrize("count", [1, 8])
def test_greedy_selection_is_the_longest_match(shape: Draft, count: int) -> None:
    model = Distributions(Sampling())
    for seed in range(20):
        proposal, texts = shape(model, (), random.Random(seed), count)  # type: ignore[call-arg]
        logits = scored(model, texts)
        got = select(proposal, logits, Sampling(), torch.rand(LENGTH + 1))
        assert got == walk(proposal, logits, Sampling(), torch.rand(LENGTH + 1))


def test_selection_keeps_a_prefix_of_what_walk_keeps() -> None:
    model, shorter = Distributions(PLAIN), 0
    for seed in range(60):
        proposal, texts = trie(model, (), random.Random(seed), 4)
        uniforms = torch.rand(LENGTH + 1, generator=torch.Generator().manual_seed(seed))
        logits = scored(model, texts)
        chosen = select(proposal, logits, PLAIN, uniforms)
        walked = walk(proposal, logits, PLAIN, uniforms)
        assert chosen.tokens == walked.tokens[: len(chosen.tokens)]
        shorter += len(chosen.tokens) < len(walked.tokens)
    assert shorter, "selection never kept less than walk"


def draws_again(
    proposal: Proposal,
    logits: Tensor,
    sampling: Sampling,
    uniforms: Tensor,
    generator: torch.Generator,
) -> Kept:
    """Apply a faulty `select`: the bonus after a refusal may be the refused token."""
    kept = select(proposal, logits, sampling, uniforms)
    row = kept.path[-1] + 1 if kept.path else 0
    again = torch.multinomial(probabilities(logits[row], sampling), 1, generator=generator)
    return Kept(kept.path, (*kept.tokens[:-1], int(again)))


FILTERED = Sampling(0.6, top_k=2)
EXACT = [(select, trie, 1, PLAIN), (select, trie, 8, PLAIN), (select, trie, 8, FILTERED)]
EXACT += [(reject, chains, 8, PLAIN), (reject, chains, 8, FILTERED)]


@pytest.mark.parametrize(("rule", "shape", "count", "sampling"), EXACT)
def test_the_targets_distribution_is_kept(
    rule: Keep, shape: Draft, count: int, sampling: Sampling
) -> None:
    assert pvalue(partial(shape, count=count), sampling, rule, RUNS) > 1e-3


@pytest.mark.parametrize("rule", [select_ratio, draws_again])
def test_the_same_test_fails(rule: Keep) -> None:
    """The ratio rule on a selected chain fails, and so does a draw that ignores the refusal."""
    assert pvalue(partial(trie, count=8), PLAIN, rule, 2 * RUNS) < 1e-9


@pytest.mark.parametrize("merged", [False, True])
def test_rejection_must_see_every_draw(merged: bool) -> None:
    q, p = torch.tensor([[0.8, 0.15, 0.05]]), torch.tensor([0.1, 0.3, 0.6])
    generator = torch.Generator().manual_seed(3)
    emitted = []
    for _ in range(400):
        tokens = draw_candidates(q, 4, generator)
        shape = merge_chains(tokens, q) if merged else Proposal.chains(tokens, q.expand(4, 1, 3))
        logits = p.log().expand(len(shape) + 1, 3)
        emitted.append(reject(shape, logits, PLAIN, torch.empty(0), generator).tokens[0])
    test = stats.chisquare(
        torch.tensor(emitted).bincount(minlength=3), 400 * p.double() / p.double().sum()
    )
    assert test.pvalue < 1e-9 if merged else test.pvalue > 1e-3


def test_rejection_follows_equal_prefixes() -> None:
    """Both chains begin with the same token, so the second token of each is tried."""
    proposal = Proposal.chains(torch.tensor([[1, 2], [1, 3]]))
    logits = torch.eye(4)[[1, 3, 0, 3, 0]].log()
    kept = reject(proposal, logits, PLAIN, torch.empty(0), torch.Generator().manual_seed(0))
    assert kept == Kept((2, 3), (1, 3, 0))


def test_only_the_ratio_rule_is_marked_lossy() -> None:
    rules = (WALK, REJECT, SELECT, SELECT_RATIO)
    assert [rule.name for rule in rules if not rule.lossless] == ["select-ratio"]
    assert [rule.name for rule in rules if rule.same_text] == ["walk", "select"]


def test_a_rule_must_say_whether_it_is_lossless() -> None:
    with pytest.raises(TypeError, match="lossless"):
        Rule("mine", walk)  # type: ignore[call-arg]


def test_one_chain_is_verified_by_reject() -> None:
    proposal, texts = trie(Distributions(PLAIN), (), random.Random(0), 1)
    logits = scored(Distributions(PLAIN), texts)
    first, second = (torch.Generator().manual_seed(1) for _ in range(2))
    uniforms = torch.rand(LENGTH + 1)
    want = reject(proposal, logits, PLAIN, uniforms, first)
    assert select_ratio(proposal, logits, PLAIN, uniforms, second) == want


def test_the_ratio_rule_requires_distributions() -> None:
    with pytest.raises(ValueError, match="drawn from"):
        select_ratio(
            Proposal.chains(torch.tensor([[1], [2]])),
            torch.zeros(3, VOCABULARY),
            PLAIN,
            torch.rand(2),
            torch.Generator(),
        )
