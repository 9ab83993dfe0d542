"""The plots of a report, stated once: files and pages loop over `PLOTS`."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specbench.errors import UserError
from specbench.records.traces import PHASES
from specbench.report import canvas
from specbench.report.canvas import Scene
from specbench.report.captions import headings
from specbench.report.figures import AAL, ACCEPTANCE, LOOPING, NONE, SPEEDUP, WITHOUT_LOOPS
from specbench.report.palette import COLOURS
from specbench.report.summary import Row, Summary, Table
from specbench.stats import metrics
from specbench.stats.costs import Tuned, VerifyCost, load_tuning

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
    """Write every plot of every table as PNG and SVG into ``folder``, and return the files.

    Raises:
        UserError: the folder cannot be made or written.
    """
    written = []
    tables = zip(summary.tables, headings(summary), strict=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number, (table, heading) in enumerate(tables, 1):
            suffix = f"-{number}" if len(summary.tables) > 1 else ""
            for (plot, figure), kind in itertools.product(pictures(table, heading), ("png", "svg")):
                written.append(folder / f"{plot.name}{suffix}.{kind}")
                canvas.write(figure, written[-1], kind)
    except OSError as error:
        raise UserError(f"--plots {folder} cannot be written: {error.strerror}.") from error
    return written


def _scene(table: Table) -> Scene:
    answered = {
        label: {suite: row for suite, row in line.items() if row.answers}
        for label, line in table.lines.items()
    }
    baseline = {k: v for k, v in answered.items() if any(r.is_baseline for r in v.values())}
    lines = {k: v for k, v in answered.items() if v and k not in baseline}
    suites = tuple(s for s in table.suites if any(s in line for line in lines.values()))
    folders = dict.fromkeys(row.entry.folder for row in table.rows)
    tunings = tuple(tuning for folder in folders if (tuning := load_tuning(folder)))
    return Scene(lines, suites, tunings, baseline)


def _speedup(scene: Scene) -> Figure:
    def draw(axis: Axes, suite: str, scene: Scene) -> None:
        canvas.interval_bars(axis, suite, scene, SPEEDUP)
        axis.set_xlabel("speedup (1: autoregressive)", fontsize=9)

    return canvas.bar_panels(scene, draw)


def _aal(scene: Scene) -> Figure:
    def draw(axis: Axes, suite: str, scene: Scene) -> None:
        canvas.interval_bars(axis, suite, scene, AAL, _without_loops)
        for place, row in enumerate(scene.rows(suite)):
            if row and _without_loops(row):
                axis.plot(_without_loops(row), place, "D", color="black", markersize=4)
        axis.set_xlabel("AAL, pooled (diamond: without loops)", fontsize=9)

    return canvas.bar_panels(scene, draw)


def _without_loops(row: Row) -> float:
    """Its AAL without loops if some answers loop, else 0."""
    return (WITHOUT_LOOPS.of(row).value or 0.0) if LOOPING.of(row).value else 0.0


def _rounds(scene: Scene) -> Figure:
    rows = [row for line in scene.lines.values() for row in line.values()]
    emitted = {row: metrics.emitted_histogram(row.entry.counted) for row in rows}
    longest = min(LONGEST, max((n for counts in emitted.values() for n in counts), default=1))
    colours = list(mpl.colormaps["viridis"](np.linspace(0, 1, longest) ** 0.75))

    def draw(axis: Axes, suite: str, scene: Scene) -> None:
        for place, row in enumerate(scene.rows(suite)):
            shares = [0.0] * longest
            for length, count in (emitted[row] if row else {}).items():
                shares[min(length, longest) - 1] += count
            total = sum(shares) or 1
            canvas.stacked_bar(axis, place, [share / total for share in shares], colours)
        axis.set_xlim(0, 1)
        axis.set_xlabel("share of rounds", fontsize=9)

    figure = canvas.bar_panels(scene, draw)
    labels = [str(length) for length in range(1, longest + 1)]
    labels[-1] += " or more" if longest == LONGEST else ""
    canvas.colour_legend(figure, "tokens emitted in the round", labels, colours)
    return figure


def _time(scene: Scene) -> Figure | None:
    """The baseline's time stands beside the drafters'."""
    lines = scene.baseline | scene.lines
    if not any(row.entry.traced for line in lines.values() for row in line.values()):
        return None

    def draw(axis: Axes, suite: str, scene: Scene) -> None:
        splits = [row and row.entry.traced for row in scene.rows(suite)]
        for place, one in enumerate(splits):
            if one:
                parts = [one.milliseconds[phase] for phase in PHASES]
                canvas.stacked_bar(axis, place, parts, COLOURS)
        texts = [f"{one.total:.3g} ms" if one else "not traced" for one in splits]
        canvas.beside(axis, [one.total if one else 0.0 for one in splits], texts)
        axis.set_xlabel("milliseconds per round", fontsize=9)

    figure = canvas.bar_panels(replace(scene, lines=lines), draw)
    canvas.colour_legend(figure, "phase", PHASES, COLOURS)
    return figure


def _acceptance(scene: Scene) -> Figure:
    deepest = max(len(ACCEPTANCE.of(row)) for line in scene.lines.values() for row in line.values())

    def draw(axis: Axes, suite: str, scene: Scene) -> None:
        for label, row in zip(scene.lines, scene.rows(suite), strict=True):
            known = [(e, e.value) for e in ACCEPTANCE.of(row) if e.value is not None] if row else []
            depths = np.arange(1, len(known) + 1)
            style = scene.style(label)
            axis.plot(depths, [100 * value for _, value in known], **style)
            low, high = np.array([e.interval or (v, v) for e, v in known]).reshape(-1, 2).T * 100
            axis.fill_between(depths, low, high, color=style["color"], alpha=0.1, linewidth=0)
        axis.set_ylim(0, 102)
        axis.set_xlim(0.7, max(deepest, 1) + 0.3)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set_xlabel("depth", fontsize=9)
        axis.set_ylabel("% of rounds", fontsize=9)

    return canvas.curve_panels(scene, draw)


def _scatter(scene: Scene) -> Figure:
    def draw(axis: Axes, suite: str, scene: Scene) -> None:
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
        if points and suite in line and _is_of(tuned, line[suite]):
            style = scene.style(label) | {"marker": ".", "markersize": 3, "linewidth": 0.8}
            axis.plot(*zip(*points, strict=True), **style)
            drawn = True
    return drawn


def _is_of(tuned: Tuned, row: Row) -> bool:
    return (tuned.drafter, tuned.options) == (row.cell.drafter, row.cell.options)


def _verify_cost(scene: Scene) -> Figure | None:
    """A line per context length; the band is between the quartiles."""
    if not scene.tunings:
        return None
    figure = Figure(figsize=(5.2, 3.4), layout="constrained")
    axis = figure.subplots()
    costs: dict[str, list[VerifyCost]] = {}
    for tuning in scene.tunings:
        for cost in tuning.verify:
            name = f"context {cost.context}, {tuning.dtype} on {tuning.device}"
            costs.setdefault(name, []).append(cost)
    styles = zip(itertools.cycle(COLOURS), itertools.cycle(canvas.MARKERS))
    for (name, curve), (colour, marker) in zip(costs.items(), styles, strict=False):
        rows = [c.rows for c in curve]
        axis.plot(rows, [c.milliseconds for c in curve], color=colour, marker=marker, label=name)
        low, high = [c.low for c in curve], [c.high for c in curve]
        axis.fill_between(rows, low, high, color=colour, alpha=0.15, linewidth=0)
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
