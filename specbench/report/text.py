"""What the tables say, the same for a terminal, markdown, LaTeX and HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.records.traces import PHASES, Split
from specbench.report.summary import Row, Table, Versus
from specbench.stats.bootstrap import FEW_PROMPTS, Estimate, Interval

ABSENT = "-"
MARKS = ("BROKEN", "LOSSY", "LOOPS")


@dataclass(frozen=True)
class Grid:
    """A table of texts; a line break in a cell is a newline."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def grids(table: Table) -> list[Grid]:
    """All of a table, the headline first."""
    found = (headline(table), details(table), versus(table), phases(table), acceptance(table))
    return [grid for grid in found if grid is not None]


def headline(table: Table) -> Grid:
    """Drafters by suites: speedup, AAL and n."""
    rows = [
        (label, *(_headline_cell(line.get(suite)) for suite in table.suites))
        for label, line in table.lines
    ]
    return Grid("", ("drafter", *table.suites), tuple(rows))


def details(table: Table) -> Grid:
    """A line a cell: all that qualifies the headline."""
    header = (
        "drafter", "suite", "n", "AAL pooled", "AAL macro", "tokens/s", "end-to-end speedup",
        "repeated 4-grams %", "looping answers %", "AAL without loops", "cut at budget %",
        "failed answers", "losslessness",
    )  # fmt: skip
    rows = [
        (
            label,
            row.cell.suite,
            prompts(row),
            number(row.aal_pooled),
            number(row.aal_macro),
            number(row.tokens_per_second, digits=1),
            _times(row.speedup_end_to_end, row),
            number(row.repeated_4grams, percent=True),
            number(row.looping, percent=True),
            number(row.aal_without_loops),
            number(row.cut_at_budget, percent=True),
            f"{row.failed} of {row.failed + row.answers}",
            _losslessness(row),
        )
        for label, row in table.rows
    ]
    return Grid("Details", header, tuple(rows))


def versus(table: Table) -> Grid | None:
    """Every drafter against the fastest, paired by prompt; None where there is but one."""
    rows = [
        (
            v.label,
            v.suite,
            str(v.comparison.aal_ratio.n),
            v.fastest,
            number(v.comparison.speed),
            number(v.comparison.aal_ratio),
            number(v.comparison.aal_difference),
            _told_apart(v),
        )
        for v in table.versus
    ]
    header = (
        "drafter", "suite", "n", "fastest", "speed over the fastest's", "AAL over the fastest's",
        "AAL difference", "told apart by speed",
    )  # fmt: skip
    return Grid("Against the fastest, paired by prompt", header, tuple(rows)) if rows else None


def phases(table: Table) -> Grid | None:
    """Where a round's time goes, from the traced pass; None where nothing was traced."""
    rows = [
        (label, row.cell.suite, str(one.rounds), *_milliseconds(one))
        for label, row in table.rows
        if (one := row.entry.traced)
    ]
    header = (
        "drafter", "suite", "traced rounds", *(f"{phase} ms" for phase in PHASES), "round ms",
        "target rows a round", "joules a token",
    )  # fmt: skip
    return Grid("Where a round's time goes", header, tuple(rows)) if rows else None


def _milliseconds(one: Split) -> list[str]:
    figures = [f"{one.milliseconds[phase]:.2f}" for phase in PHASES]
    joules = ABSENT if one.joules_per_token is None else f"{one.joules_per_token:.3g}"
    return [*figures, f"{one.total:.2f}", f"{one.rows:.1f}", joules]


def acceptance(table: Table) -> Grid | None:
    """Acceptance at depth 1, 2, ...; None where nothing was accepted."""
    rows = [
        (
            label,
            row.cell.suite,
            prompts(row),
            _at_depths(row.acceptance),
            _at_depths(row.conditional),
        )
        for label, row in table.rows
        if row.acceptance
    ]
    header = (
        "drafter", "suite", "n", "% of rounds that reached depth 1, 2, ...",
        "% of those that reached the depth before",
    )  # fmt: skip
    return Grid("Acceptance by depth", header, tuple(rows)) if rows else None


def number(estimate: Estimate, digits: int = 2, *, percent: bool = False, unit: str = "") -> str:
    """A figure with its interval, ``3.10x [2.90, 3.30]``."""
    if estimate.value is None:
        return ABSENT
    scale, digits = (100, 0) if percent else (1, digits)
    figure = f"{estimate.value * scale:.{digits}f}{unit}"
    return f"{figure} {_interval(estimate.interval, digits, scale)}"


def _interval(interval: Interval | None, digits: int, scale: int) -> str:
    if interval is None:
        return "[no interval]"
    return "[" + ", ".join(f"{end * scale:.{digits}f}" for end in interval) + "]"


def _times(estimate: Estimate, row: Row) -> str:
    if row.withheld:
        return "withheld"
    if row.is_baseline and estimate.value is not None:
        return "1 (baseline)"
    return number(estimate, unit="x")


def _told_apart(pair: Versus) -> str:
    n, prompts = pair.comparison.speed.n, pair.prompts_to_decide
    if 0 < n < FEW_PROMPTS:
        return "too few prompts"
    if prompts is None:
        return ABSENT
    return "yes" if prompts <= n else f"no: about {prompts} prompts would"


def _headline_cell(row: Row | None) -> str:
    if row is None:
        return ABSENT
    if row.answers == 0:
        return f"no answer ({row.failed} failed)"
    second = _tokens_per_second(row) if row.is_baseline else f"AAL {number(row.aal_pooled)}"
    first = _times(row.speedup, row)
    if row.speedup.n != row.aal_pooled.n and row.speedup.value is not None:
        first += f" (n={row.speedup.n})"
    return "\n".join([first, f"{second} (n={prompts(row)})", *_without_loops(row), *marks(row)])


def speed(row: Row) -> str:
    """The speedup; of the baseline, which has none, the speed that it is measured against."""
    return _tokens_per_second(row) if row.is_baseline else _times(row.speedup, row)


def _tokens_per_second(row: Row) -> str:
    return number(row.tokens_per_second, digits=1, unit=" tokens/s")


def _without_loops(row: Row) -> list[str]:
    if row.is_baseline or not row.looping.value:
        return []
    estimate = row.aal_without_loops
    if estimate.value is None:
        return ["no answer without loops"]
    return [f"AAL without loops {number(estimate)} (n={estimate.n})"]


def marks(row: Row) -> list[str]:
    """What a reader must not overlook, a word or two each."""
    found = [f"{row.failed} failed"] if row.failed else []
    found += ["BROKEN"] if row.lossless == "broken" else []
    found += [] if row.cell.lossless and row.lossless != "lossy" else ["LOSSY"]
    return found + (["LOOPS"] if row.mostly_loops else [])


def prompts(row: Row) -> str:
    """Prompts with an answer, and how many there should be where some have none."""
    n = row.aal_pooled.n
    return str(n) if n == row.planned else f"{n} of {row.planned}"


def _losslessness(row: Row) -> str:
    if row.is_baseline:
        return "reference"
    counts = ", ".join(f"{kind} {count}" for kind, count in row.verdicts.items())
    return f"{row.lossless} ({counts or 'no answer'})"


def _at_depths(estimates: Sequence[Estimate]) -> str:
    return ", ".join(number(estimate, percent=True) for estimate in estimates)
