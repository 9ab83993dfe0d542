"""`specbench report`: golden texts of a small run worked by hand, files, and no torch."""

import csv
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from specbench.cli.report import report
from specbench.errors import UserError

GOLDEN = Path(__file__).parents[2] / "golden" / "report"
app = typer.Typer()
app.command()(report)


def run(*arguments: str) -> str:
    """What the command prints."""
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False, standalone_mode=False)
    if result.exception:
        raise result.exception
    return result.output


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("markdown", "report.md"),
        ("csv", "report.csv"),
        ("json", "report.json"),
        ("latex", "report.tex"),
    ],
)
def test_golden(option: str, name: str) -> None:
    expected = (GOLDEN / name).read_text(encoding="utf-8")
    assert run(str(GOLDEN / "run"), "--format", option) == expected


def test_golden_json_against_figures_worked_by_hand() -> None:
    rows = {
        (row["label"], row["suite"]): row
        for row in json.loads((GOLDEN / "report.json").read_text())["rows"]
    }
    # 18 tokens in 18 rounds of 1/8 s against 18 tokens in 6 rounds of 1/4 s
    dflash = rows["dflash (block_size=4)", "smoke"]
    assert dflash["speedup"] == pytest.approx((18 / 8 / 18) / (6 / 4 / 18))
    assert dflash["aal_pooled"] == pytest.approx(18 / 6)
    # four prefills of 1/4 s on each side, 18 + 4 tokens
    assert dflash["speedup_end_to_end"] == pytest.approx((1 + 18 / 8) / (1 + 6 / 4))
    assert dflash["aal_macro"] == pytest.approx((7 / 2 + 4 / 2 + 7 / 2) / 3)
    assert dflash["acceptance"] == pytest.approx([6 / 6, 4 / 6, 2 / 6])
    assert (dflash["n"], dflash["answers"], dflash["lossless"]) == (3, 4, "near-tie")
    lookup = rows["prompt-lookup", "smoke"]
    assert lookup["speedup"] == pytest.approx((18 / 8 / 18) / (15 * 3 / 16 / 18))
    assert lookup["tokens_per_second"] == pytest.approx(18 / (15 * 3 / 16))
    half = rows["dflash (block_size=4)", "gsm8k"]
    assert (half["n"], half["failed"], half["planned"], half["aal_ci"]) == (1, 1, 2, None)


def test_json_keeps_its_contract() -> None:
    report_object = json.loads(run(str(GOLDEN / "run"), "--format", "json"))
    contract = [
        *("target", "drafter", "suite", "temperature", "n", "failed", "aal_pooled", "aal_macro"),
        *("aal_ci", "speedup", "speedup_ci", "speedup_end_to_end", "tokens_per_second", "lossless"),
    ]
    assert report_object["schema"] == 1
    for row in report_object["rows"]:
        assert list(row)[: len(contract)] == contract


def test_csv_has_the_rows_of_json() -> None:
    rows = list(csv.DictReader(io.StringIO(run(str(GOLDEN / "run"), "--format", "csv"))))
    objects = json.loads(run(str(GOLDEN / "run"), "--format", "json"))["rows"]
    assert [r["label"] for r in rows] == [o["label"] for o in objects]
    for row, expected in zip(rows, objects, strict=True):
        low, high = expected["speedup_ci"] or ("", "")
        assert (row["speedup_low"], row["speedup_high"]) == (str(low), str(high))
        assert json.loads(row["options"]) == expected["options"]


def test_markdown_is_what_a_pipe_gets() -> None:
    assert run(str(GOLDEN / "run")) == (GOLDEN / "report.md").read_text(encoding="utf-8")


def test_the_default_is_every_run_under_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="results holds no run folder"):
        run()
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "README.md").write_text("")
    (tmp_path / "results" / "one").symlink_to(GOLDEN / "run")
    assert run() == (GOLDEN / "report.md").read_text(encoding="utf-8")


def test_an_output_file_is_not_overwritten_unless_told_to(tmp_path: Path) -> None:
    output = tmp_path / "table.md"
    assert run(str(GOLDEN / "run"), "--output", str(output)) == ""
    expected = (GOLDEN / "report.md").read_text(encoding="utf-8")
    assert output.read_text(encoding="utf-8") == expected
    output.write_text("mine")
    with pytest.raises(UserError, match=r"table\.md exists already"):
        run(str(GOLDEN / "run"), "--output", str(output))
    assert output.read_text() == "mine"
    run(str(GOLDEN / "run"), "--output", str(output), "--overwrite")
    assert output.read_text(encoding="utf-8") == expected


def test_an_output_that_names_no_file_is_refused(tmp_path: Path) -> None:
    for output in (tmp_path, tmp_path / "missing" / "table.md"):
        with pytest.raises(UserError, match="must name a file in a folder that exists"):
            run(str(GOLDEN / "run"), "--output", str(output))


def test_reporting_needs_no_torch() -> None:
    code = (
        "import sys; from pathlib import Path; from specbench.cli.report import report; "
        f"report([Path({str(GOLDEN / 'run')!r})], 'json'); "
        "heavy = {'torch', 'transformers', 'pandas', 'matplotlib'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"]


def two_runs(tmp_path: Path) -> tuple[str, str]:
    """The golden run, and the same with another length cap."""
    folders = tmp_path / "a", tmp_path / "b"
    for folder in folders:
        shutil.copytree(GOLDEN / "run", folder)
    manifest = folders[1] / "manifest.json"
    text = manifest.read_text().replace('"max_new_tokens": 8', '"max_new_tokens": 9')
    manifest.write_text(text)
    return str(folders[0]), str(folders[1])


def test_named_runs_that_differ_need_force(tmp_path: Path) -> None:
    a, b = two_runs(tmp_path)
    with pytest.raises(UserError, match=r"a and b differ in max_new_tokens on smoke \(8 and 9\)"):
        run(a, b)
    text = run(a, b, "--force")
    assert "NOT ALIKE" in text
    assert "max_new_tokens on smoke: 8 in a, 9 in b" in text


def test_all_runs_under_results_are_never_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "results").mkdir()
    two_runs(tmp_path / "results")
    monkeypatch.chdir(tmp_path)
    assert run().count("### Details") == 2


def test_the_newest_option_keeps_one_row_a_cell(tmp_path: Path) -> None:
    for name in "ab":
        shutil.copytree(GOLDEN / "run", tmp_path / name)
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    both = json.loads(run(a, b, "--format", "json"))["rows"]
    last = json.loads(run(a, b, "--format", "json", "--newest"))["rows"]
    one = json.loads(run(b, "--format", "json"))["rows"]
    assert (len(both), len(last)) == (2 * len(one), len(one))


@pytest.mark.parametrize("option", ["markdown", "csv", "json", "latex", "html"])
def test_every_format_holds_the_machine_the_suites_and_the_mark_of_a_lossy_rule(
    tmp_path: Path, option: str
) -> None:
    shutil.copytree(GOLDEN / "run", tmp_path / "run")
    manifest = tmp_path / "run" / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"lossless": true', '"lossless": false'))
    report_text = run(str(tmp_path / "run"), "--format", option)
    row = json.loads((GOLDEN / "report.json").read_text())["rows"][0]
    for fact in (row["machine"], row["suite_hash"][:10], "A | B processor", "lossy rule"):
        shown = fact.replace("|", r"\textbar{}") if option == "latex" else fact
        assert shown in report_text, fact
