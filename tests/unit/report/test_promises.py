"""What a new figure, plot or format costs: one entry, and everything else follows."""

import json
from io import StringIO
from pathlib import Path

import pytest
from matplotlib.figure import Figure as Picture
from rich.console import Console
from typer.testing import CliRunner

from specbench.cli import app
from specbench.errors import UserError
from specbench.report import figures, formats, plots
from specbench.report.canvas import Scene
from specbench.report.cells import Figure
from specbench.report.figures import AAL
from specbench.report.formats import FORMATS, render
from specbench.report.summary import Row, Summary, summarise
from specbench.report.terminal import rich_table
from specbench.stats.bootstrap import Estimate
from tests.helpers.run_records import BASELINE, LOOKUP, write


@pytest.fixture
def summary(tmp_path: Path) -> Summary:
    return summarise([write(tmp_path / "run", [BASELINE, LOOKUP])])


def tokens(row: Row) -> Estimate:
    return Estimate(12.345, (11.0, 13.5), AAL.of(row).n)


def test_a_figure_added_to_the_tuple_is_in_every_format(
    summary: Summary, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = Figure("novelty", tokens, "novelty", figures.DETAILS, unit="x", digits=1)
    monkeypatch.setattr(figures, "FIGURES", (*figures.FIGURES, added))
    for name in ("markdown", "latex"):
        text = render(summary, name)
        assert "losslessness & novelty" in text or "losslessness | novelty" in text
        assert "12.3x [11.0, 13.5]" in text
    page = render(summary, "html")
    assert 'data-value="12.345">12.3x <span class="interval">[11.0, 13.5]</span>' in page
    row = json.loads(render(summary, "json"))["rows"][1]
    assert (row["novelty"], row["novelty_ci"]) == (12.345, [11.0, 13.5])
    header, *_ = render(summary, "csv").splitlines()
    assert "novelty,novelty_low,novelty_high" in header
    console = Console(width=80, record=True, file=StringIO())
    console.print(rich_table(summary))
    shown = console.export_text()
    assert "novelty" in shown
    assert "[11.0, 13.5]" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_a_plot_added_to_the_tuple_is_a_file_and_in_the_page(
    summary: Summary, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def draw(scene: Scene) -> Picture:
        picture = Picture(figsize=(4, 2), layout="constrained")
        picture.subplots().plot([len(scene.lines)], [1], "o")
        return picture

    added = plots.Plot("novelty", "something that nobody has drawn", draw)
    monkeypatch.setattr(plots, "PLOTS", (*plots.PLOTS, added))
    names = {path.name for path in plots.save(summary, tmp_path / "plots")}
    assert {"novelty.png", "novelty.svg"} <= names
    page = render(summary, "html")
    assert "<figcaption>something that nobody has drawn</figcaption>" in page
    assert 'aria-label="something that nobody has drawn; the figures' in page


def test_a_format_added_to_the_table_is_rendered_and_named(
    summary: Summary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(formats.FORMATS, "python", "builtins:repr")
    assert render(summary, "python") == repr(summary)
    with pytest.raises(UserError, match=r"--format is markdown, .*, python, not 'pdf'"):
        render(summary, "pdf")


def test_the_help_names_every_format() -> None:
    shown = CliRunner().invoke(app, ["report", "--help"], env={"COLUMNS": "200"}).output
    for name in FORMATS:
        assert name in shown
