"""Plots and the HTML page: what is drawn, that nothing overlaps, and that nothing is fetched."""

import dataclasses
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from specbench.errors import UserError
from specbench.records.jsonl import to_line
from specbench.records.records import Cell, Sample, Verdict
from specbench.records.traces import Trace
from specbench.report import plots
from specbench.report.canvas import svg
from specbench.report.formats import render
from specbench.report.summary import Table, summarise
from specbench.stats.bootstrap import Estimate
from specbench.stats.costs import TUNING, Depth, Tuned, Tuning, VerifyCost, to_json
from tests.helpers.pictures import outside, overlaps
from tests.helpers.run_records import BASELINE, LOOKUP, answer, looped, write

SUITES = ("gsm8k", "math-500", "humaneval", "mt-bench")


def cell(drafter: str, suite: str) -> Cell:
    base = BASELINE if drafter == "autoregressive" else LOOKUP
    return dataclasses.replace(base, drafter=drafter, suite=suite)


def wide_run(folder: Path, drafters: int, suites: tuple[str, ...] = SUITES) -> Path:
    """Drafters of long names by suites; one is broken on the first suite, one looped."""
    cells = [cell("autoregressive", suite) for suite in suites]
    samples = [answer(c, s, 4, 4.0) for c in cells for s in "pq"]
    for number in range(drafters):
        for suite in suites:
            cells.append(cell(f"a-drafter-of-some-length-{number}", suite))
            samples += [timed(cells[-1], s, number, suite == suites[0]) for s in "pq"]
    write(folder, cells, samples)
    first = cells[len(suites)]
    trace = Trace(first.id, "p", 1, 2, 6, 10, {"draft": 0.004, "verify": 0.006, "update": 0.001})
    (folder / "traces.jsonl").write_text(to_line(trace))
    return folder


def timed(of: Cell, sample: str, number: int, first: bool) -> Sample:
    """An answer at a speed of its drafter's own."""
    plain = answer(of, sample, 2 + number % 5, 1 + 0.3 * number, "identical")
    if number == 1 and first:
        return dataclasses.replace(plain, verdict=Verdict("broken", 1, 2.0))
    if number == 2:
        return looped(of, sample)
    return plain


def drawn(table: Table, heading: str = "tiny, greedy") -> dict[str, Figure]:
    """Every picture of a table by its name."""
    return {plot.name: figure for plot, figure in plots.pictures(table, heading)}


LONG = "/models/some-organisation/Some-Target-Model-235B-A22B-Instruct-2507-FP8, greedy"
LONG_SUITE = "/data/home/somebody/suites/my-own-suite-of-prompts.jsonl"


@pytest.mark.parametrize("heading", ["tiny, greedy", LONG])
@pytest.mark.parametrize(
    ("drafters", "suites"), [(1, ("gsm8k",)), (10, ("gsm8k",)), (4, (LONG_SUITE,))]
)
def test_no_text_lies_outside_its_picture_or_covers_another(
    tmp_path: Path, drafters: int, suites: tuple[str, ...], heading: str
) -> None:
    folder = wide_run(tmp_path / "run", drafters, suites)
    write_tuning(folder, suites[0])
    found = drawn(summarise([folder]).tables[0], heading)
    assert set(found) == {plot.name for plot in plots.PLOTS}
    for name, figure in found.items():
        assert outside(figure) == [], name
        assert overlaps(figure) == [], name


def write_tuning(folder: Path, suite: str) -> None:
    """What `specbench tune` leaves in a run's folder."""
    depths = tuple(
        Depth(k, k + 1.0, Estimate(1 + k / 4, None, 2), 1.0, 2.0, 1.5, 1.3, Estimate(1.2, None, 2))
        for k in (1, 2, 4)
    )
    curve = tuple(VerifyCost(n, c, 2.0 * n, n, 3.0 * n, 5) for n in (1, 4, 16) for c in (128, 512))
    tuned = Tuned("a-drafter-of-some-length-0", LOOKUP.options, depths)
    tuning = Tuning("tiny", suite, "cpu", "float32", 2, 2.0, curve, (tuned,), {})
    (folder / TUNING).write_text(to_json(tuning))


def test_a_title_that_is_cut_off_is_seen() -> None:
    figure = Figure(figsize=(2, 2))
    figure.suptitle("a title that is much too long for two inches", x=0.01, ha="left")
    assert outside(figure) == ["a title that is much too long for two inches"]


def test_no_bar_s_text_covers_another_with_twelve_drafters(tmp_path: Path) -> None:
    [table] = summarise([wide_run(tmp_path / "run", 12, SUITES[:2])]).tables
    assert overlaps(drawn(table)["speedup"]) == []


@pytest.mark.slow
def test_no_text_covers_another_with_twelve_drafters_and_four_suites(tmp_path: Path) -> None:
    [table] = summarise([wide_run(tmp_path / "run", 12)]).tables
    found = drawn(table)
    assert set(found) == {"speedup", "aal", "rounds", "acceptance", "aal-speedup", "time"}
    for name, figure in found.items():
        assert overlaps(figure) == [], name
        assert outside(figure) == [], name


def test_overlapping_texts_are_seen() -> None:
    figure = Figure()
    axis = figure.subplots()
    axis.text(0.5, 0.5, "one text")
    axis.text(0.52, 0.5, "another")
    assert ("one text", "another") in overlaps(figure)


def test_bars_say_what_the_table_says(tmp_path: Path) -> None:
    [table] = summarise([wide_run(tmp_path / "run", 3, ("gsm8k",))]).tables
    axis = drawn(table)["speedup"].axes[0]
    texts = [text.get_text() for text in axis.texts]
    assert texts == ["2.00x", "no figure, BROKEN", "9.50x, LOOPS"]
    assert [bar.get_width() for bar in axis.patches] == pytest.approx([2.0, 9.5])


def test_a_figure_stands_beside_its_own_bar(tmp_path: Path) -> None:
    """Long acceptance without loops moves the text of AAL, which shows it, and of nothing else."""
    samples = [answer(BASELINE, s, 2, 2.0) for s in "pq"]
    samples += [looped(LOOKUP, "p"), answer(LOOKUP, "q", 40, 4.0, "identical")]
    [table] = summarise([write(tmp_path / "run", [BASELINE, LOOKUP], samples)]).tables
    found = drawn(table)
    [bar], [text] = found["speedup"].axes[0].patches, found["speedup"].axes[0].texts
    assert bar.get_width() < text.get_position()[0] < 1.2 * bar.get_width()
    assert found["aal"].axes[0].texts[0].get_position()[0] > 40


def test_the_baseline_s_time_stands_beside_the_drafters(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", [BASELINE, LOOKUP])
    traces = [Trace(c.id, "p", 1, 2, 6, 10, {"verify": 0.006}) for c in (BASELINE, LOOKUP)]
    (folder / "traces.jsonl").write_text("".join(map(to_line, traces)))
    [axis] = drawn(summarise([folder]).tables[0])["time"].axes
    names = [label.get_text() for label in axis.get_yticklabels()]
    assert names == ["autoregressive", "prompt-lookup"]
    assert [text.get_text() for text in axis.texts] == ["3 ms", "3 ms"]


def test_plots_are_written_as_png_and_svg(tmp_path: Path) -> None:
    summary = summarise([write(tmp_path / "run", [BASELINE, LOOKUP])])
    files = plots.save(summary, tmp_path / "plots")
    assert {f.name for f in files} == {
        f"{name}.{kind}"
        for name in ("speedup", "aal", "rounds", "acceptance", "aal-speedup")
        for kind in ("png", "svg")
    }
    assert all(f.stat().st_size > 1000 for f in files)


def test_a_plot_is_the_same_every_time(tmp_path: Path) -> None:
    [table] = summarise([write(tmp_path / "run", [BASELINE, LOOKUP])]).tables
    one, other = (svg(drawn(table)["speedup"]) for _ in range(2))
    assert one == other


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    summary = summarise([write(tmp_path / "run", [BASELINE, LOOKUP])])
    with pytest.raises(UserError, match=r"--plots .*file cannot be written"):
        plots.save(summary, tmp_path / "file")


def test_a_tuning_beside_the_run_adds_its_model_and_the_cost_of_verification(
    tmp_path: Path,
) -> None:
    folder = write(tmp_path / "run", [BASELINE, LOOKUP])
    depth = Depth(4, 5.0, Estimate(2.0, None, 2), 1.0, 2.0, 1.5, 1.3, Estimate(1.2, None, 2))
    curve = tuple(VerifyCost(rows, 128, 2.0 * rows, 1.0, 3.0 * rows, 5) for rows in (1, 2, 4))
    tuned = Tuned("prompt-lookup", LOOKUP.options, (depth,))
    other = Tuned("prompt-lookup", {"tokens": 99}, (depth,))
    tuning = Tuning("tiny", "smoke", "cpu", "float32", 2, 2.0, curve, (tuned, other), {})
    (folder / "tune.json").write_text(to_json(tuning))
    found = drawn(summarise([folder]).tables[0])
    assert "line: cost model" in found["aal-speedup"].axes[0].get_xlabel()
    models = [np.asarray(line.get_xydata()) for line in found["aal-speedup"].axes[0].lines]
    assert sum([2.0, 1.3] in xy.tolist() for xy in models) == 1
    cost = np.asarray(found["verify-cost"].axes[0].lines[0].get_ydata())
    assert cost.tolist() == [2.0, 4.0, 8.0]


class Page(HTMLParser):
    """Tags with their attributes, and whether every one is closed."""

    VOID = frozenset({"meta", "br", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of two tables, with markup in a run's command."""
    folder = tmp_path_factory.mktemp("page")
    folders = [wide_run(folder / "run", 3, ("gsm8k",))]
    folders.append(write(folder / "hot", [dataclasses.replace(LOOKUP, temperature=1.0)]))
    manifest = folders[0] / "manifest.json"
    raw = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(raw | {"command": "<script>alert(1)</script>"}))
    return render(summarise(folders), "html")


def test_the_page_stands_alone(page_text: str) -> None:
    page = Page(page_text)
    assert page.open == []
    fetched = [
        a for tag, a in page.seen
        if tag in {"link", "img", "iframe"} or a.get("src")
        or not (a.get("href") or a.get("xlink:href") or "#").startswith("#")
    ]  # fmt: skip
    assert fetched == []
    assert "url(http" not in page_text
    ids = [a["id"] for _, a in page.seen if "id" in a]
    assert len(ids) == len(set(ids))
    used = set(re.findall(r'(?:url\(|href=")#([^")]+)', page_text))
    assert used <= set(ids)
    assert sum(tag == "svg" for tag, _ in page.seen) == 6 + 5
    assert all(a.get("aria-label") for tag, a in page.seen if tag == "svg")


def test_the_page_marks_and_sorts_what_the_tables_say(page_text: str) -> None:
    for mark in ("broken", "loops"):
        assert f'<span class="mark {mark}">{mark.upper()}</span>' in page_text
    assert '<td data-value="2">2.00x <span class="interval">[2.00, 2.00]</span>' in page_text
    assert "<td>withheld" in page_text


def test_nothing_in_a_record_becomes_markup(page_text: str) -> None:
    assert page_text.count("<script>") == 1
    assert "&lt;script&gt;alert(1)" in page_text
