"""Which cells meet in a table, what a row says, and what is refused."""

import json
import re
import shutil
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from specbench.errors import UserError
from specbench.records.jsonl import to_line
from specbench.records.records import MANIFEST, SAMPLES, Cell, ModelId, Sample, Verdict
from specbench.report.figures import AAL, SPEEDUP
from specbench.report.formats import render
from specbench.report.runs import run_folders
from specbench.report.summary import Row, summarise
from specbench.report.terminal import rich_table
from tests.helpers.run_records import BASELINE, LOOKUP, answer, looped, write


def failure(cell: Cell, sample: str) -> Sample:
    return Sample(cell.id, sample, 1, "error", error="RuntimeError: out of memory")


def rows(*folders: Path) -> dict[str, Row]:
    """All rows by label; labels must not repeat."""
    found = [row for table in summarise(folders).tables for row in table.rows]
    labelled = {row.label: row for row in found}
    assert len(labelled) == len(found)
    return labelled


def headings(*folders: Path) -> list[str]:
    text = render(summarise(folders), "markdown")
    return [line[3:] for line in text.splitlines() if line.startswith("## ")]


def json_rows(*folders: Path) -> list[dict[str, Any]]:
    report = json.loads(render(summarise(folders), "json"))
    assert report["schema"] == 1
    found: list[dict[str, Any]] = report["rows"]
    return found


def test_the_baseline_comes_first_and_is_one_by_definition(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", [LOOKUP, BASELINE])
    assert list(rows(folder)) == ["autoregressive", "prompt-lookup"]
    baseline = json_rows(folder)[0]
    assert (baseline["speedup"], baseline["speedup_ci"]) == (1.0, None)
    assert (baseline["baseline"], baseline["lossless"]) == (True, "identical")


def test_the_speedup_is_paired_within_the_run(tmp_path: Path) -> None:
    samples = [answer(BASELINE, s, 2, 3.0) for s in "pq"]
    samples += [answer(LOOKUP, "p", 2, 1.0), failure(LOOKUP, "q")]
    folder = write(tmp_path / "run", [BASELINE, LOOKUP], samples)
    row = rows(folder)["prompt-lookup"]
    assert SPEEDUP.of(row).value == pytest.approx(3.0)
    assert json_rows(folder)[1]["speedup_end_to_end"] == pytest.approx(2.0)
    assert (row.answers, row.failed, row.planned, AAL.of(row).n) == (1, 1, 2, 1)


def test_without_a_baseline_there_is_no_speedup(tmp_path: Path) -> None:
    other = write(tmp_path / "other", [BASELINE])
    [row] = json_rows(write(tmp_path / "run", [LOOKUP]))
    assert (row["speedup"], row["speedup_ci"], row["speedup_end_to_end"]) == (None, None, None)
    assert SPEEDUP.of(rows(other, tmp_path / "run")["prompt-lookup"]).value is None


def test_a_slowdown_is_shown_like_a_speedup(tmp_path: Path) -> None:
    samples = [answer(BASELINE, s, 2, 1.0) for s in "pq"]
    samples += [answer(LOOKUP, s, 2, 2.0) for s in "pq"]
    text = render(summarise([write(tmp_path / "run", [BASELINE, LOOKUP], samples)]), "markdown")
    assert "| prompt-lookup | 0.50x [0.50, 0.50]<br>AAL 2.00 [2.00, 2.00] (n=2) |" in text


def test_a_cell_whose_answers_all_failed_is_a_row_without_figures(tmp_path: Path) -> None:
    samples = [answer(BASELINE, "p", 2, 1.0), failure(LOOKUP, "p"), failure(LOOKUP, "q")]
    folder = write(tmp_path / "run", [BASELINE, LOOKUP], samples)
    row = json_rows(folder)[1]
    assert (row["n"], row["failed"], row["lossless"]) == (0, 2, "untested")
    figures = ("aal_pooled", "aal_macro", "aal_ci", "speedup", "speedup_ci", "tokens_per_second")
    assert all(row[key] is None for key in figures)
    text = render(summarise([folder]), "markdown")
    assert "no answer (2 failed)" in text
    assert "(n=1 of 2)" in text


@pytest.mark.parametrize(
    ("kinds", "worst"),
    [
        (["identical", "identical"], "identical"),
        (["near-tie", "identical"], "near-tie"),
        (["near-tie", ""], "untested"),
        (["lossy", ""], "lossy"),
        (["broken", "lossy"], "broken"),
    ],
)
def test_a_cell_is_as_lossless_as_its_worst_answer(
    tmp_path: Path, kinds: list[str], worst: str
) -> None:
    samples = [answer(LOOKUP, s, 2, 1.0, kind) for s, kind in zip("pq", kinds, strict=True)]
    [row] = rows(write(tmp_path / "run", [LOOKUP], samples)).values()
    assert row.entry.lossless == worst
    assert sum(map(len, row.entry.verdicts.values())) == 2


def test_a_lossy_rule_is_marked_whatever_its_answers_show(tmp_path: Path) -> None:
    cell = replace(LOOKUP, lossless=False)
    samples = [answer(cell, s, 2, 1.0, "identical") for s in "pq"]
    folder = write(tmp_path / "run", [cell], samples)
    assert rows(folder)["prompt-lookup (lossy rule)"].entry.lossless == "lossy"
    assert "LOSSY" in render(summarise([folder]), "markdown")


def test_a_broken_drafter_is_marked_beside_its_speedup(tmp_path: Path) -> None:
    samples = [answer(c, s, 2, 1.0) for c in (BASELINE, LOOKUP) for s in "pq"]
    samples[-1] = replace(samples[-1], verdict=Verdict("broken", 1, 3.0))
    text = render(summarise([write(tmp_path / "run", [BASELINE, LOOKUP], samples)]), "markdown")
    assert "(n=2)<br>BROKEN |" in text


def test_only_what_differs_is_in_the_label(tmp_path: Path) -> None:
    cells = [replace(LOOKUP, options={"tokens": n, "longest": 3}, width=n) for n in (4, 8)]
    labels = list(rows(write(tmp_path / "run", cells)))
    assert labels == ["prompt-lookup (tokens=4)", "prompt-lookup (tokens=8)"]


def test_drafts_that_differ_only_in_their_weights_are_told_apart(tmp_path: Path) -> None:
    cells = [
        replace(LOOKUP, options={"model": "d"}, draft_model=ModelId("d", sha256=letter * 64))
        for letter in "ab"
    ]
    labels = list(rows(write(tmp_path / "run", cells)))
    assert labels == [f"prompt-lookup (weights={letter * 10})" for letter in "ab"]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("dtype", "bfloat16"),
        ("attention", "eager"),
        ("template", "b" * 64),
        ("thinking", "on"),
        ("max_new_tokens", 16),
        ("seed", 1),
        ("sample_ids", ("p", "r")),
        ("suite_hash", "b" * 64),
        ("device", "cuda"),
        ("target", ModelId("tiny", revision="main")),
    ],
)
def test_cells_that_differ_in_more_than_the_drafter_are_in_tables_of_their_own(
    tmp_path: Path, setting: str, value: Any
) -> None:
    other = replace(LOOKUP, **{setting: value})
    folders = [write(tmp_path / "a", [LOOKUP]), write(tmp_path / "b", [other])]
    titles = headings(*folders)
    assert len(titles) == 2
    assert titles[0] != titles[1]


def test_a_table_has_one_sampling(tmp_path: Path) -> None:
    hot = replace(LOOKUP, temperature=0.6, top_p=0.95, top_k=20)
    folder = write(tmp_path / "run", [LOOKUP, hot])
    assert headings(folder) == ["tiny, greedy", "tiny, temperature 0.6, top-k 20, top-p 0.95"]


def test_suites_may_have_budgets_of_their_own_in_one_table(tmp_path: Path) -> None:
    gsm8k = replace(LOOKUP, suite="gsm8k", suite_hash="b" * 64, max_new_tokens=512)
    folder = write(tmp_path / "run", [LOOKUP, gsm8k])
    assert headings(folder) == ["tiny, greedy"]
    assert "| drafter | smoke | gsm8k |" in render(summarise([folder]), "markdown")


def test_runs_on_another_machine_are_in_another_table(tmp_path: Path) -> None:
    a = write(tmp_path / "a", [LOOKUP], cpu="slow", threads=2)
    b = write(tmp_path / "b", [replace(LOOKUP, drafter="dflash")], cpu="fast", threads=2)
    assert headings(a, b) == ["tiny, greedy (cpu=slow)", "tiny, greedy (cpu=fast)"]


def test_runs_that_agree_share_a_table_and_keep_their_own_baselines(tmp_path: Path) -> None:
    dflash = replace(LOOKUP, drafter="dflash")
    slow = [answer(BASELINE, s, 2, 4.0) for s in "pq"] + [answer(dflash, s, 2, 1.0) for s in "pq"]
    a = write(tmp_path / "a", [BASELINE, LOOKUP])
    b = write(tmp_path / "b", [BASELINE, dflash], slow)
    assert headings(a, b) == ["tiny, greedy"]
    found = rows(a, b)
    assert list(found)[:2] == ["autoregressive (run a)", "autoregressive (run b)"]
    assert SPEEDUP.of(found["prompt-lookup"]).value == pytest.approx(1.0)
    assert SPEEDUP.of(found["dflash"]).value == pytest.approx(4.0)


def test_a_cell_in_two_runs_is_shown_twice_and_both_runs_are_named(tmp_path: Path) -> None:
    a = write(tmp_path / "a", [BASELINE, LOOKUP])
    (tmp_path / "other").mkdir()
    b = tmp_path / "other" / "a"
    shutil.copytree(a, b)
    assert f"prompt-lookup (run {b})" in rows(a, b)
    text = render(summarise([a, b]), "markdown")
    assert f"prompt-lookup on smoke by {a} and {b}; --newest keeps the last one" in text


def test_the_newest_run_of_a_cell_wins_where_that_is_asked_for(tmp_path: Path) -> None:
    dflash = replace(LOOKUP, drafter="dflash")
    a = write(tmp_path / "a", [BASELINE, LOOKUP])
    b = write(tmp_path / "b", [BASELINE, LOOKUP, dflash])
    manifest = (a / MANIFEST).read_text().replace("2026-01-01", "2026-01-02")
    (a / MANIFEST).write_text(manifest)
    [table] = summarise([a, b], newest=True).tables
    runs = {row.label: row.entry.run for row in table.rows}
    assert runs == {"autoregressive": "a", "prompt-lookup": "a", "dflash": "b"}


def test_a_folder_named_twice_is_refused(tmp_path: Path) -> None:
    a = write(tmp_path / "a", [LOOKUP])
    with pytest.raises(UserError, match="a is named twice"):
        summarise([a, tmp_path / "a" / ".." / "a"])


def test_a_self_test_says_what_the_machine_cannot_tell_apart(tmp_path: Path) -> None:
    again = replace(BASELINE, drafter="self-test", role="control", rule="walk")
    samples = [answer(BASELINE, s, 2, 1.0) for s in "pq"]
    samples += [answer(again, "p", 2, 1.0, "identical"), answer(again, "q", 2, 1.25, "identical")]
    folder = write(tmp_path / "run", [BASELINE, again], samples)
    text = render(summarise([folder]), "markdown")
    assert "Self-test on smoke: the baseline against itself leaves 20.0% open" in text


def test_what_is_untested_says_why_and_what_tests_it(tmp_path: Path) -> None:
    base = replace(BASELINE, temperature=1.0)
    drawn = replace(LOOKUP, drafter="draft-model", rule="any", temperature=1.0)
    same = replace(drawn, drafter="dflash", rule="walk")
    verdict = Verdict("untested", reason="its rule keeps no text")
    samples = [answer(cell, s, 2, 1.0, "identical") for cell in (base, same) for s in "pq"]
    samples += [replace(answer(drawn, s, 2, 1.0), verdict=verdict) for s in "pq"]
    folder = write(tmp_path / "run", [base, drawn, same], samples)
    text = render(summarise([folder]), "markdown")
    reason = "Untested: draft-model on smoke, 2 answers: its rule keeps no text."
    assert f"{reason} `specbench distribution --drafter draft-model --temperature 1`" in text
    assert "--drafter dflash" not in text
    assert json_rows(folder)[1]["verdict_reasons"] == ["its rule keeps no text"]


def test_without_a_baseline_s_answer_no_other_test_is_named(tmp_path: Path) -> None:
    verdict = Verdict("untested", reason="there is no autoregressive answer")
    samples = [replace(answer(LOOKUP, "p", 2, 1.0), verdict=verdict)]
    text = render(summarise([write(tmp_path / "run", [LOOKUP], samples)]), "markdown")
    assert "1 answers: there is no autoregressive answer.\n" in text


def test_where_and_by_how_much_an_answer_differs_is_said(tmp_path: Path) -> None:
    verdicts = [Verdict("near-tie", 6, 1e-5), Verdict("near-tie", 3, 2e-5)]
    samples = [
        replace(answer(LOOKUP, s, 2, 1.0), verdict=v) for s, v in zip("pq", verdicts, strict=True)
    ]
    dflash = replace(LOOKUP, drafter="dflash")
    samples.append(replace(answer(dflash, "p", 2, 1.0), verdict=Verdict("broken", 1)))
    folder = write(tmp_path / "run", [LOOKUP, dflash], samples)
    text = render(summarise([folder]), "markdown")
    near = "2 of 2 answers on smoke (first at output token 4, largest logit gap 2e-05)."
    assert f"Near-tie: prompt-lookup: {near}" in text
    assert "Broken: dflash: 1 of 1 answers on smoke (first at output token 2)." in text
    assert [row["verdict_gaps"] for row in json_rows(folder)] == [
        {"near-tie": 2e-5}, {"broken": None},
    ]  # fmt: skip


@pytest.mark.parametrize(
    "control",
    [
        replace(BASELINE, drafter="self-test", role="control", rule="walk"),
        replace(LOOKUP, drafter="knows-the-answer", role="control"),
    ],
)
def test_a_control_is_not_the_fastest_drafter(tmp_path: Path, control: Cell) -> None:
    """No one chooses the baseline under another name, or a drafter that knows the answer."""
    samples = [answer(cell, s, 2, 1.0, "identical") for cell in (BASELINE, control) for s in "pq"]
    samples += [answer(LOOKUP, s, 2, 3.0, "identical") for s in "pq"]
    dflash = replace(LOOKUP, drafter="dflash")
    samples += [answer(dflash, s, 2, 2.0, "identical") for s in "pq"]
    folder = write(tmp_path / "run", [BASELINE, control, LOOKUP, dflash], samples)
    [table] = summarise([folder]).tables
    assert [(row.label, row.rival.label) for row in table.rows if row.rival] == [
        ("prompt-lookup", "dflash")
    ]


def test_the_caption_says_when_prompts_went_in_raw(tmp_path: Path) -> None:
    raw = render(summarise([write(tmp_path / "a", [LOOKUP])]), "markdown")
    assert "raw prompt: the target has no chat template" in raw
    chat = write(tmp_path / "b", [replace(LOOKUP, template="c" * 64)])
    assert "chat template cccccccccc," in render(summarise([chat]), "markdown")


def shown(table: RenderableType) -> str:
    """What a terminal of 80 columns shows."""
    console = Console(width=80, record=True, file=StringIO())
    console.print(table)
    return console.export_text()


def test_the_terminal_shows_the_same_figures(tmp_path: Path) -> None:
    samples = [answer(BASELINE, s, 2, 3.0) for s in "pq"]
    samples += [answer(LOOKUP, s, 4, 4.0, "identical") for s in "pq"]
    summary = summarise([write(tmp_path / "run", [BASELINE, LOOKUP], samples)])
    figures, intervals = shown(rich_table(summary)).split(LOOKUP.drafter)[1].split("\n")[:2]
    assert figures.split() == ["1.50x", "4.00", "0", "0"]
    assert intervals.split()[:2] == ["n=2,", "identical"]
    assert "[1.50, 1.50] [4.00, 4.00]" in intervals
    assert "Where a round" not in shown(rich_table(summary, details=False))


def test_on_a_narrow_terminal_only_names_are_folded(tmp_path: Path) -> None:
    """Loops bring the widest headline; a figure is never torn, nor does a line run over."""
    named = replace(LOOKUP, drafter="a-drafter-with-a-name-of-some-length")
    samples = [answer(BASELINE, s, 2, 3.0) for s in "pq"]
    samples += [looped(named, "p"), answer(named, "q", 4, 4.0, "identical")]
    text = shown(rich_table(summarise([write(tmp_path / "run", [BASELINE, named], samples)])))
    assert "AAL without" in text
    assert "n=2, identical" in text
    assert text.count("[") == text.count("]") == len(re.findall(r"\[[^\[\]\n]*\]", text))
    assert max(map(len, text.splitlines())) <= 80


def test_the_order_of_lines_changes_nothing(tmp_path: Path) -> None:
    samples = [answer(c, s, n, n / 3) for c in (BASELINE, LOOKUP) for s, n in (("p", 2), ("q", 5))]
    a = write(tmp_path / "run", [BASELINE, LOOKUP], samples)
    before = render(summarise([a]), "json")
    (a / SAMPLES).write_text("".join(map(to_line, reversed(samples))))
    assert render(summarise([a]), "json") == before


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere is not a run folder"):
        summarise([tmp_path / "nowhere"])
    with pytest.raises(UserError, match="holds no run folder"):
        run_folders(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"holds no run: there is no manifest\.json"):
        summarise([tmp_path / "empty"])
    binary = write(tmp_path / "binary", [LOOKUP])
    (binary / SAMPLES).write_bytes(b"\xff\xfe\n")
    with pytest.raises(UserError, match=r"binary.samples.jsonl, line 1, cannot be read"):
        summarise([binary])


def test_samples_that_fit_no_cell_or_come_twice_are_refused(tmp_path: Path) -> None:
    stray = write(tmp_path / "stray", [LOOKUP], [answer(BASELINE, "p", 2, 1.0)])
    with pytest.raises(UserError, match=f"a sample of cell {BASELINE.id}"):
        summarise([stray])
    twice = write(tmp_path / "twice", [LOOKUP], [answer(LOOKUP, "p", 2, 1.0)] * 2)
    with pytest.raises(UserError, match="two lines for sample p, turn 1"):
        summarise([twice])


def test_an_unfinished_run_is_reported_as_far_as_it_got(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", [BASELINE, LOOKUP])
    (folder / SAMPLES).unlink()
    assert [row["n"] for row in json_rows(folder)] == [0, 0]
    assert "no answer (0 failed)" in render(summarise([folder]), "markdown")


def test_another_format_is_refused(tmp_path: Path) -> None:
    summary = summarise([write(tmp_path / "run", [LOOKUP])])
    with pytest.raises(UserError, match="--format is markdown, csv, json, latex, html, not 'pdf'"):
        render(summary, "pdf")
