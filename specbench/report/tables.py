"""The tables of a report, the same for markdown, LaTeX, HTML and a terminal."""

from dataclasses import dataclass, replace
from typing import Any

from specbench.report import figures
from specbench.report.cells import ABSENT, Figure, Section, Shown, TableCell
from specbench.report.summary import Row, Table


@dataclass(frozen=True)
class Grid:
    """A table of cells; the first column names the drafter."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...]


def grids(table: Table) -> list[Grid]:
    """Everything of a table, the headline first."""
    sections = [section for section in figures.SECTIONS if any(map(section.has, table.rows))]
    return [headline(table), *(_section(table, section) for section in sections)]


def headline(table: Table) -> Grid:
    """Drafters by suites: speedup, AAL and n."""
    rows = [
        (TableCell.words(label), *(_headline_cell(line.get(suite)) for suite in table.suites))
        for label, line in table.lines.items()
    ]
    return Grid("", ("drafter", *table.suites), tuple(rows))


def columns(section: Section) -> list[Figure[Any]]:
    """The figures of a section, in their order."""
    return [figure for figure in figures.FIGURES if figure.section is section]


def _section(table: Table, section: Section) -> Grid:
    shown = columns(section)
    rows = [
        (*map(TableCell.words, (row.label, row.cell.suite)), *(f.cell(row) for f in shown))
        for row in table.rows
        if section.has(row)
    ]
    header = ("drafter", "suite", *(figure.header for figure in shown))
    return Grid(section.title, header, tuple(rows))


def _headline_cell(row: Row | None) -> TableCell:
    if row is None:
        return TableCell.words(ABSENT)
    if row.answers == 0:
        return TableCell((Shown("no answer", note=f"{row.failed} failed"),))
    return TableCell((_speedup(row), _aal(row), *_without_loops(row), *figures.marks(row)))


def _speedup(row: Row) -> Shown:
    if row.entry.is_baseline:
        return figures.ONE
    speedup = figures.SPEEDUP.of(row)
    other = speedup.value is not None and speedup.n != figures.AAL.of(row).n
    [line] = figures.SPEEDUP.cell(row).lines
    return replace(line, note=f"n={speedup.n}" if other else "")


def _aal(row: Row) -> Shown:
    """The AAL; of the baseline, for which it is 1, the speed."""
    line = figures.AAL.line(figures.AAL.of(row))
    shown = figures.tokens_per_second(row) if row.entry.is_baseline else _named("AAL", line)
    return replace(shown, note=f"n={figures.prompts(row)}")


def _without_loops(row: Row) -> list[Shown]:
    if row.entry.is_baseline or not figures.LOOPING.of(row).value:
        return []
    estimate = figures.WITHOUT_LOOPS.of(row)
    if estimate.value is None:
        return [Shown("no answer without loops")]
    line = _named("AAL without loops", figures.AAL.line(estimate))
    return [replace(line, note=f"n={estimate.n}")]


def _named(name: str, line: Shown) -> Shown:
    return replace(line, text=f"{name} {line.text}")
