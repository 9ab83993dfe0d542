"""Trend plots of a history: one picture per target and suite, AAL above speedup."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from specbench.regression.history import FIGURES, Point, change_points, series, several_settings
from specbench.report import canvas
from specbench.report.labels import noted
from specbench.report.runs import group_by


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    """Draw one PNG per target and suite, and return the paths; see `canvas.save`."""
    groups = group_by(points, lambda p: (p.target, p.suite))
    pictures = (
        (_name(target, suite), picture(found, f"{target} on {suite}"))
        for (target, suite), found in groups.items()
    )
    return canvas.save(pictures, folder, ["png"])


def picture(points: Sequence[Point], title: str) -> Figure:
    """AAL above speedup over the runs, one line per series."""
    oldest_first = sorted(points, key=lambda p: p.created)
    labels = {(p.created, p.run): (p.commit or p.run)[:8] for p in oldest_first}
    runs = list(labels)
    drafters = list(dict.fromkeys(p.drafter for p in points))
    figure = Figure(figsize=(max(7.0, 0.35 * len(runs) + 1), 6), layout="constrained")
    axes = figure.subplots(len(FIGURES), 1, sharex=True)
    for axis, name in zip(axes, FIGURES, strict=True):
        for group in series(p for p in points if p.figure == name).values():
            style = canvas.style(drafters.index(group[0].drafter), _label(points, group[0]))
            xs = [runs.index((p.created, p.run)) for p in group]
            bands = [(p.value, p.low or p.value, p.high or p.value) for p in group]
            canvas.curve(axis, xs, np.array(bands), style)
            for index in change_points(group):
                axis.axvline(xs[index] - 0.5, color=style["color"], linestyle=":", linewidth=1)
        axis.set_ylabel("tokens per round (AAL)" if name == "AAL" else "speedup")
        canvas.plain(axis)
    axes[-1].set_xticks(range(len(runs)), labels.values(), rotation=60, fontsize=7)
    lines = [line for axis in axes for line in axis.get_lines() if line.get_marker() != "None"]
    canvas.legend(figure, list({line.get_label(): line for line in lines}.values()))
    canvas.add_title(figure, f"{title} (band: 95 % interval; dotted: a new level begins)")
    return figure


def _label(points: Sequence[Point], one: Point) -> str:
    """The drafter, with the machine and the settings if the points have several."""
    several = len({p.machine for p in points}) > 1 and one.figure == "speedup"
    settings = f"settings {one.settings}" if several_settings(points, one) else ""
    return noted(one.drafter, one.machine if several else "", settings)


def _name(target: str, suite: str) -> str:
    name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{Path(target).name}-{suite}").strip("-.")
    return f"history-{name}"
