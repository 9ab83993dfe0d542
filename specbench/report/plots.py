"""A table as pictures: a panel a suite, a drafter in one place and one style in all of them.

Colours are those of Okabe and Ito, told apart by colour-blind readers too; markers and line styles
differ with them, so that a grey print does as well.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from specbench.errors import UserError
from specbench.records.traces import PHASES
from specbench.report.captions import headings
from specbench.report.summary import Row, Summary, Table
from specbench.report.text import MARKS, marks
from specbench.stats.bootstrap import Estimate

if TYPE_CHECKING:
    from specbench.run.tune import Tuning, VerifyCost

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vP*X<>hp"
LINES = ("-", "--", ":")
GREY = "#5f6670"
LONGEST = 12
"""Rounds that emitted as many tokens or more are drawn as one."""
NONE = Estimate(None, None, 0)
Lines = dict[str, dict[str, Row]]
Draw = Callable[[Axes, str, Lines], None]


def figures(table: Table, heading: str) -> dict[str, Figure]:
    """By name, every picture that the table has the figures for."""
    answered = {label: line for label, line in table.lines if any(r.answers for r in line.values())}
    lines = {
        label: line
        for label, line in answered.items()
        if not all(row.is_baseline for row in line.values())
    }
    if not lines:
        return {}
    drafters = len(lines)
    # The legend below the curves grows with the drafters, and would else eat the panels.
    bars, curves = 1.3 + 0.34 * drafters, 3.2 + 0.13 * drafters
    drawn = {
        "speedup": _panels(table, lines, _speedup, "speedup over autoregressive decoding", bars),
        "aal": _panels(table, lines, _aal, "AAL (tokens a round)", bars),
        "rounds": _panels(table, lines, _rounds, "share of rounds by tokens emitted", bars),
        "acceptance": _panels(
            table, lines, _acceptance, "share of rounds that reached a depth", curves
        ),
        "aal-speedup": _panels(table, lines, _scatter, "speedup against AAL", curves),
    }
    if any(row.entry.traced for line in answered.values() for row in line.values()):
        drawn["time"] = _panels(table, answered, _time, "where a round's time goes", bars + 0.34)
        _colour_legend(drawn["time"], "phase", PHASES, COLOURS)
    tunings = _tunings(table)
    if tunings:
        _model_curves(drawn["aal-speedup"], lines, tunings)
        drawn["verify-cost"] = _verify_cost(tunings)
    for name in ("acceptance", "aal-speedup"):
        _legend(drawn[name], lines)
    _rounds_legend(drawn["rounds"], lines)
    for figure in drawn.values():
        title = figure.get_suptitle()
        figure.suptitle(f"{heading}: {title}", fontsize=11, x=0.01, ha="left")
    return drawn


def save(summary: Summary, folder: Path) -> list[Path]:
    """Every picture of every table as PNG and SVG in ``folder``; the files are returned.

    Raises:
        UserError: the folder cannot be made or written.
    """
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number, (table, heading) in enumerate(
            zip(summary.tables, headings(summary), strict=True), 1
        ):
            suffix = f"-{number}" if len(summary.tables) > 1 else ""
            for name, figure in figures(table, heading).items():
                for kind in ("png", "svg"):
                    written.append(folder / f"{name}{suffix}.{kind}")
                    _write(figure, written[-1], kind)
    except OSError as error:
        raise UserError(f"--plots {folder} cannot be written: {error.strerror}.") from error
    return written


def svg(figure: Figure) -> str:
    """The picture as an ``<svg>`` element."""
    file = io.StringIO()
    _write(figure, file, "svg")
    text = file.getvalue()
    return text[text.index("<svg") :]


def _write(figure: Figure, file: Any, kind: str) -> None:
    """The same bytes every time: no date, and ids from a fixed salt."""
    with mpl.rc_context({"svg.hashsalt": "specbench", "svg.fonttype": "path"}):
        figure.savefig(
            file, format=kind, dpi=150,
            metadata={"Date": None} if kind == "svg" else {"Software": "specbench"},
        )  # fmt: skip


def _panels(table: Table, lines: Lines, draw: Draw, title: str, height: float) -> Figure:
    """One panel a suite that has answers, side by side on common axes."""
    suites = [s for s in table.suites if any(_has(line, s) for line in lines.values())]
    bars = draw in (_speedup, _aal, _rounds, _time)
    width = (max(map(len, lines)) * 0.075 if bars else 0.6) + 3.1 * len(suites)
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, len(suites), sharey=True, squeeze=False)[0]
    for axis, suite in zip(axes, suites, strict=True):
        axis.set_title(suite, fontsize=10)
        axis.tick_params(labelsize=8.5)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(color="#e3e6ea", linewidth=0.8)
        axis.set_axisbelow(True)
        draw(axis, suite, lines)
    if bars:
        axes[0].set_yticks(range(len(lines)), list(lines))
        axes[0].set_ylim(len(lines) - 0.4, -0.6)
    figure.suptitle(title)
    return figure


def _has(line: dict[str, Row], suite: str) -> bool:
    return suite in line and line[suite].answers > 0


def _speedup(axis: Axes, suite: str, lines: Lines) -> None:
    _bars(axis, suite, lines, lambda row: row.speedup, "{:.2f}x")
    axis.axvline(1, color="black", linewidth=1)
    axis.set_xlabel("speedup (1: autoregressive)", fontsize=9)


def _aal(axis: Axes, suite: str, lines: Lines) -> None:
    _bars(axis, suite, lines, lambda row: row.aal_pooled, "{:.2f}", _without_loops)
    axis.axvline(1, color="black", linewidth=1)
    for place, line in enumerate(lines.values()):
        if suite in line and _without_loops(line[suite]):
            axis.plot(_without_loops(line[suite]), place, "D", color="black", markersize=4)
    axis.set_xlabel("AAL, pooled (diamond: without loops)", fontsize=9)


def _bars(
    axis: Axes,
    suite: str,
    lines: Lines,
    figure_of: Callable[[Row], Estimate],
    form: str,
    point_of: Callable[[Row], float] = lambda row: 0.0,
) -> None:
    """Bars with intervals; figure and marks stand beyond them, beyond 1 and the row's point."""
    rows = [line.get(suite) for line in lines.values()]
    ends = [max(point_of(row), _end(figure_of(row))) if row else 0.0 for row in rows]
    reach = max([1.0, *ends])
    for place, row in enumerate(rows):
        estimate = figure_of(row) if row else NONE
        if row is None or estimate.value is None:
            text = ", ".join(["no figure", *marks(row)]) if row else "not run"
            axis.text(1 + reach * 0.03, place, text, va="center", fontsize=7.5, color=GREY)
            continue
        flawed = any(mark in MARKS for mark in marks(row))
        axis.barh(
            place, estimate.value, height=0.66, color="#9ecae9" if flawed else COLOURS[0],
            hatch="///" if flawed else None, edgecolor="white",
        )  # fmt: skip
        if estimate.interval:
            axis.hlines(place, *estimate.interval, color="black", linewidth=1.4)
        text = ", ".join([form.format(estimate.value), *marks(row)])
        start = max(1.0, ends[place]) + reach * 0.03
        axis.text(start, place, text, va="center", fontsize=7.5)
    crowded = any(marks(row) for row in rows if row)
    axis.set_xlim(0, max(reach, 1.4) * (1.5 if crowded else 1.2))


def _end(estimate: Estimate) -> float:
    return max(estimate.value or 0.0, *(estimate.interval or (0.0,)))


def _without_loops(row: Row) -> float:
    """Its AAL without loops where there are loops, else 0."""
    return (row.aal_without_loops.value or 0.0) if row.looping.value else 0.0


def _rounds(axis: Axes, suite: str, lines: Lines) -> None:
    longest = _longest(lines)
    for place, line in enumerate(lines.values()):
        if not _has(line, suite):
            axis.text(0.02, place, "no answer", va="center", fontsize=7.5, color=GREY)
            continue
        counts = line[suite].emitted
        total = sum(counts.values()) or 1
        shares = [0.0] * longest
        for length, count in counts.items():
            shares[min(length, longest) - 1] += count / total
        _stack(axis, place, shares, _ramp(longest))
    axis.set_xlim(0, 1)
    axis.set_xlabel("share of rounds", fontsize=9)


def _stack(axis: Axes, place: int, widths: Sequence[float], colours: Sequence[Any]) -> None:
    """Pieces of one bar behind one another; a rectangle each would be slow to draw."""
    ends = np.cumsum(widths)
    pieces = list(zip(ends - widths, widths, strict=True))
    axis.broken_barh(pieces, (place - 0.33, 0.66), facecolors=colours[: len(pieces)])


def _rounds_legend(figure: Figure, lines: Lines) -> None:
    lengths = [str(length) for length in range(1, _longest(lines) + 1)]
    if len(lengths) == LONGEST:
        lengths[-1] += " or more"
    _colour_legend(figure, "tokens emitted in the round", lengths, _ramp(len(lengths)))


def _longest(lines: Lines) -> int:
    """Tokens of the longest round in any panel, so that all share their colours."""
    rows = (row for line in lines.values() for row in line.values())
    return min(LONGEST, max((length for row in rows for length in row.emitted), default=1))


def _ramp(lengths: int) -> list[Any]:
    return list(mpl.colormaps["viridis"](np.linspace(0, 1, lengths) ** 0.75))


def _rows(lines: Lines, suite: str) -> list[Row]:
    return [line[suite] for line in lines.values() if suite in line]


def _time(axis: Axes, suite: str, lines: Lines) -> None:
    for place, line in enumerate(lines.values()):
        one = line[suite].entry.traced if suite in line else None
        if one is None:
            axis.text(0, place, " not traced", va="center", fontsize=7.5, color=GREY)
            continue
        parts = [one.milliseconds[phase] for phase in PHASES]
        _stack(axis, place, parts, COLOURS)
        axis.text(sum(parts), place, f" {sum(parts):.3g} ms", va="center", fontsize=7.5)
    traced = [row.entry.traced for row in _rows(lines, suite) if row.entry.traced]
    axis.set_xlim(0, 1.25 * max((one.total for one in traced), default=1.0) or 1.0)
    axis.set_xlabel("milliseconds a round", fontsize=9)


def _colour_legend(
    figure: Figure, title: str, labels: Sequence[str], colours: Sequence[Any]
) -> None:
    handles = [Patch(color=c, label=text) for c, text in zip(colours, labels, strict=False)]
    figure.legend(
        handles=handles, title=title, loc="outside lower center", ncols=len(labels), fontsize=8,
        title_fontsize=8.5, frameon=False, handlelength=1, columnspacing=0.9,
    )  # fmt: skip


def _acceptance(axis: Axes, suite: str, lines: Lines) -> None:
    deepest = 1
    for label, line in lines.items():
        shares = line[suite].acceptance if _has(line, suite) else ()
        known = [e for e in shares if e.value is not None]
        if not known:
            continue
        values = [e.value or 0.0 for e in known]
        depths = np.arange(1, len(known) + 1)
        style = _style(label, lines)
        axis.plot(depths, 100 * np.array(values), **style)
        ends = 100 * np.array([e.interval or (v, v) for e, v in zip(known, values, strict=True)])
        axis.fill_between(depths, *ends.T, color=style["color"], alpha=0.1, linewidth=0)
        deepest = max(deepest, len(known))
    axis.set_ylim(0, 100)
    axis.set_xlim(0.7, deepest + 0.3)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlabel("depth", fontsize=9)
    axis.set_ylabel("% of rounds", fontsize=9)
    axis.label_outer(remove_inner_ticks=False)


def _scatter(axis: Axes, suite: str, lines: Lines) -> None:
    for label, line in lines.items():
        row = line.get(suite)
        aal, speedup = (row.aal_pooled, row.speedup) if row else (NONE, NONE)
        if aal.value is None or speedup.value is None:
            continue
        style = _style(label, lines) | {"linestyle": "none"}
        axis.plot(aal.value, speedup.value, **style)
        if aal.interval and speedup.interval:
            axis.hlines(speedup.value, *aal.interval, color=style["color"], linewidth=0.9)
            axis.vlines(aal.value, *speedup.interval, color=style["color"], linewidth=0.9)
    axis.axhline(1, color="black", linewidth=1)
    axis.set_xlim(left=0.9)
    axis.set_ylim(bottom=0)
    axis.set_xlabel("AAL, pooled", fontsize=9)
    axis.set_ylabel("speedup", fontsize=9)
    axis.label_outer(remove_inner_ticks=False)


def _tunings(table: Table) -> list[Tuning]:
    """What `specbench tune` wrote into the folders of the runs."""
    folders = dict.fromkeys(row.entry.folder for _, row in table.rows)
    if not any((folder / "tune.json").exists() for folder in folders):
        return []
    from specbench.run.tune import load_tuning

    return [tuning for folder in folders if (tuning := load_tuning(folder))]


def _model_curves(figure: Figure, lines: Lines, tunings: Sequence[Tuning]) -> None:
    """The cost model of a drafter over its draft lengths, a thin line in its style."""
    axes = {axis.get_title(): axis for axis in figure.axes}
    for tuning, label in itertools.product(tunings, lines):
        row = lines[label].get(tuning.suite)
        for tuned in tuning.drafters:
            if not row or (tuned.drafter, tuned.options) != (row.cell.drafter, row.cell.options):
                continue
            points = [
                (d.aal.value, d.model) for d in tuned.depths if d.aal.value and d.model is not None
            ]
            if points and tuning.suite in axes:
                style = _style(label, lines) | {"marker": ".", "markersize": 3, "linewidth": 0.8}
                axes[tuning.suite].plot(*zip(*points, strict=True), **style)
                axes[tuning.suite].set_xlabel("AAL, pooled (line: cost model)", fontsize=9)


def _verify_cost(tunings: Sequence[Tuning]) -> Figure:
    """Milliseconds of a verification by rows, a line a context; the band is between quartiles."""
    figure = Figure(figsize=(5.2, 3.6), layout="constrained")
    axis = figure.subplots()
    curves: dict[str, list[VerifyCost]] = {}
    for tuning in tunings:
        for cost in tuning.verify:
            name = f"context {cost.context}, {tuning.dtype} on {tuning.device}"
            curves.setdefault(name, []).append(cost)
    for (name, costs), colour, marker in zip(
        curves.items(), itertools.cycle(COLOURS), itertools.cycle(MARKERS), strict=False
    ):
        rows = [c.rows for c in costs]
        axis.plot(rows, [c.milliseconds for c in costs], color=colour, marker=marker, label=name)
        axis.fill_between(
            rows, [c.low for c in costs], [c.high for c in costs], color=colour, alpha=0.15,
            linewidth=0,
        )  # fmt: skip
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set_ylim(bottom=0)
    axis.set_xlabel("rows verified", fontsize=9)
    axis.set_ylabel("milliseconds", fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(color="#e3e6ea", linewidth=0.8)
    axis.legend(fontsize=8.5, frameon=False)
    figure.suptitle("cost of a verification")
    return figure


def _style(label: str, lines: Lines) -> dict[str, Any]:
    place = list(lines).index(label)
    line = LINES[place // len(COLOURS) % len(LINES)]
    return {
        "color": COLOURS[place % len(COLOURS)],
        "marker": MARKERS[place % len(MARKERS)],
        "linestyle": line,
        "markersize": 5.5,
        "linewidth": 1.4,
        "label": label,
    }


def _legend(figure: Figure, lines: Lines) -> None:
    handles = [Line2D([], [], **_style(label, lines)) for label in lines]
    columns = max(1, min(len(lines), int(figure.get_figwidth() * 14 / (max(map(len, lines)) + 6))))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=columns, fontsize=8.5, frameon=False
    )
