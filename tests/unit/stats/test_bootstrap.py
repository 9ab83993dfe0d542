"""Intervals hold the truth about as often as they say, and the advice follows from their width."""

import numpy as np
import pytest
import scipy.stats
from numpy.typing import NDArray

from specbench.stats import metrics
from specbench.stats.bootstrap import Estimate, prompts_for, prompts_to_decide, shared
from specbench.stats.metrics import Answers

Array = NDArray[np.float64]
POPULATION = 200_000


def population(rng: np.random.Generator, skew: float) -> dict[str, Array]:
    """Prompts as real ones differ: lengths lognormal, AAL by prompt, seconds with noise.

    ``skew`` is the standard deviation of the log of a prompt's AAL above 1.
    """
    tokens = np.exp(rng.normal(5, 0.7, POPULATION)).clip(8, 1024).round()

    def rounds(level: float) -> Array:
        aal = 1 + level * np.exp(rng.normal(0, skew, POPULATION))
        return np.maximum(1, (tokens / aal).round())

    def noise(width: float) -> Array:
        return np.exp(rng.normal(0, width, POPULATION))

    first, second = rounds(2.0), rounds(1.6)
    return {
        "tokens": tokens,
        "baseline": 0.03 * tokens * noise(0.05),
        "first_rounds": first,
        "first": 0.04 * first * noise(0.08),
        "second_rounds": second,
        "second": 0.04 * second * noise(0.08),
    }


def answers(drawn: dict[str, Array], seconds: str, rounds: str | None = None) -> Answers:
    """The drawn prompts as counted answers of one arm."""
    n = len(drawn["tokens"])
    none = np.zeros(n)
    return Answers(
        keys=tuple((f"{i:03}", 0) for i in range(n)),
        emitted=drawn["tokens"],
        rounds=drawn[rounds or "tokens"],
        output=drawn["tokens"] + 1,
        prefill=none,
        decode=drawn[seconds],
        repeated=none,
        grams=drawn["tokens"],
        cut=none,
        reached=drawn[rounds or "tokens"][:, None],
        lengths=none[:, None],
    )


def figures(drawn: dict[str, Array]) -> dict[str, Estimate]:
    """The figures under test on some prompts."""
    base = answers(drawn, "baseline")
    first = answers(drawn, "first", "first_rounds")
    second = answers(drawn, "second", "second_rounds")
    compared = metrics.compare(first, second)
    return {
        "AAL": metrics.pooled_aal(first),
        "macro AAL": metrics.macro_aal(first),
        "speedup": metrics.speedup(base, first),
        "speed ratio": compared.speed,
        "AAL ratio": compared.aal_ratio,
        "AAL difference": compared.aal_difference,
    }


def truth(people: dict[str, Array]) -> dict[str, float]:
    """The same over the whole population, without the code under test."""
    total = {name: values.sum() for name, values in people.items()}
    first = total["tokens"] / total["first_rounds"]
    second = total["tokens"] / total["second_rounds"]
    return {
        "AAL": first,
        "macro AAL": (people["tokens"] / people["first_rounds"]).mean(),
        "speedup": total["baseline"] / total["first"],
        "speed ratio": total["second"] / total["first"],
        "AAL ratio": first / second,
        "AAL difference": first - second,
    }


def coverage(n: int, skew: float, repeats: int) -> dict[str, float]:
    """How often each interval held the truth."""
    rng = np.random.default_rng(n)
    people = population(rng, skew)
    known, hits = truth(people), dict.fromkeys(truth(people), 0)
    for _ in range(repeats):
        chosen = rng.integers(POPULATION, size=n)
        for name, estimate in figures({k: v[chosen] for k, v in people.items()}).items():
            assert estimate.interval is not None
            hits[name] += estimate.interval[0] <= known[name] <= estimate.interval[1]
    return {name: count / repeats for name, count in hits.items()}


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    found = coverage(32, 0.4, repeats=200)
    assert all(0.90 <= share <= 0.98 for share in found.values()), found


@pytest.mark.slow
@pytest.mark.parametrize("n", [32, 64])
@pytest.mark.parametrize("skew", [0.3, 0.6])
def test_intervals_hold_the_truth_at_the_sizes_in_use(n: int, skew: float) -> None:
    found = coverage(n, skew, repeats=1000)
    print(n, skew, found)
    assert all(0.90 <= share <= 0.98 for share in found.values()), found


def test_the_advised_prompts_bring_the_interval_to_the_asked_width() -> None:
    rng = np.random.default_rng(0)
    people = population(rng, 0.4)

    def at(n: int) -> Estimate:
        chosen = rng.integers(POPULATION, size=n)
        return figures({k: v[chosen] for k, v in people.items()})["speedup"]

    advised = prompts_for(at(64), 0.05)
    assert advised is not None
    estimate = at(advised)
    assert estimate.interval is not None
    assert estimate.value is not None
    half = (estimate.interval[1] - estimate.interval[0]) / 2 / estimate.value
    assert half == pytest.approx(0.05, rel=0.25)


@pytest.mark.parametrize(
    ("value", "interval", "prompts"),
    [
        (1.2, (1.1, 1.3), 20),  # told apart already
        (0.8, (0.7, 0.9), 20),
        (1.25, (0.75, 1.75), 80),  # twice as near: four times the prompts
        (0.75, (0.25, 1.25), 80),
        (1.1, (1.0, 1.3), 21),  # 1 itself is not left
        (1.0, (0.9, 1.1), None),
        (1.1, None, None),
        (None, None, None),
    ],
)
def test_how_many_prompts_would_tell_two_drafters_apart(
    value: float | None, interval: tuple[float, float] | None, prompts: int | None
) -> None:
    assert prompts_to_decide(Estimate(value, interval, 20)) == prompts


@pytest.mark.parametrize(("n", "figures"), [(16, 7), (64, 30), (64, 60)])
def test_figures_that_share_their_doubt_have_intervals_as_wide_as_student_says(
    n: int, figures: int
) -> None:
    alone = Estimate(0.9, (0.9 / 1.1, 0.9 * 1.2), n)
    student = scipy.stats.t(n - 1)
    wider = student.ppf(1 - 0.025 / figures) / student.ppf(0.975)
    expected = (0.9 / 1.1**wider, 0.9 * 1.2**wider)
    assert shared(alone, figures).interval == pytest.approx(expected, rel=5e-3)
    assert shared(alone, 1).interval == pytest.approx(alone.interval)
    assert shared(Estimate(0.9, None, 1), figures) == Estimate(0.9, None, 1)


def test_without_an_interval_no_number_of_prompts_is_advised() -> None:
    assert prompts_for(Estimate(2.0, None, 1), 0.05) is None
    assert prompts_for(Estimate(None, None, 0), 0.05) is None
    assert prompts_for(Estimate(2.0, (1.6, 2.4), 10), 0.05) == 160
