"""The cost model, and how the best depth is told apart from the others."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from specbench.stats import costs, metrics
from specbench.stats.bootstrap import Estimate, shared
from specbench.stats.costs import Depth, Tuned, Tuning, VerifyCost
from tests.helpers.run_records import BASELINE, LOOKUP, answer


def depth(k: int, speed: float | None, over_best: Estimate | None = None) -> Depth:
    known = Estimate(2.0, None, 1)
    interval = None if speed is None else (speed - 0.1, speed + 0.1)
    return Depth(k, k + 1, known, 1, 1, 1, 1, Estimate(speed, interval, 20), over_best)


def test_the_model_reads_the_curve_between_its_points() -> None:
    curve = [VerifyCost(rows, 8, float(rows), 0, 0, 1) for rows in (1, 4, 8)]
    assert costs.interpolated(curve, 6) == 6
    assert costs.interpolated(curve, 100) == 8


def test_the_formula() -> None:
    """Two tokens per round and 1 s per plain token: 2 * 1000 / (500 + 2000) ms."""
    baseline = [answer(BASELINE, s, 2, 2.0) for s in "pq"]
    samples = [answer(LOOKUP, s, 2, 1.0) for s in "pq"]
    curve = [VerifyCost(rows, 8, 1000.0 * (rows - 1), 0, 0, 1) for rows in (1, 8)]
    found = costs.modelled(2, curve, 500.0, baseline, samples)
    assert (found.rows, found.verify) == (3.0, pytest.approx(2000.0))
    assert found.model == pytest.approx(2 * 1000 / 2500)
    assert found.break_even == pytest.approx(2.5)
    assert found.measured.value == pytest.approx(2.0)


def test_the_best_is_the_fastest_that_is_known() -> None:
    tuned = Tuned("x", {}, (depth(1, 1.2), depth(2, 1.5), depth(4, None)))
    assert tuned.best is not None
    assert tuned.best.depth == 2
    nothing = Tuned("x", {}, (depth(1, None),))
    assert (nothing.best, nothing.best_speedup, nothing.undecided) == (None, None, [])


def test_the_interval_of_the_best_is_corrected_for_the_choice() -> None:
    tuned = Tuned("x", {}, (depth(1, 1.2), depth(2, 1.5), depth(4, 1.3)))
    assert tuned.best is not None
    assert tuned.best_speedup == shared(tuned.best.measured, 3)
    alone = Tuned("x", {}, (depth(2, 1.5),))
    assert alone.best_speedup is not None
    assert alone.best_speedup.interval == pytest.approx((1.4, 1.6))


def test_a_depth_is_told_apart_only_beyond_all_pairs() -> None:
    clear, near = Estimate(0.7, (0.65, 0.75), 20), Estimate(0.9, (0.82, 0.985), 20)
    slower = Tuned("x", {}, (depth(1, 1.2, near), depth(2, 1.5)))
    assert slower.undecided == []
    among = Tuned("x", {}, (depth(1, 1.2, near), depth(2, 1.5), depth(4, 1.0, clear)))
    assert among.undecided == [1]
    few = Tuned("x", {}, (depth(1, 1.2, replace(clear, n=8)), depth(2, 1.5)))
    assert few.undecided == [1]
    unknown = Tuned("x", {}, (depth(1, 1.2), depth(2, 1.5)))
    assert unknown.undecided == [1]


def test_the_best_of_equal_depths_is_rarely_told_apart_from_any() -> None:
    """Six depths of the same speed: the interval of one pair misleads often, the corrected not."""
    rng = np.random.default_rng(0)
    repeats, corrected, plain = 60, 0, 0
    for _ in range(repeats):
        arms = [
            [answer(LOOKUP, f"p{i}", 4, float(np.exp(0.1 * rng.standard_normal())))
             for i in range(24)]
            for _ in range(6)
        ]  # fmt: skip
        base = [answer(BASELINE, f"p{i}", 4, 1.0) for i in range(24)]
        speeds = [metrics.speedup(base, arm) for arm in arms]
        best = max(range(6), key=lambda k: speeds[k].value or 0)
        over = [metrics.speedup_change(base, arm, base, arms[best]).ratio for arm in arms]
        depths = [
            replace(depth(k, None, None if k == best else over[k]), measured=speeds[k])
            for k in range(6)
        ]
        corrected += len(Tuned("x", {}, tuple(depths)).undecided) < 5
        plain += any(e.interval and e.interval[1] < 1 for k, e in enumerate(over) if k != best)
    assert plain > 0.25 * repeats
    assert corrected <= 0.05 * repeats + 3


def test_files_without_comparisons_are_read(tmp_path: Path) -> None:
    tuned = Tuned("x", {}, (depth(1, 1.2), depth(2, 1.5)))
    raw = asdict(Tuning("t", "s", "cpu", "float32", 2, 1.0, (), (tuned,), {}))
    for one in raw["drafters"][0]["depths"]:
        del one["over_best"]
    (tmp_path / costs.TUNING).write_text(json.dumps(raw))
    read = costs.load_tuning(tmp_path)
    assert read is not None
    assert read.drafters[0].undecided == [1]
