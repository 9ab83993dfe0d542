"""Trend plots of a history: one picture per target and suite, AAL above speedup."""

import re
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specbench.errors import UserError
from specbench.regression.history import (
    FIGURES,
    Point,
    change_points,
    series,
    several_settings,
)
from specbench.report import canvas
from specbench.report.palette import COLOURS


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    """Draw one PNG per target and suite, and return the paths.

    Raises:
        UserError: the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder} cannot be made: {error.strerror}.") from error
    paths = []
    for target, suite in dict.fromkeys((p.target, p.suite) for p in points):
        chosen = [p for p in points if (p.target, p.suite) == (target, suite)]
        name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{Path(target).name}-{suite}").strip("-.")
        path = folder / f"history-{name}.png"
        canvas.write(picture(chosen, f"{target} on {suite}"), path, "png")
        paths.append(path)
    return paths


def picture(points: Sequence[Point], title: str) -> Figure:
    """AAL above speedup over the runs, one line per series."""
    runs = list(dict.fromkeys((p.created, p.run) for p in sorted(points, key=lambda p: p.created)))
    labels = {(p.created, p.run): (p.commit or p.run)[:8] for p in points}
    drafters = list(dict.fromkeys(p.drafter for p in points))
    figure = Figure(figsize=(max(7.0, 0.35 * len(runs) + 1), 6), layout="constrained")
    axes = figure.subplots(len(FIGURES), 1, sharex=True)
    for axis, name in zip(axes, FIGURES, strict=True):
        for group in series(p for p in points if p.figure == name).values():
            place = drafters.index(group[0].drafter)
            _line(axis, group, runs, place, fill(_label(points, group[0]), canvas.LABEL))
        axis.set_ylabel("tokens per round (AAL)" if name == "AAL" else "speedup")
        canvas.plain(axis)
    axes[-1].set_xticks(range(len(runs)), [labels[run] for run in runs], rotation=60, fontsize=7)
    lines = [line for axis in axes for line in axis.get_lines() if line.get_marker() != "None"]
    canvas.legend(figure, list({line.get_label(): line for line in lines}.values()))
    canvas.add_title(figure, f"{title} (band: 95 % interval; dotted: a new level begins)")
    return figure


def _label(points: Sequence[Point], one: Point) -> str:
    """The drafter, with the machine and the settings if the points have several."""
    several = len({p.machine for p in points}) > 1 and one.figure == "speedup"
    notes = [one.machine] if several else []
    notes += [f"settings {one.settings}"] if several_settings(points, one) else []
    return one.drafter + (f" ({'; '.join(notes)})" if notes else "")


def _line(
    axis: Axes, group: list[Point], runs: list[tuple[str, str]], place: int, label: str
) -> None:
    xs = [runs.index((p.created, p.run)) for p in group]
    colour = COLOURS[place % len(COLOURS)]
    marker = canvas.MARKERS[place % len(canvas.MARKERS)]
    values = [p.value for p in group]
    axis.plot(xs, values, marker=marker, markersize=4, color=colour, label=label)
    low = [p.value if p.low is None else p.low for p in group]
    high = [p.value if p.high is None else p.high for p in group]
    axis.fill_between(xs, low, high, color=colour, alpha=0.15, linewidth=0)
    for index in change_points(group):
        axis.axvline(xs[index] - 0.5, color=colour, linestyle=":", linewidth=1)
