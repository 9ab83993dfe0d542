"""The plots of a report, stated once: files and pages loop over `PLOTS`."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specbench.records.traces import PHASES
from specbench.report import canvas
from specbench.report.canvas import COLOURS, Scene
from specbench.report.captions import headed
from specbench.report.figures import AAL, ACCEPTANCE, LOOPING, NONE, SPEEDUP, WITHOUT_LOOPS
from specbench.report.runs import group_by
from specbench.report.summary import Row, Summary, Table
from specbench.stats import metrics
from specbench.stats.costs import load_tuning

LONGEST = 12
"""Rounds that emitted as many tokens or more share one colour."""


@dataclass(frozen=True)
class Plot:
    """One plot of a table.

    Attributes:
        name: of its files.
        title: what it shows; it stands over the picture and is its caption in a page.
        draw: the picture; None if the table has nothing to draw.
    """

    name: str
    title: str
    draw: Callable[[Scene], Figure | None]


def pictures(table: Table, heading: str) -> list[tuple[Plot, Figure]]:
    """Every plot that the table has the figures for."""
    scene = _scene(table)
    drawn = [(plot, plot.draw(scene)) for plot in PLOTS] if scene.lines else []
    found = [(plot, figure) for plot, figure in drawn if figure is not None]
    for plot, figure in found:
        canvas.add_title(figure, f"{heading}: {plot.title}")
    return found


def save(summary: Summary, folder: Path) -> list[Path]:
    """Write every plot of every table as PNG and SVG into ``folder``; see `canvas.save`."""
    several = len(summary.tables) > 1
    named = (
        (plot.name + (f"-{number}" if several else ""), figure)
        for number, (heading, table) in enumerate(headed(summary), 1)
        for plot, figure in pictures(table, heading)
    )
    return canvas.save(named, folder, ("png", "svg"))


def _scene(table: Table) -> Scene:
    answered = {
        label: {suite: row for suite, row in line.items() if row.answers}
        for label, line in table.lines.items()
    }
    baseline = {k: v for k, v in answered.items() if any(r.entry.is_baseline for r in v.values())}
    lines = {k: v for k, v in answered.items() if v and k not in baseline}
    suites = tuple(s for s in table.suites if any(s in line for line in lines.values()))
    folders = dict.fromkeys(row.entry.folder for row in table.rows)
    tunings = tuple(tuning for folder in folders if (tuning := load_tuning(folder)))
    return Scene(lines, suites, tunings, baseline)


def _speedup(scene: Scene) -> Figure:
    draw = partial(canvas.interval_bars, figure=SPEEDUP)
    return canvas.bar_panels(scene, "speedup (1: autoregressive)", draw)


def _aal(scene: Scene) -> Figure:
    def draw(axis: Axes, rows: list[Row | None]) -> None:
        canvas.interval_bars(axis, rows, AAL, _without_loops)
        for place, row in enumerate(rows):
            if row and _without_loops(row):
                axis.plot(_without_loops(row), place, "D", color="black", markersize=4)

    return canvas.bar_panels(scene, "AAL, pooled (diamond: without loops)", draw)


def _without_loops(row: Row) -> float:
    """Its AAL without loops if some answers loop, else 0."""
    return (WITHOUT_LOOPS.of(row).value or 0.0) if LOOPING.of(row).value else 0.0


def _rounds(scene: Scene) -> Figure:
    found = [row for line in scene.lines.values() for row in line.values()]
    emitted = {row: metrics.emitted_histogram(row.entry.counted) for row in found}
    longest = min(LONGEST, max((n for counts in emitted.values() for n in counts), default=1))
    colours = list(mpl.colormaps["viridis"](np.linspace(0, 1, longest) ** 0.75))

    def draw(axis: Axes, rows: list[Row | None]) -> None:
        for place, row in enumerate(rows):
            shares = [0.0] * longest
            for length, count in (emitted[row] if row else {}).items():
                shares[min(length, longest) - 1] += count
            total = sum(shares) or 1
            canvas.stacked_bar(axis, place, [share / total for share in shares], colours)
        axis.set_xlim(0, 1)

    figure = canvas.bar_panels(scene, "share of rounds", draw)
    labels = [str(length) for length in range(1, longest + 1)]
    labels[-1] += " or more" if longest == LONGEST else ""
    canvas.colour_legend(figure, "tokens emitted in the round", labels, colours)
    return figure


def _time(scene: Scene) -> Figure | None:
    """The baseline's time stands beside the drafters'."""
    lines = scene.baseline | scene.lines
    if not any(row.entry.traced for line in lines.values() for row in line.values()):
        return None

    def draw(axis: Axes, rows: list[Row | None]) -> None:
        splits = [row and row.entry.traced for row in rows]
        for place, one in enumerate(splits):
            if one:
                parts = [one.milliseconds[phase] for phase in PHASES]
                canvas.stacked_bar(axis, place, parts, COLOURS)
        texts = [f"{one.total:.3g} ms" if one else "not traced" for one in splits]
        canvas.beside(axis, [one.total if one else 0.0 for one in splits], texts)

    figure = canvas.bar_panels(replace(scene, lines=lines), "milliseconds per round", draw)
    canvas.colour_legend(figure, "phase", PHASES, COLOURS)
    return figure


def _acceptance(scene: Scene) -> Figure:
    deepest = max(len(ACCEPTANCE.of(row)) for line in scene.lines.values() for row in line.values())

    def draw(axis: Axes, suite: str) -> None:
        for label, row in zip(scene.lines, scene.rows(suite), strict=True):
            known = [e for e in ACCEPTANCE.of(row) if e.value is not None] if row else []
            ends = [(e.value, *(e.interval or (e.value, e.value))) for e in known]
            points = 100 * np.array(ends).reshape(-1, 3)
            canvas.curve(axis, range(1, len(known) + 1), points, scene.style(label))
        axis.set_ylim(0, 102)
        axis.set_xlim(0.7, max(deepest, 1) + 0.3)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set_xlabel("depth", fontsize=9)
        axis.set_ylabel("% of rounds", fontsize=9)

    return canvas.curve_panels(scene, draw)


def _scatter(scene: Scene) -> Figure:
    def draw(axis: Axes, suite: str) -> None:
        for label, row in zip(scene.lines, scene.rows(suite), strict=True):
            aal, speedup = (AAL.of(row), SPEEDUP.of(row)) if row else (NONE, NONE)
            if aal.value is None or speedup.value is None:
                continue
            style = scene.style(label) | {"linestyle": "none"}
            axis.plot(aal.value, speedup.value, **style)
            if aal.interval and speedup.interval:
                axis.hlines(speedup.value, *aal.interval, color=style["color"], linewidth=0.9)
                axis.vlines(aal.value, *speedup.interval, color=style["color"], linewidth=0.9)
        modelled = _model_curves(axis, suite, scene)
        axis.axhline(1, color="black", linewidth=1)
        axis.set_xlim(left=0.9)
        axis.set_ylim(bottom=0)
        axis.set_xlabel(f"AAL, pooled{' (line: cost model)' if modelled else ''}", fontsize=9)
        axis.set_ylabel("speedup", fontsize=9)

    return canvas.curve_panels(scene, draw)


def _model_curves(axis: Axes, suite: str, scene: Scene) -> bool:
    """The cost model of a drafter over its draft lengths, a thin line in its style."""
    drawn = False
    found = [one for tuning in scene.tunings if tuning.suite == suite for one in tuning.drafters]
    for tuned, (label, line) in itertools.product(found, scene.lines.items()):
        points = [(d.aal.value, d.model) for d in tuned.depths if d.aal.value and d.model]
        own = (line[suite].cell.drafter, line[suite].cell.options) if suite in line else None
        if points and own == (tuned.drafter, tuned.options):
            style = scene.style(label) | {"marker": ".", "markersize": 3, "linewidth": 0.8}
            axis.plot(*zip(*points, strict=True), **style)
            drawn = True
    return drawn


def _verify_cost(scene: Scene) -> Figure | None:
    """A line per context length; the band is between the quartiles."""
    if not scene.tunings:
        return None
    figure = Figure(figsize=(5.2, 3.4), layout="constrained")
    axis = figure.subplots()
    costs = [
        (f"context {cost.context}, {tuning.dtype} on {tuning.device}", cost)
        for tuning in scene.tunings
        for cost in tuning.verify
    ]
    for place, (name, found) in enumerate(group_by(costs, lambda one: one[0]).items()):
        rows = [cost.rows for _, cost in found]
        points = np.array([(cost.milliseconds, cost.low, cost.high) for _, cost in found])
        canvas.curve(axis, rows, points, canvas.style(place, name))
    canvas.plain(axis)
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set_ylim(bottom=0)
    axis.set_xlabel("rows verified", fontsize=9)
    axis.set_ylabel("milliseconds", fontsize=9)
    canvas.legend(figure, axis.get_lines())
    return figure


PLOTS = (
    Plot("speedup", "speedup of each drafter, with intervals", _speedup),
    Plot("aal", "average acceptance length (AAL) of each drafter, with intervals", _aal),
    Plot("rounds", "share of rounds by the tokens they emitted", _rounds),
    Plot("acceptance", "share of rounds that reached each depth", _acceptance),
    Plot("aal-speedup", "speedup against AAL", _scatter),
    Plot("time", "milliseconds per round by phase", _time),
    Plot("verify-cost", "milliseconds of a verification by rows", _verify_cost),
)
