"""Figures against numbers worked by hand."""

import math
import random
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.records.jsonl import to_line
from specbench.records.records import SAMPLES, Sample, load_samples
from specbench.stats import metrics
from specbench.stats.bootstrap import estimates


def answer(
    sample: str,
    emitted: list[int],
    seconds: float = 1.0,
    *,
    turn: int = 0,
    prefill: float = 0.5,
    finish: str = "stop",
    output: tuple[int, ...] | None = None,
) -> Sample:
    """An ok answer whose rounds emitted these tokens, each with one bonus."""
    return Sample(
        "cell",
        sample,
        turn,
        "ok",
        output=output or tuple(range(sum(emitted) + 1)),
        finish=finish,
        rounds=tuple((7, n - 1, n) for n in emitted),
        prefill_seconds=prefill,
        decode_seconds=seconds,
    )


def failed(sample: str) -> Sample:
    return Sample("cell", sample, 0, "error", error="RuntimeError: out of memory")


def test_aal_pooled_is_over_rounds_and_macro_over_answers() -> None:
    samples = [answer("a", [4, 4]), answer("b", [1, 1, 1, 1]), answer("c", [])]
    assert metrics.pooled_aal(samples).value == pytest.approx(12 / 6)
    assert metrics.macro_aal(samples).value == pytest.approx((4 + 1) / 2)


def test_macro_aal_weighs_each_turn_as_an_answer() -> None:
    samples = [answer("a", [3]), answer("a", [5], turn=1), answer("b", [1])]
    assert metrics.macro_aal(samples).value == pytest.approx(3.0)


def test_acceptance_by_depth() -> None:
    samples = [answer("a", [1, 2, 4]), answer("b", [3])]  # kept depths 0, 1, 3 and 2
    shares = [e.value for e in metrics.acceptance(samples)]
    given = [e.value for e in metrics.conditional_acceptance(samples)]
    assert shares == pytest.approx([3 / 4, 2 / 4, 1 / 4])
    assert given == pytest.approx([3 / 4, 2 / 3, 1 / 2])
    assert metrics.emitted_histogram(samples) == {1: 1, 2: 1, 3: 1, 4: 1}


def test_acceptance_counts_the_kept_path_and_not_what_was_emitted() -> None:
    cut = replace(answer("a", [2]), rounds=((7, 5, 2),))
    assert len(metrics.acceptance([cut])) == 5


def test_tokens_per_second_excludes_prefill_and_its_token() -> None:
    samples = [answer("a", [4, 4], 2.0, prefill=9.0), answer("b", [2], 3.0)]
    assert metrics.tokens_per_second(samples).value == pytest.approx(10 / 5)


def test_speedup_is_a_ratio_of_sums_and_not_a_mean_of_rates() -> None:
    baseline = [answer("a", [1] * 10, 10.0), answer("b", [1] * 90, 90.0)]
    drafter = [answer("a", [2] * 5, 1.0), answer("b", [2] * 45, 45.0)]
    mean_of_rates = (10 / 1 + 90 / 45) / 2
    assert mean_of_rates == 6
    assert metrics.speedup(baseline, drafter).value == pytest.approx(100 / 46)


def test_speedup_divides_each_arm_by_its_own_tokens() -> None:
    baseline = [answer("a", [1] * 10, 10.0)]
    drafter = [answer("a", [2] * 10, 10.0)]  # a lossy rule may write more
    assert metrics.speedup(baseline, drafter).value == pytest.approx(2.0)


def test_end_to_end_speedup_counts_the_prefill_and_its_token() -> None:
    baseline = [answer("a", [1] * 9, 9.0, prefill=1.0)]
    drafter = [answer("a", [3] * 3, 3.0, prefill=2.0)]
    assert metrics.speedup(baseline, drafter).value == pytest.approx(3.0)
    assert metrics.end_to_end_speedup(baseline, drafter).value == pytest.approx(2.0)


def test_speedup_uses_only_the_answers_both_arms_have() -> None:
    baseline = [answer("a", [1], 4.0), answer("b", [1], 100.0), failed("c"), answer("d", [1])]
    drafter = [answer("a", [1], 2.0), failed("b"), answer("c", [1], 50.0)]
    drafter.append(answer("d", [1], 50.0, turn=1))
    estimate = metrics.speedup(baseline, drafter)
    assert estimate.value == pytest.approx(2.0)
    assert estimate.n == 1


def test_speedup_interval_draws_both_arms_together() -> None:
    seconds = [1.0, 5.0, 30.0, 200.0]
    baseline = [answer(str(i), [1] * 10, s) for i, s in enumerate(seconds)]
    drafter = [answer(str(i), [1] * 10, s / 2) for i, s in enumerate(seconds)]
    assert metrics.speedup(baseline, drafter).interval == pytest.approx((2.0, 2.0))


def test_a_prompt_is_drawn_with_all_its_turns() -> None:
    samples = [s for p in "abcd" for s in (answer(p, [1]), answer(p, [5], turn=1))]
    assert metrics.pooled_aal(samples) == metrics.Estimate(3.0, (3.0, 3.0), 4)


def test_repeated_4grams() -> None:
    loop = answer("a", [1] * 7, output=(1, 2, 1, 2, 1, 2, 1, 2))  # 5 of which 2 are new
    fresh = answer("b", [1] * 7)
    short = answer("c", [1])
    assert metrics.repetition([loop, fresh, short]).value == pytest.approx(3 / 10)
    assert metrics.repetition([short]).value is None


def test_cut_at_budget() -> None:
    samples = [answer("a", [1], finish="length"), answer("b", [1]), failed("c")]
    assert metrics.cut_at_budget(samples).value == pytest.approx(1 / 2)


@pytest.mark.parametrize(
    "samples",
    [[], [failed("a"), failed("b")], [answer("a", [])]],
    ids=["nothing", "all failed", "no rounds"],
)
def test_what_cannot_be_computed_is_none(samples: list[Sample]) -> None:
    assert metrics.pooled_aal(samples).value is None
    assert metrics.macro_aal(samples).value is None
    assert metrics.speedup(samples, samples).value is None
    assert metrics.speedup([], [answer("a", [2])]).value is None
    assert metrics.acceptance(samples) == ()
    assert metrics.emitted_histogram(samples) == {}
    assert metrics.pooled_aal(samples).interval is None


def test_untimed_answers_have_no_speed() -> None:
    untimed = [replace(answer("a", [2]), decode_seconds=None, prefill_seconds=None)]
    assert metrics.tokens_per_second(untimed).value is None
    assert metrics.speedup(untimed, untimed).value is None
    assert metrics.pooled_aal(untimed).value == 2


def test_one_prompt_has_no_interval() -> None:
    samples = [answer("a", [2, 4]), answer("a", [6], turn=1)]
    assert metrics.pooled_aal(samples) == metrics.Estimate(4.0, None, 1)


def test_the_interval_is_the_same_every_time_and_moves_with_the_seed() -> None:
    samples = [answer(f"{i:02}", [1 + i % 5] * (3 + 7 * i % 11)) for i in range(20)]
    assert metrics.pooled_aal(samples) == metrics.pooled_aal(samples)
    sums = np.array([[s.emitted, len(s.rounds)] for s in samples], dtype=float)
    same, other = (
        estimates(sums, lambda total: total[..., :1] / total[..., 1:], seed)[0] for seed in (0, 1)
    )
    assert same == metrics.pooled_aal(samples)
    assert other.interval != same.interval


def test_the_interval_is_wider_than_the_plain_percentiles_by_student() -> None:
    samples = [answer(str(i), [1 + i % 5] * (3 + 7 * i % 11)) for i in range(8)]
    sums = np.array([[s.emitted, len(s.rounds)] for s in samples], dtype=float)
    drawn = np.random.default_rng(0).integers(8, size=(2000, 8))
    totals = sums[drawn].sum(1)
    tail = scipy.stats.norm.cdf(-math.sqrt(8 / 7) * scipy.stats.t.ppf(0.975, 7))
    figures = totals[:, 0] / totals[:, 1]
    interval = metrics.pooled_aal(samples).interval
    assert interval == pytest.approx(np.quantile(figures, [tail, 1 - tail]), rel=2e-3)
    assert interval != pytest.approx(np.quantile(figures, [0.025, 0.975]), rel=2e-2)


LOOP = (1, 2, 3, 4) * 5  # 17 4-grams, of which 13 stood before


def test_an_answer_loops_when_most_of_its_4grams_repeat() -> None:
    loop, proper = answer("a", [19], output=LOOP), answer("b", [3, 3])
    assert metrics.looping([loop, proper]).value == pytest.approx(1 / 2)
    without = metrics.aal_without_loops([loop, proper])
    assert (without.value, without.n) == (3.0, 1)
    assert metrics.aal_without_loops([loop]).value is None
    assert metrics.looping([failed("a")]).value is None


def test_exactly_half_is_no_loop() -> None:
    half = answer("a", [5], output=(1, 1, 1, 1, 1, 2))  # three 4-grams, one repeated
    more = answer("a", [6], output=(1, 1, 1, 1, 1, 1, 2))  # four, two repeated
    assert metrics.looping([half]).value == 0
    assert metrics.looping([more]).value == 0


def test_loops_dominate_by_tokens_and_not_by_answers() -> None:
    loop = answer("a", [19], output=LOOP)
    assert metrics.dominated_by_loops([loop, answer("b", [9]), answer("c", [9])])
    assert not metrics.dominated_by_loops([loop, answer("b", [19])])
    assert not metrics.dominated_by_loops([])


def test_two_drafters_are_compared_on_the_answers_both_have() -> None:
    first = [answer("a", [4, 4], 2.0), answer("b", [2], 9.0), answer("c", [3], 1.0)]
    second = [answer("a", [2, 2, 2, 2], 6.0), failed("b"), answer("d", [9])]
    found = metrics.compare(first, second)
    assert found.speed.value == pytest.approx(3.0)
    assert found.aal_ratio.value == pytest.approx(2.0)
    assert found.aal_difference.value == pytest.approx(2.0)
    assert {e.n for e in (found.speed, found.aal_ratio, found.aal_difference)} == {1}


def test_a_comparison_draws_a_prompt_with_both_drafters() -> None:
    lengths = [[1] * 8, [2] * 20, [4] * 3, [7]]
    first = [answer(str(i), e, 3.0 * (i + 1) ** 2) for i, e in enumerate(lengths)]
    second = [replace(s, decode_seconds=2 * (s.decode_seconds or 0)) for s in first]
    found = metrics.compare(first, second)
    assert found.speed.interval == pytest.approx((2.0, 2.0))
    assert found.aal_ratio.interval == pytest.approx((1.0, 1.0))
    assert found.aal_difference.interval == pytest.approx((0.0, 0.0))


def test_drafters_without_a_common_answer_are_not_compared() -> None:
    found = metrics.compare([answer("a", [2])], [answer("b", [2])])
    assert (found.speed.value, found.aal_ratio.value, found.aal_difference.value) == (None,) * 3


def test_answers_counted_once_give_the_same_figures() -> None:
    samples = [answer("a", [1, 4]), answer("a", [2], turn=1), answer("b", [3, 3]), failed("c")]
    counted = metrics.Answers.of(samples)
    for figure in (
        metrics.pooled_aal, metrics.macro_aal, metrics.acceptance,
        metrics.looping, metrics.emitted_histogram, metrics.cut_at_budget,
    ):  # fmt: skip
        assert figure(counted) == figure(samples)


answers = st.lists(
    st.tuples(
        st.sampled_from("abcd"),
        st.integers(0, 1),
        st.lists(st.integers(1, 8), max_size=6),
        st.floats(0.01, 10),
    ),
    max_size=8,
    unique_by=lambda row: row[:2],
)


@settings(max_examples=40, deadline=None)
@given(answers, st.randoms(use_true_random=False))
def test_order_changes_nothing(
    rows: list[tuple[str, int, list[int], float]], rng: random.Random
) -> None:
    samples = [answer(p, emitted, s, turn=turn) for p, turn, emitted, s in rows]
    baseline = [replace(s, decode_seconds=1.7 * (i + 1)) for i, s in enumerate(samples)]
    shuffled, other = samples[:], baseline[:]
    rng.shuffle(shuffled)
    rng.shuffle(other)
    assert metrics.speedup(other, shuffled) == metrics.speedup(baseline, samples)
    for figure in (
        metrics.pooled_aal,
        metrics.macro_aal,
        metrics.tokens_per_second,
        metrics.acceptance,
        metrics.repetition,
    ):
        assert figure(shuffled) == figure(samples)


@settings(max_examples=40, deadline=None)
@given(answers)
def test_records_keep_the_identity_that_the_figures_rest_on(
    rows: list[tuple[str, int, list[int], float]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lines = [to_line(answer(p, emitted, s, turn=turn)) for p, turn, emitted, s in rows]
        (Path(folder) / SAMPLES).write_text("".join(lines))
        read = list(load_samples(Path(folder)))
    assert len(read) == len(rows)
    for stored in read:
        assert stored.emitted + 1 == len(stored.output)
        histogram = metrics.emitted_histogram([stored])
        assert sum(k * n for k, n in histogram.items()) + 1 == len(stored.output)
