"""A history is only added to; a new level is seen, noise is not."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specbench.errors import UserError
from specbench.records.records import ModelId
from specbench.regression import history
from specbench.regression.history import Point, change_points
from specbench.regression.trends import draw, picture
from tests.helpers.checked_runs import DRAFT, make_run
from tests.helpers.pictures import outside, overlaps


def points(values: list[float], half: float = 0.0) -> list[Point]:
    return [
        Point(f"c{i}", f"2026-01-{i + 1:02}", f"r{i}", "m", "tiny", "dflash", "smoke", "AAL", v,
              v - half, v + half, 64)
        for i, v in enumerate(values)
    ]  # fmt: skip


def test_runs_are_added_once_and_drawn(tmp_path: Path) -> None:
    folder = tmp_path / "history"
    first, second = make_run(tmp_path / "a"), make_run(tmp_path / "b", rate=0.6, seed=1)
    assert history.add(folder, first) == 2
    before = (folder / history.FILE).read_text()
    assert history.add(folder, second) == 2
    assert (folder / history.FILE).read_text().startswith(before)
    with pytest.raises(UserError, match="already"):
        history.add(folder, first)
    read = history.read(folder)
    assert [p.run for p in read] == ["a", "a", "b", "b"]
    (path,) = draw(read, tmp_path / "plots")
    assert path.stat().st_size > 10_000


def test_other_settings_are_another_series_and_order_is_that_of_the_runs(tmp_path: Path) -> None:
    """A run that decodes with other options or to another length is no new level of the old."""
    half = make_run(tmp_path / "half", draft=replace(DRAFT, options={"block_size": 4}), rate=0.5)
    draft = replace(DRAFT, draft_model=ModelId("d", sha256="3" * 64), details={"block": 8})
    runs = (make_run(tmp_path / "a"), half, make_run(tmp_path / "b", draft=draft))
    for run in runs:
        history.add(tmp_path, run)
    read = history.read(tmp_path)
    groups = [[p.run for p in g] for g in history.series(read).values() if g[0].figure == "AAL"]
    assert groups == [["a", "b"], ["half"]]
    assert history.several_settings(read, read[0])
    assert not history.several_settings([p for p in read if p.run != "half"], read[0])
    late, early = replace(read[0], created="2026-02-01"), replace(read[0], created="2026-01-01")
    assert list(history.series([late, early]).values()) == [[early, late]]


def test_what_cannot_be_added_is_said(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    run = make_run(tmp_path / "run")
    with pytest.raises(UserError, match="cannot be written"):
        history.add(file, run)
    with pytest.raises(UserError, match=r"--plots .*file cannot be written"):
        draw(points([1.0]), file)
    with pytest.raises(UserError, match="no figure to add"):
        history.add(tmp_path / "h", make_run(tmp_path / "none", prompts=0))
    (tmp_path / history.FILE).write_bytes(b"\xff\n")
    with pytest.raises(UserError, match="line 1"):
        history.read(tmp_path)


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    (tmp_path / history.FILE).write_text("{}\n")
    with pytest.raises(UserError, match=r"history\.jsonl, line 1"):
        history.read(tmp_path)


def test_levels_change_where_they_do() -> None:
    noise = np.random.default_rng(0).normal(0, 0.02, 40)
    level = np.array([2.0] * 15 + [2.2] * 15 + [1.9] * 10)
    assert change_points(points(list(level + noise))) == [15, 30]
    assert change_points(points([2.0] * 10)) == []
    assert change_points(points([2.0, 2.5])) == []
    # Exact figures, as greedy AAL is: one step is one change.
    assert change_points(points([2.0] * 5 + [2.1] * 5)) == [5]
    # The same step is nothing where the intervals say that nobody can see it.
    assert change_points(points([2.0] * 5 + [2.1] * 5, half=0.4)) == []


@pytest.mark.parametrize("runs", [5, 10, 30, 50])
@pytest.mark.parametrize("noise", ["gaussian", "heavy tails", "outliers"])
def test_noise_alone_is_rarely_a_new_level(noise: str, runs: int) -> None:
    rng = np.random.default_rng(1)

    def unchanging() -> list[float]:
        if noise == "heavy tails":
            return list(2 + 0.05 * rng.standard_t(3, runs))
        values = rng.normal(0, 0.05, runs)
        if noise == "outliers":
            values *= np.where(rng.random(runs) < 0.05, 5, 1)
        return list(2 + values)

    assert sum(bool(change_points(points(unchanging()))) for _ in range(100)) <= 10


def test_one_slow_run_is_no_level_and_two_are() -> None:
    assert change_points(points([2.0] * 5 + [1.5] + [2.0] * 5)) == []
    assert change_points(points([2.0] * 5 + [1.5])) == []
    assert change_points(points([2.0] * 5 + [1.5] * 2)) == [5]


def test_no_text_of_a_trend_is_cut_off_and_every_machine_is_named() -> None:
    drafters = [f"org/a-drafter-with-a-long-name-(block_size={i})" for i in range(8)]
    found = [
        replace(p, drafter=drafter, figure=figure, machine=machine)
        for drafter in drafters
        for figure in history.FIGURES
        for machine in ("a processor 0123456789", "another processor 9876543210")
        for p in points([2.0] * 5 + [2.1] * 5)
    ]
    figure = picture(found, "/models/some-organisation/Some-Target-235B-FP8 on my-suite.jsonl")
    assert outside(figure) == []
    assert overlaps(figure) == []
    names = [text.get_text().replace("\n", " ") for text in figure.legends[0].get_texts()]
    assert sum("another processor" in name for name in names) == len(drafters)


def test_the_torn_last_line_of_a_killed_process_is_dropped(tmp_path: Path) -> None:
    history.add(tmp_path, make_run(tmp_path / "a"))
    with (tmp_path / history.FILE).open("a") as file:
        file.write('{"commit":')
    history.add(tmp_path, make_run(tmp_path / "b", seed=1))
    assert [p.run for p in history.read(tmp_path)] == ["a", "a", "b", "b"]
