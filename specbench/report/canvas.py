"""What plots share: panels per suite, styles, legends, titles that fit, and files.

Every drafter has one place and one style in all plots. Markers and line styles differ along with
the colours, so that a grey print can be read as well.
"""

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from specbench.errors import writing
from specbench.report.cells import Figure as RowFigure
from specbench.report.figures import NONE, marks
from specbench.report.summary import Row
from specbench.stats.bootstrap import Array, Estimate
from specbench.stats.costs import Tuning

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, without its yellow and with its black last.

Readers with any form of colour blindness can tell them apart.
"""
MARKERS = "osD^vP*X<>hp"
LINES = ("-", "--", ":")
GREY = "#5f6670"
PANEL, NARROWEST = 3.1, 4.6
"""Inches of a panel's width, and of the narrowest picture."""
LABEL = 30
"""Characters in a line of a drafter's label or of the words beside a bar."""
INCHES = {7.5: 0.062, 8.5: 0.07, 11.0: 0.092}
"""Width of a character by font size, for texts that have to fit."""
Lines = dict[str, dict[str, Row]]


@dataclass(frozen=True)
class Scene:
    """What a table has to draw.

    Attributes:
        lines: by label, the rows with an answer by suite.
        suites: the suites with an answer, a panel each.
        tunings: what `specbench tune` wrote into the folders of the runs.
        baseline: the autoregressive lines, which most plots leave out.
    """

    lines: Lines
    suites: tuple[str, ...]
    tunings: tuple[Tuning, ...]
    baseline: Lines

    def rows(self, suite: str) -> list[Row | None]:
        """The row of every line on a suite, None without an answer there."""
        return [line.get(suite) for line in self.lines.values()]

    def style(self, label: str) -> dict[str, Any]:
        """How curves of a drafter look."""
        return style(list(self.lines).index(label), label)


def style(place: int, label: str) -> dict[str, Any]:
    """How the curve in that place looks, and its name in the legend."""
    return {
        "color": COLOURS[place % len(COLOURS)],
        "marker": MARKERS[place % len(MARKERS)],
        "linestyle": LINES[place // len(COLOURS) % len(LINES)],
        "markersize": 5.5,
        "linewidth": 1.4,
        "label": fill(label, LABEL),
    }


def bar_panels(scene: Scene, xlabel: str, draw: Callable[[Axes, list[Row | None]], None]) -> Figure:
    """One panel per suite with one bar per line, whose labels stand on the left."""
    names = [fill(label, LABEL) for label in scene.lines]
    rows = sum(1 + 0.5 * name.count("\n") for name in names)
    labels = 0.3 + INCHES[8.5] * max(len(part) for name in names for part in name.split("\n"))
    figure, axes = _panels(scene, labels, 1.1 + 0.34 * rows)
    for axis, suite in zip(axes, scene.suites, strict=True):
        draw(axis, scene.rows(suite))
        axis.set_xlabel(xlabel, fontsize=9)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].set_ylim(len(names) - 0.4, -0.6)
    return figure


def curve_panels(scene: Scene, draw: Callable[[Axes, str], None]) -> Figure:
    """One panel per suite with one curve per line, and a legend."""
    figure, axes = _panels(scene, 0.6, 3.0)
    for axis, suite in zip(axes, scene.suites, strict=True):
        draw(axis, suite)
        axis.label_outer(remove_inner_ticks=False)
    legend(figure, [Line2D([], [], **scene.style(label)) for label in scene.lines])
    return figure


def interval_bars(
    axis: Axes,
    rows: Sequence[Row | None],
    figure: RowFigure[Estimate],
    point_of: Callable[[Row], float] = lambda row: 0.0,
) -> None:
    """Bars with intervals; number and marks stand right of bar, interval, point and 1."""
    texts, starts = [], []
    for place, row in enumerate(rows):
        shown = marks(row) if row else ()
        estimate = figure.of(row) if row else NONE
        text, start = "no figure" if row else "no answer", 1.0
        if row and estimate.value is not None:
            flawed = any(mark.mark != "failed" for mark in shown)
            axis.barh(
                place, estimate.value, height=0.66, color="#9ecae9" if flawed else COLOURS[0],
                hatch="///" if flawed else None, edgecolor="white",
            )  # fmt: skip
            axis.hlines(place, *(estimate.interval or (0, 0)), color="black", linewidth=1.4)
            start = max(1.0, point_of(row), estimate.value, *(estimate.interval or ()))
            text = figure.line(estimate).text
        texts.append(fill(", ".join([text, *map(str, shown)]), LABEL))
        starts.append(start)
    axis.axvline(1, color="black", linewidth=1)
    beside(axis, starts, texts)


def stacked_bar(axis: Axes, place: int, widths: Sequence[float], colours: Sequence[Any]) -> None:
    """The pieces of one bar side by side, as one collection: rectangles are slow to draw."""
    ends = np.cumsum(widths)
    pieces = list(zip(ends - widths, widths, strict=True))
    axis.broken_barh(pieces, (place - 0.33, 0.66), facecolors=colours[: len(pieces)])


def curve(axis: Axes, xs: Sequence[float], points: Array, look: dict[str, Any]) -> None:
    """A curve in a band; ``points`` is ``[len(xs), 3]``: value, low and high end."""
    values, low, high = points.T
    axis.plot(xs, values, **look)
    axis.fill_between(xs, low, high, color=look["color"], alpha=0.12, linewidth=0)


def beside(axis: Axes, starts: Sequence[float], texts: Sequence[str]) -> None:
    """Words beside every bar, and axis limits that leave room for them."""
    gap, room = 0.02, PANEL - 0.35
    limit = max([*starts, 1e-9]) * 1.05
    for start, text in zip(starts, texts, strict=True):
        share = gap + INCHES[7.5] * max(map(len, text.split("\n"))) / room
        limit = max(limit, start / (1 - min(share, 0.85)))
    for place, (start, text) in enumerate(zip(starts, texts, strict=True)):
        axis.text(start + gap * limit, place, text, va="center", fontsize=7.5)
    axis.set_xlim(0, limit)


def plain(axis: Axes) -> None:
    """A grid behind, and no frame on the right and above."""
    axis.tick_params(labelsize=8.5)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(color="#e3e6ea", linewidth=0.8)
    axis.set_axisbelow(True)


def legend(figure: Figure, handles: Sequence[Artist], title: str = "") -> None:
    """A legend below the panels, in as many columns as fit; the figure grows by its rows."""
    labels = [str(handle.get_label()).split("\n") for handle in handles]
    column = 0.5 + INCHES[8.5] * max(len(part) for label in labels for part in label)
    columns = max(1, min(len(handles), int((figure.get_figwidth() - 0.2) / column)))
    rows = -(-len(handles) // columns) * max(map(len, labels)) + bool(title)
    figure.set_figheight(figure.get_figheight() + 0.1 + 0.17 * rows)
    figure.legend(
        handles=list(handles), title=title or None, loc="outside lower center", ncols=columns,
        fontsize=8.5, title_fontsize=8.5, frameon=False, handlelength=1.4, columnspacing=1.0,
    )  # fmt: skip


def colour_legend(
    figure: Figure, title: str, labels: Sequence[str], colours: Sequence[Any]
) -> None:
    """A legend of coloured pieces."""
    pairs = zip(colours, labels, strict=False)
    legend(figure, [Patch(color=colour, label=label) for colour, label in pairs], title)


def add_title(figure: Figure, title: str) -> None:
    """A title over the whole picture, in as many lines as it needs."""
    text = fill(title, int((figure.get_figwidth() - 0.2) / INCHES[11.0]))
    figure.set_figheight(figure.get_figheight() + 0.2 * text.count("\n"))
    figure.suptitle(text, fontsize=11, x=0.01, ha="left")


def svg(figure: Figure) -> str:
    """The picture as an ``<svg>`` element."""
    file = io.StringIO()
    write(figure, file, "svg")
    text = file.getvalue()
    return text[text.index("<svg") :]


def write(figure: Figure, file: Any, kind: str) -> None:
    """The picture as "png" or "svg", with the same bytes every time: no date, fixed ids."""
    with mpl.rc_context({"svg.hashsalt": "specbench", "svg.fonttype": "path"}):
        figure.savefig(
            file, format=kind, dpi=150,
            metadata={"Date": None} if kind == "svg" else {"Software": "specbench"},
        )  # fmt: skip


def save(pictures: Iterable[tuple[str, Figure]], folder: Path, kinds: Sequence[str]) -> list[Path]:
    """Write named pictures as files of every kind, and return the files.

    Raises:
        UserError: the folder cannot be made or written.
    """
    written = []
    with writing(f"--plots {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in pictures:
            for kind in kinds:
                written.append(folder / f"{name}.{kind}")
                write(figure, written[-1], kind)
    return written


def _panels(scene: Scene, left: float, height: float) -> tuple[Figure, Sequence[Axes]]:
    """One panel per suite side by side on common axes; ``left`` inches for labels."""
    width = max(NARROWEST, left + PANEL * len(scene.suites))
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, len(scene.suites), sharey=True, squeeze=False)[0]
    for axis, suite in zip(axes, scene.suites, strict=True):
        axis.set_title(fill(suite, LABEL), fontsize=10)
        plain(axis)
    return figure, axes
