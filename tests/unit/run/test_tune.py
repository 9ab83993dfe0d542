"""What a verification costs, and drafters at each depth."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specbench.cli import app
from specbench.cli.tune import _labels
from specbench.core.target import Target
from specbench.errors import UserError
from specbench.inputs.plan import Settings, make_plan
from specbench.run import tune as tuning
from specbench.stats.metrics import Estimate
from specbench.testing import tiny_target


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target()


def test_the_curve_leaves_the_cache_and_the_context_alone(target: Target) -> None:
    limit = target.context_limit
    assert limit is not None
    curve = tuning.verify_curve(target, rows=(1, 4), contexts=(8, limit), repeats=3)
    assert [(cost.rows, cost.context, cost.n) for cost in curve] == [(1, 8, 3), (4, 8, 3)]
    for cost in curve:
        assert 0 < cost.low <= cost.milliseconds <= cost.high


def test_the_model_reads_the_curve_between_its_points() -> None:
    curve = [tuning.VerifyCost(rows, 8, float(rows), 0, 0, 1) for rows in (1, 4, 8)]
    assert tuning._at(curve, 6) == 6
    assert tuning._at(curve, 100) == 8


@pytest.fixture(scope="module")
def tuned() -> tuning.Tuning:
    plan = make_plan(Settings(("prompt-lookup[tokens=4]",), ("smoke",), limit=2, max_new_tokens=12))
    return tuning.tune(plan, depths=(1, 4, 9))


def test_a_depth_is_never_exceeded_and_the_formula_holds(tuned: tuning.Tuning) -> None:
    (lookup,) = tuned.drafters
    assert [d.depth for d in lookup.depths] == [1, 4]
    for depth in lookup.depths:
        assert 1 <= depth.rows <= depth.depth + 1
        assert depth.aal.value is not None
        assert depth.model is not None
        assert depth.model == pytest.approx(depth.aal.value / depth.break_even)
        assert depth.measured.n == 2
    assert lookup.best in lookup.depths


def test_a_drafter_that_reaches_no_depth_is_refused() -> None:
    plan = make_plan(Settings(("prompt-lookup[tokens=4]",), ("smoke",), limit=1, max_new_tokens=2))
    with pytest.raises(UserError, match="at most 4 tokens"):
        tuning.tune(plan, depths=(8, 16))


def test_configurations_of_one_drafter_are_told_apart() -> None:
    options = ({"tokens": 4, "n": 2}, {"tokens": 8, "n": 2})
    drafters = [*(tuning.Tuned("x", one, ()) for one in options), tuning.Tuned("y", {}, ())]
    assert _labels(drafters) == ["x (tokens=4)", "x (tokens=8)", "y"]


def test_it_is_not_measured_in_vain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(tuning, "tune", None)
    asked = ["tune", "--drafter", "prompt-lookup", "--out", str(tmp_path / "file")]
    with pytest.raises(UserError, match="file cannot be made"):
        CliRunner().invoke(app, asked, catch_exceptions=False)


def test_it_is_written_and_read_back(tuned: tuning.Tuning, tmp_path: Path) -> None:
    assert tuning.load_tuning(tmp_path) is None
    path = tmp_path / tuning.TUNING
    path.write_text(tuning.to_json(tuned))
    read = tuning.load_tuning(tmp_path)
    assert read is not None
    assert (read.step, read.verify) == (tuned.step, tuned.verify)
    got, want = read.drafters[0].depths[0], tuned.drafters[0].depths[0]
    assert (got.model, got.aal.value) == (want.model, want.aal.value)
    path.write_text(json.dumps({"schema": 1}))
    with pytest.raises(UserError, match=r"tune\.json cannot be read"):
        tuning.load_tuning(tmp_path)


def test_the_best_is_the_fastest_that_is_known() -> None:
    def depth(k: int, speed: float | None) -> tuning.Depth:
        known, speedup = Estimate(2.0, None, 1), Estimate(speed, None, 1)
        return tuning.Depth(k, k + 1, known, 1, 1, 1, 1, speedup)

    tuned = tuning.Tuned("x", {}, (depth(1, 1.2), depth(2, 1.5), depth(4, None)))
    assert tuned.best is not None
    assert tuned.best.depth == 2
    assert tuning.Tuned("x", {}, (depth(1, None),)).best is None
