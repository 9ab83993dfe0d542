"""Samplers of masked-diffusion models: counts and orders worked by hand, laws by chi-square."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from scipy import stats
from torch import Tensor

from drafters.diffusion.sampling import (
    ORDERS,
    Candidates,
    Choice,
    MultiBlock,
    Order,
    Ranked,
    denoise,
    draw_tokens,
    even,
    independent,
    low_confidence,
    time_grid,
)
from specbench.api import Sampling, probabilities

MASK = 9
VOCABULARY = 10
GREEDY = Sampling()


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def confident(shares: list[float]) -> Callable[[Tensor], Tensor]:
    """A model whose favourite has these probabilities, slot by slot; the favourite is the number
    of slots filled so far, so that the text tells in which step a token came."""

    def predict(contents: Tensor) -> Tensor:
        favourite = int((contents != MASK).sum())
        probs = torch.empty(len(contents), VOCABULARY)
        probs[:] = (1 - torch.tensor(shares)[:, None]) / (VOCABULARY - 2)
        probs[:, favourite] = torch.tensor(shares)
        probs[:, MASK] = 0
        return probs.log()

    return predict


def fill(predict: Callable[[Tensor], Tensor], choice: Choice, length: int) -> list[list[int]]:
    """The slots of every step; the text must be full and hold what the steps say."""
    contents = torch.full((length,), MASK)
    told = contents.clone()
    steps = []
    for step in denoise(predict, contents, choice, GREEDY, generator()):
        told[step.slots] = step.tokens
        steps.append(step.slots.tolist())
    assert (contents != MASK).all()
    assert torch.equal(told, contents)
    return steps


def ranked(length: int, counts: list[int], order: Order = low_confidence) -> Ranked:
    return Ranked(torch.arange(length), counts, order, generator())


@pytest.mark.parametrize(
    ("slots", "steps", "expected"),
    [
        (6, 3, [2, 2, 2]),
        (7, 3, [3, 2, 2]),
        (8, 3, [3, 3, 2]),
        (5, 1, [5]),
        (2, 4, [1, 1, 0, 0]),
    ],
)
def test_llada_fills_as_many_every_step(slots: int, steps: int, expected: list[int]) -> None:
    assert even(slots, steps) == expected


@pytest.mark.parametrize(
    ("slots", "steps", "expected"),
    [
        # Times 1, 0.667, 0.334, 0.001, so the shares are 0.333, 0.499 and 1.
        (6, 3, [1, 2, 3]),
        # Times 1, 0.75025, 0.5005, 0.25075, 0.001: 0.24975, 0.333, 0.499 and 1.
        (4, 4, [0, 1, 1, 2]),
        (12, 4, [2, 3, 3, 4]),
        (5, 1, [5]),
    ],
)
def test_dream_fills_along_its_time_grid(slots: int, steps: int, expected: list[int]) -> None:
    assert time_grid(slots, steps) == expected


@pytest.mark.parametrize(("share", "passes"), [(1 - 0.5005, True), (0.4, False)])
def test_dreams_origin_fills_every_slot_by_its_own_chance(share: float, passes: bool) -> None:
    noise = generator(3)
    runs = [independent(4, 2, noise) for _ in range(500)]
    assert all(sum(counts) == 4 and len(counts) == 2 for counts in runs)
    seen = Counter(counts[0] for counts in runs)
    due = [500 * float(stats.binom.pmf(k, 4, share)) for k in range(5)]
    assert (stats.chisquare([seen[k] for k in range(5)], due).pvalue > 1e-3) == passes


def test_the_articles_text_with_lladas_counts() -> None:
    """`on the mat . It was`: two tokens a step, the left one of equals first."""
    steps = fill(confident([0.9, 0.8, 0.9, 0.6, 0.5, 0.5]), ranked(6, even(6, 3)), 6)
    assert steps == [[0, 2], [1, 3], [4, 5]]


def test_every_step_predicts_anew_and_nothing_is_filled_twice() -> None:
    contents = torch.full((6,), MASK)
    choice = ranked(6, even(6, 3))
    predict = confident([0.5, 0.9, 0.6, 0.8, 0.7, 0.4])
    assert len(list(denoise(predict, contents, choice, GREEDY, generator()))) == 3
    assert contents.tolist() == [4, 0, 2, 0, 2, 4]


def test_a_step_that_fills_nothing_costs_no_forward() -> None:
    predict = confident([0.5, 0.9, 0.6, 0.8])
    assert fill(predict, ranked(4, time_grid(4, 4)), 4) == [[1], [3], [0, 2]]


def test_only_the_given_slots_are_filled() -> None:
    contents = torch.full((4,), MASK)
    choice = Ranked(torch.tensor([1, 2]), [1, 1], low_confidence, generator())
    steps = list(denoise(confident([0.9, 0.5, 0.6, 0.9]), contents, choice, GREEDY, generator()))
    assert [step.slots.tolist() for step in steps] == [[2], [1]]
    assert contents.tolist() == [MASK, 1, 0, MASK]


# Three slots that the orders rank differently:
#   A  .60 .25 .15   margin .35   0.938 nats
#   B  .58 .42 .00   margin .16   0.680 nats
#   C  .55 .10 .35   margin .20   0.927 nats
# and, with the top two kept, own probabilities of .706, .580 and .611.
ABC = torch.tensor([[0.60, 0.25, 0.15], [0.58, 0.42, 0.0], [0.55, 0.10, 0.35]]).log()


@pytest.mark.parametrize(
    ("order", "sampling", "ranking"),
    [
        ("low_confidence", GREEDY, [0, 1, 2]),
        ("maskgit_plus", GREEDY, [0, 1, 2]),
        ("topk_margin", GREEDY, [0, 2, 1]),
        ("entropy", GREEDY, [1, 2, 0]),
        ("maskgit_plus", Sampling(1.0, top_k=2), [0, 2, 1]),
        ("low_confidence", Sampling(1.0, top_k=2), [0, 1, 2]),
        ("low_confidence", Sampling(0.3), [0, 1, 2]),
        # At temperature 0.3 their first are .940, .746 and .816.
        ("maskgit_plus", Sampling(0.3), [0, 2, 1]),
    ],
)
def test_orders_by_hand(order: str, sampling: Sampling, ranking: list[int]) -> None:
    candidates = Candidates(torch.arange(3), ABC, ABC.argmax(-1), sampling)
    scores = ORDERS[order][0](candidates, generator())
    assert scores.argsort(descending=True).tolist() == ranking


def leaky(candidates: Candidates, noise: torch.Generator) -> Tensor:
    """The mistake of LLaDA's issue 42: confidence read off the noisy logits."""
    gumbel = -(-torch.rand(candidates.logits.shape, generator=noise).log()).log()
    noisy = Candidates(
        candidates.slots, candidates.logits + gumbel, candidates.tokens, candidates.sampling
    )
    return low_confidence(noisy, noise)


@pytest.mark.parametrize(("order", "holds"), [(low_confidence, True), (leaky, False)])
def test_the_noise_does_not_leak_into_the_confidence(order: Order, holds: bool) -> None:
    logits = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.7, 0.3]]).log()
    kept = []
    for seed in range(100):
        tokens = draw_tokens(logits, Sampling(1.0), generator(seed))
        own = logits.exp().gather(-1, tokens[:, None])[:, 0]
        contents = torch.full((3,), MASK)
        choice = Ranked(torch.arange(3), [1, 2], order, generator(seed + 1000))
        first = next(denoise(lambda _: logits, contents, choice, Sampling(1.0), generator(seed)))
        kept.append(int(first.slots) == int(own.argmax()))
    assert all(kept) == holds


@pytest.mark.parametrize(("told", "passes"), [(0.7, True), (1.0, False)])
def test_gumbel_draws_follow_the_filtered_law(told: float, passes: bool) -> None:
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0, -4.0])
    drawn = draw_tokens(logits.expand(4000, 5), Sampling(0.7, top_k=4), generator())
    law = probabilities(logits, Sampling(told, top_k=4))
    seen = drawn.bincount(minlength=5)
    assert seen[4] == 0
    due = law[:4].double() / law[:4].double().sum() * 4000
    assert (stats.chisquare(seen[:4].numpy(), due.numpy()).pvalue > 1e-3) == passes


def test_first_hitting_reveals_one_uniformly_chosen_slot_a_step() -> None:
    order, counts = ORDERS["first_hitting"]
    assert counts(4, 2, generator()) == [1, 1, 1, 1]
    assert len(fill(confident([0.9, 0.2, 0.9, 0.2]), ranked(4, [1, 1, 1, 1], order), 4)) == 4
    candidates = Candidates(torch.arange(4), ABC[[0, 1, 2, 0]], torch.zeros(4).long(), GREEDY)
    noise = generator(5)
    firsts = Counter(int(order(candidates, noise).argmax()) for _ in range(800))
    assert stats.chisquare([firsts[i] for i in range(4)]).pvalue > 1e-3


def certain(surely: set[int], stop_at: int | None = None) -> Callable[[Tensor], Tensor]:
    """No entropy at the slots ``surely``, 2.2 nats elsewhere; token 0, 7 at the slot of a stop."""

    def predict(contents: Tensor) -> Tensor:
        logits = torch.zeros(len(contents), VOCABULARY)
        logits[:, MASK] = -torch.inf
        logits[:, 0] += 0.01
        for slot in surely:
            logits[slot] = -100.0
            logits[slot, 7 if slot == stop_at else 0] = 100.0
        return logits

    return predict


def test_multi_block_by_hand() -> None:
    """Blocks 0-1, 2-3, 4-5; one opens when half of the one before it is filled."""
    choice = MultiBlock(6, MASK, block=2, threshold=0.5, add=0.5)
    # 0 is sure. Then 2 is, and 1 is forced, since block 0 must go on. Then 4 and 5, and 3 is.
    assert fill(certain({0, 2, 4, 5}), choice, 6) == [[0], [1, 2], [3, 4, 5]]


def test_multi_block_with_late_blocks_is_one_after_the_other() -> None:
    choice = MultiBlock(5, MASK, block=2, threshold=0.5, add=1.0)
    assert fill(certain({0, 2, 4}), choice, 5) == [[0], [1], [2], [3], [4]]


def test_multi_block_admits_up_to_the_threshold() -> None:
    sure = fill(certain(set()), MultiBlock(4, MASK, block=2, threshold=math.log(9)), 4)
    assert sure == [[0, 1], [2, 3]]


def test_multi_block_stops_early_behind_a_stop_token() -> None:
    choice = MultiBlock(6, MASK, frozenset({7}), block=3, threshold=0.5, add=0.1)
    contents = torch.full((6,), MASK)
    steps = list(denoise(certain({1, 5}, stop_at=1), contents, choice, GREEDY, generator()))
    assert [step.slots.tolist() for step in steps] == [[1], [0]]
    assert contents.tolist() == [0, 7, 7, 7, 7, 7]
