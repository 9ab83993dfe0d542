"""A summary for a terminal of 80 columns."""

from collections.abc import Iterable, Iterator, Sequence
from textwrap import fill
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from specbench.report import captions, figures
from specbench.report.cells import Figure, Section, TableCell
from specbench.report.summary import Row, Summary, Table
from specbench.report.tables import columns

WIDTH = 80
NAME = 20
"""Characters down to which the first column may be folded; the others are never torn."""
NO_BREAK = "\xa0"
HEADER, WORDS, LIST = 12, 26, 43
"""Characters after which the head of a column, words, and a list by depth are broken."""


def rich_table(summary: Summary, *, details: bool = True) -> RenderableType:
    """One headline table per suite; with ``details``, everything that the markdown says."""
    parts: list[RenderableType] = []
    for heading, table in captions.headed(summary):
        parts.append(Text(heading, style="bold"))
        for suite in table.suites:
            parts += _headline(table, suite)
        for section in figures.SECTIONS if details else ():
            parts += _section(table, section)
        lines = captions.caption(table) if details else captions.remarks(table)
        parts += [*(Text(line, style="dim") for line in lines), Text()]
    return Group(*parts, Text(captions.METHOD, style="dim"))


def _headline(table: Table, suite: str) -> Iterator[RichTable]:
    """The headline figures of one suite and what they rest on, one drafter per row."""
    rows = [line[suite] for line in table.lines.values() if suite in line]
    loops = any(figures.LOOPING.of(row).value and not row.entry.is_baseline for row in rows)
    shown = [f for f in figures.HEADLINE if loops or f is not figures.WITHOUT_LOOPS]
    return _fitting("", suite, list(map(_name, rows)), [_column(f, rows) for f in shown])


def _name(row: Row) -> str:
    output = "reference" if row.entry.is_baseline else row.entry.lossless
    n = f"n={figures.prompts(row)}, {output}"
    return "\n".join([row.label, n, *map(str, figures.marks(row))])


def _section(table: Table, section: Section) -> Iterator[RichTable]:
    """Every figure of a section that is not in the headline, one line per row of the report."""
    rows = [row for row in table.rows if section.has(row)]
    names = [f"{row.label}\n{row.cell.suite}" for row in rows]
    shown = [f for f in columns(section) if f not in figures.HEADLINE]
    return _fitting(section.title, "drafter", names, [_column(f, rows) for f in shown])


def _column(figure: Figure[Any], rows: Iterable[Row]) -> list[str]:
    """The head of a column and its cells, in lines that are not to be broken again."""
    cells = [_stacked(figure.cell(row)) for row in rows]
    return [fill(figure.header, max(HEADER, _width(cells))), *cells]


def _stacked(cell: TableCell) -> str:
    """Interval and note below their figure; a list by depth in lines of whole items."""
    if not cell.listed:
        return "\n".join(fill(part, WORDS) for line in cell.lines for part in line.parts)
    whole = [str(item).replace(" ", NO_BREAK) for item in cell.lines]
    return fill(", ".join(whole), LIST).replace(NO_BREAK, " ")


def _fitting(
    title: str, head: str, names: Sequence[str], columns: Sequence[list[str]]
) -> Iterator[RichTable]:
    """The columns in as many tables as it takes to fit the width."""
    if not names:
        return
    room = WIDTH - min(NAME, _width(names)) - 3
    groups: list[list[list[str]]] = [[]]
    for column in columns:
        if sum(_width(c) + 1 for c in [*groups[-1], column]) > room:
            groups.append([])
        groups[-1].append(column)
    for group in groups:
        header, *rows = zip([head, *names], *group, strict=True)
        yield rich_grid(title if group is groups[0] else "", header, rows, folded=[0])


def _width(texts: Iterable[str]) -> int:
    return max((len(line) for text in texts for line in text.split("\n")), default=0)


def rich_grid(
    title: str, header: Sequence[str], rows: Iterable[Sequence[str]], folded: Sequence[int] = ()
) -> RichTable:
    """A table of plain text; only the columns at the places ``folded`` are broken to fit."""
    drawn = RichTable(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    for place, name in enumerate(header):
        drawn.add_column(Text(name), no_wrap=place not in folded, overflow="fold")
    for row in rows:
        drawn.add_row(*map(Text, row))
    return drawn
