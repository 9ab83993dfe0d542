"""A run judged by a baseline: what is caught, what is let pass, what cannot be compared."""

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console
from typer.testing import CliRunner

from specbench.cli import app
from specbench.errors import UserError
from specbench.records.jsonl import to_line
from specbench.records.records import (
    MANIFEST,
    SAMPLES,
    ModelId,
    Verdict,
    load_manifest,
    load_samples,
    manifest_to_json,
)
from specbench.records.traces import TRACES, Trace
from specbench.regression import outputs
from specbench.regression.check import Finding, check
from tests.helpers.checked_runs import AR, DRAFT, make_run


def verdicts(candidate: Path, baseline: Path, **options: Any) -> dict[str, str]:
    """By stage, for the drafter."""
    findings = check(candidate, baseline, **options).findings
    return {f.stage: f.verdict for f in findings if f.drafter == "dflash"}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return make_run(tmp_path / "base")


def test_the_same_code_twice_raises_no_alarm(tmp_path: Path, base: Path) -> None:
    for seed in range(1, 21):
        again = make_run(tmp_path / f"again-{seed}", seed=seed, noise=0.05)
        assert check(again, base).exit_code == 0


def test_five_percent_less_accepted_is_a_regression(tmp_path: Path, base: Path) -> None:
    worse = make_run(tmp_path / "worse", rate=0.678, seed=1)
    found = check(worse, base)
    (finding,) = found.regressions
    assert (finding.stage, found.exit_code) == ("AAL", 1)
    assert finding.ratio is not None
    assert finding.ratio.value == pytest.approx(0.95, abs=0.008)
    assert check(worse, base, {"AAL": 0.1}).exit_code == 0
    assert verdicts(base, worse)["AAL"] == "improved"


def test_slower_rounds_are_a_regression_on_the_same_machine_only(
    tmp_path: Path, base: Path
) -> None:
    slower = make_run(tmp_path / "slower", cost=1.25, seed=1)
    assert verdicts(slower, base)["speedup"] == "regression"
    other = make_run(tmp_path / "other", cost=1.25, seed=1, machine={"cpu": "two", "threads": 1})
    found = check(other, base)
    assert verdicts(other, base)["speedup"] == "skipped"
    assert (found.exit_code, found.machine != ()) == (0, True)


def test_lost_answers_and_cells_come_first(tmp_path: Path, base: Path) -> None:
    fewer = make_run(tmp_path / "fewer", prompts=60, rate=0.5, seed=1)
    found = check(fewer, base)
    assert [f.stage for f in found.regressions] == [
        "completeness",
        "completeness",
        "AAL",
        "speedup",
    ]
    assert found.findings[0].text == "4 of 64 answers are missing"
    other = make_run(tmp_path / "other", draft=replace(DRAFT, drafter="eagle3"))
    assert [f.text for f in check(other, base).regressions] == ["the candidate has no such cell"]


def test_a_baseline_without_answers_lets_nothing_pass(tmp_path: Path, base: Path) -> None:
    """Figures that rest on nothing are not compared, and do not count as fine."""
    empty = make_run(tmp_path / "empty", prompts=0)
    with pytest.raises(UserError, match="holds no answer to compare with"):
        check(base, empty)
    assert check(empty, base).exit_code == 1
    kept = [s for s in load_samples(base) if s.cell == AR.id]
    failed = [replace(s, cell=DRAFT.id, status="error", rounds=(), output=()) for s in kept]
    (base / SAMPLES).write_text("".join(map(to_line, [*kept, *failed])))
    assert verdicts(make_run(tmp_path / "again"), base)["completeness"] == "skipped"


def test_broken_outputs_and_lossy_rules_are_regressions(tmp_path: Path, base: Path) -> None:
    broken = make_run(tmp_path / "broken", kind="broken")
    assert verdicts(broken, base)["losslessness"] == "regression"
    lossy = make_run(tmp_path / "lossy", draft=replace(DRAFT, lossless=False), kind="lossy")
    assert verdicts(lossy, base)["losslessness"] == "regression"
    assert verdicts(lossy, lossy)["losslessness"] == "fine"
    tie = make_run(tmp_path / "tie", kind="near-tie")
    assert verdicts(tie, base)["losslessness"] == "fine"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"dtype": "bfloat16"}, "dtype was float32, is bfloat16"),
        ({"options": {"block_size": 4}}, "options was"),
        ({"target": ModelId("tiny", sha256="2" * 64)}, "target was"),
    ],
)
def test_other_settings_are_not_comparable(
    tmp_path: Path, base: Path, change: dict[str, Any], named: str
) -> None:
    other = make_run(tmp_path / "other", draft=replace(DRAFT, **change))
    found = check(other, base)
    assert found.exit_code == 3
    assert named in outputs.conclusion(found)
    forced = check(other, base, force=True)
    assert forced.exit_code == 0
    assert any(named in note for note in outputs.notes(forced))


def test_another_draft_is_what_a_check_is_for(tmp_path: Path, base: Path) -> None:
    draft = replace(DRAFT, draft_model=ModelId("d", sha256="3" * 64), details={"block": 8})
    assert check(make_run(tmp_path / "new", draft=draft), base).exit_code == 0
    elsewhere = replace(draft, options={**DRAFT.options, "model": "elsewhere/d"})
    assert check(make_run(tmp_path / "elsewhere", draft=elsewhere), base).exit_code == 0


def test_outputs_say_what_was_found(tmp_path: Path, base: Path) -> None:
    found = check(make_run(tmp_path / "worse", rate=0.6, seed=1), base)
    xml = ElementTree.fromstring(outputs.junit(found))
    assert (xml.get("failures"), xml.get("tests")) == ("2", str(len(found.findings)))
    assert xml.find(".//failure") is not None
    facts = json.loads(outputs.to_json(found))
    assert (facts["exit_code"], facts["schema"]) == (1, 1)
    text = outputs.markdown(found)
    assert text.index("| ✗ | AAL |") < text.index("<details>")
    assert len(outputs.markdown(found, 400).encode()) <= 400
    bigger = json.loads(outputs.benchmark_list(found))
    assert {entry["unit"] for entry in bigger} == {"tokens per round", "x"}
    smaller = json.loads(outputs.benchmark_list_smaller(found))
    assert [entry["value"] for entry in smaller] == [0, 0]


def test_the_command_line(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = tmp_path / "summary.md"
    monkeypatch.setenv(outputs.SUMMARY_VARIABLE, str(summary))
    worse = make_run(tmp_path / "worse", rate=0.6, seed=1)

    def run(*arguments: object) -> int:
        return CliRunner().invoke(app, ["check", *map(str, arguments)]).exit_code

    files = ["--junit", tmp_path / "j.xml", "--json", tmp_path / "c.json", "--benchmarks", tmp_path]
    assert run(worse, "--baseline", base, *files) == 1
    assert "Regressions: 1 in AAL" in summary.read_text()
    for name in ("j.xml", "c.json", "bigger-is-better.json", "smaller-is-better.json"):
        assert (tmp_path / name).stat().st_size
    fresh = tmp_path / "new" / "baseline"
    done = CliRunner().invoke(app, ["check", str(worse), "--baseline", str(fresh)])
    assert "--update copies" in str(done.exception)
    assert run(worse, "--baseline", fresh, "--update") == 0
    assert list(load_samples(fresh)) == list(load_samples(worse))
    assert run(worse, "--baseline", fresh) == 0
    assert run(base, "--baseline", fresh) == 0
    (fresh / TRACES).write_text(to_line(Trace(DRAFT.id, "p0", 1, 1, 1, 8, {"draft": 9.0})))
    assert run(base, "--baseline", fresh, "--update") == 0
    assert not (fresh / TRACES).exists()
    (tmp_path / "empty").mkdir()
    assert run(worse, "--baseline", tmp_path / "empty", "--update") == 0


def test_speed_below_what_a_self_test_leaves_open_is_no_regression(
    tmp_path: Path, base: Path
) -> None:
    slower = make_run(tmp_path / "slower", cost=1.25, seed=1)
    assert verdicts(slower, base)["speedup"] == "regression"
    add_self_test(slower, spread=1.4)
    assert verdicts(slower, base)["speedup"] == "fine"


def test_speed_on_a_suite_is_allowed_what_its_own_self_test_leaves_open(
    tmp_path: Path, base: Path
) -> None:
    slower = make_run(tmp_path / "slower", cost=1.25, seed=1)
    add_self_test(slower, spread=1.4, suite="another")
    assert verdicts(slower, base)["speedup"] == "fine"
    add_self_test(slower, spread=1.05)
    assert verdicts(slower, base)["speedup"] == "regression"


def add_self_test(folder: Path, spread: float, suite: str = "smoke") -> None:
    """The baseline a second time, every answer ``spread`` times slower."""
    arm_cell = replace(AR, suite=suite)
    cell = replace(arm_cell, drafter="self-test", role="control", rule="walk")
    manifest = load_manifest(folder)
    cells = {**manifest.cells, arm_cell.id: arm_cell, cell.id: cell}
    (folder / MANIFEST).write_text(manifest_to_json(replace(manifest, cells=cells)))
    arm = [s for s in load_samples(folder) if s.cell == AR.id]
    with (folder / SAMPLES).open("a") as file:
        for s in arm:
            if arm_cell != AR:
                file.write(to_line(replace(s, cell=arm_cell.id)))
            seconds = (s.decode_seconds or 0) * spread
            verdict = Verdict("identical")
            file.write(to_line(replace(s, cell=cell.id, decode_seconds=seconds, verdict=verdict)))


def test_a_check_says_how_many_figures_share_the_doubt(tmp_path: Path, base: Path) -> None:
    (note,) = outputs.notes(check(base, base))
    assert "1 AAL figure and 1 speedup figure." in note
    found = check(make_run(tmp_path / "again", seed=1), base)
    facts = json.loads(outputs.to_json(found))
    assert [f["among"] for f in facts["findings"] if f["ratio"]] == [1, 1]


def test_few_prompts_are_judged_by_an_exact_test_or_not_at_all(tmp_path: Path) -> None:
    def judged(prompts: int) -> dict[str, Finding]:
        base = make_run(tmp_path / f"base-{prompts}", prompts=prompts)
        worse = make_run(tmp_path / f"worse-{prompts}", prompts=prompts, rate=0.3, seed=1)
        found = check(worse, base).findings
        return {f.stage: f for f in found if f.drafter == "dflash"}

    for prompts, expected in ((4, "skipped"), (5, "skipped"), (6, "regression")):
        assert judged(prompts)["AAL"].verdict == expected
    few = judged(3)["AAL"]
    assert "not judged: too few prompts for 1 figures; 6 would do" in few.text
    assert few.method is None
    exact = judged(8)["AAL"]
    assert exact.method == "exact test"
    assert "n=8, exact p=0.0039" in exact.text
    assert exact.exact is not None
    assert exact.exact.loss == 1 / 2**8
    many = judged(64)["AAL"]
    assert (many.method, many.exact) == ("bootstrap interval", None)
    assert many.text.endswith("n=64, by interval")


def test_the_table_fits_eighty_columns_with_long_names(tmp_path: Path) -> None:
    base = make_run(tmp_path / "base", prompts=8)
    found = check(make_run(tmp_path / "worse", prompts=8, rate=0.3, seed=1), base)
    drafter = "a-drafter-of-a-name-that-has-no-end (block_size=8, model=some-org/some-model)"
    suite = "/data/somebody/suites/a-suite-of-my-own.jsonl"
    long = tuple(replace(f, drafter=drafter, suite=suite) for f in found.findings)
    console = Console(width=80, record=True, file=StringIO())
    console.print(outputs.rich_check(replace(found, findings=long)))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80
    table = text.split("Judged:")[0]
    assert "✗ AAL" in table
    assert "✓ completeness" in table
    estimates = [f.candidate for f in long if f.candidate]
    assert len(estimates) == 2
    for estimate in estimates:
        assert estimate.interval is not None
        low, high = estimate.interval
        assert f"[{low:.3f}, {high:.3f}]" in table
