"""Trend plots of a history: a figure a target and suite, AAL above speedup."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

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

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette without its yellow."""


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    """One PNG a target and suite; the paths.

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
        _figure(chosen, f"{target} on {suite}").savefig(path, dpi=120)
        paths.append(path)
    return paths


def _figure(points: Sequence[Point], title: str) -> Figure:
    runs = list(dict.fromkeys((p.created, p.run) for p in sorted(points, key=lambda p: p.created)))
    labels = {(p.created, p.run): (p.commit or p.run)[:8] for p in points}
    drafters = list(dict.fromkeys(p.drafter for p in points))
    figure = Figure(figsize=(max(7.0, 0.35 * len(runs) + 3), 7), layout="constrained")
    axes = figure.subplots(len(FIGURES), 1, sharex=True)
    for axis, name in zip(axes, FIGURES, strict=True):
        for group in series(p for p in points if p.figure == name).values():
            colour = COLOURS[drafters.index(group[0].drafter) % len(COLOURS)]
            _line(axis, group, runs, colour, settings=several_settings(points, group[0]))
        axis.set_ylabel("tokens per round (AAL)" if name == "AAL" else "speedup")
        axis.grid(axis="y", alpha=0.3)
    axes[0].set_title(f"{title}\nband: 95 % interval; dotted: a new level begins", fontsize=10)
    axes[0].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    axes[-1].set_xticks(range(len(runs)), [labels[run] for run in runs], rotation=60, fontsize=7)
    return figure


def _line(
    axis: Axes, group: list[Point], runs: list[tuple[str, str]], colour: str, *, settings: bool
) -> None:
    xs = [runs.index((p.created, p.run)) for p in group]
    values = [p.value for p in group]
    notes = [group[0].machine] if group[0].figure == "speedup" else []
    notes += [f"settings {group[0].settings}"] if settings else []
    label = group[0].drafter + (f" ({'; '.join(notes)})" if notes else "")
    axis.plot(xs, values, marker="o", markersize=3, color=colour, label=label)
    low = [p.value if p.low is None else p.low for p in group]
    high = [p.value if p.high is None else p.high for p in group]
    axis.fill_between(xs, low, high, color=colour, alpha=0.15, linewidth=0)
    for index in change_points(group):
        axis.axvline(xs[index] - 0.5, color=colour, linestyle=":", linewidth=1)
