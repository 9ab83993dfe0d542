"""Tuning: the cost of a verification, and drafters at each depth."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specbench.cli import app
from specbench.core.target import Target
from specbench.errors import UserError
from specbench.inputs.plan import Settings, make_plan
from specbench.run import tune as tuning
from specbench.stats import costs
from specbench.stats.costs import Tuning
from specbench.testing import tiny_target


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target()


def test_the_curve_stays_within_the_context(target: Target) -> None:
    limit = target.context_limit
    assert limit is not None
    curve = tuning.verify_curve(target, rows=(1, 4), contexts=(8, limit), repeats=3)
    assert [(cost.rows, cost.context, cost.n) for cost in curve] == [(1, 8, 3), (4, 8, 3)]
    for cost in curve:
        assert 0 < cost.low <= cost.milliseconds <= cost.high


@pytest.fixture(scope="module")
def tuned() -> Tuning:
    plan = make_plan(Settings(("prompt-lookup[tokens=4]",), ("smoke",), limit=2, max_new_tokens=12))
    return tuning.tune(plan, depths=(1, 4, 9))


def test_a_depth_is_never_exceeded_and_the_formula_holds(tuned: Tuning) -> None:
    (lookup,) = tuned.drafters
    assert [d.depth for d in lookup.depths] == [1, 4]
    for depth in lookup.depths:
        assert 1 <= depth.rows <= depth.depth + 1
        assert depth.aal.value is not None
        assert depth.model is not None
        assert depth.model == pytest.approx(depth.aal.value / depth.break_even)
        assert depth.measured.n == 2
    assert lookup.best in lookup.depths
    assert [d.over_best is None for d in lookup.depths] == [d is lookup.best for d in lookup.depths]


def test_a_drafter_that_reaches_no_depth_is_refused() -> None:
    plan = make_plan(Settings(("prompt-lookup[tokens=4]",), ("smoke",), limit=1, max_new_tokens=2))
    with pytest.raises(UserError, match="at most 4 tokens"):
        tuning.tune(plan, depths=(8, 16))


def test_an_unwritable_folder_is_refused_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(tuning, "tune", None)
    asked = ["tune", "--drafter", "prompt-lookup", "--out", str(tmp_path / "file")]
    with pytest.raises(UserError, match="file cannot be made"):
        CliRunner().invoke(app, asked, catch_exceptions=False)


def test_tuning_is_written_and_read_back(tuned: Tuning, tmp_path: Path) -> None:
    assert costs.load_tuning(tmp_path) is None
    path = tmp_path / costs.TUNING
    path.write_text(costs.to_json(tuned))
    read = costs.load_tuning(tmp_path)
    assert read is not None
    assert (read.step, read.verify) == (tuned.step, tuned.verify)
    got, want = read.drafters[0].depths[0], tuned.drafters[0].depths[0]
    assert (got.model, got.aal.value, got.over_best) == (want.model, want.aal.value, want.over_best)
    path.write_text(json.dumps({"schema": 1}))
    with pytest.raises(UserError, match=r"tune\.json cannot be read"):
        costs.load_tuning(tmp_path)
