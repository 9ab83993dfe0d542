"""A summary for a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from specbench.report import captions, text
from specbench.report.summary import Summary, Table


def rich_table(summary: Summary) -> RenderableType:
    """What the markdown says, one table after the other, but for conditional acceptance."""
    parts: list[RenderableType] = []
    for heading, table in zip(captions.headings(summary), summary.tables, strict=True):
        parts += [Text(heading, style="bold"), *_parts(table)]
    return Group(*parts, Text(captions.METHOD, style="dim"))


def _parts(table: Table) -> list[RenderableType]:
    details, depths, versus = text.details(table), text.acceptance(table), text.versus(table)
    phases = text.phases(table)
    parts: list[RenderableType] = [_grid(text.headline(table))]
    parts.append(_grid(_narrow(details, "Speed", 3, 7)))
    parts.append(_grid(_narrow(details, "Loops", 7, 10)))
    parts.append(_grid(_narrow(details, "Text", 10, len(details.header))))
    if versus is not None:
        parts.append(_grid(_narrow(versus, versus.title, 3, len(versus.header))))
    if phases is not None:
        parts.append(_grid(_narrow(phases, phases.title, 3, len(phases.header) - 1)))
    if depths is not None:
        parts.append(_grid(_narrow(depths, depths.title, 3, 4)))
    return [*parts, *(Text(line, style="dim") for line in captions.caption(table)), Text()]


def _narrow(grid: text.Grid, title: str, first: int, last: int) -> text.Grid:
    """Some columns of a grid for 80 characters.

    Drafter, suite and n come in one column, and what is in brackets below its figure.
    """
    rows = []
    for drafter, suite, n, *cells in grid.rows:
        rows.append((f"{drafter}\n{suite}, n={n}", *cells[first - 3 : last - 3]))
    if last - first > 1:
        rows = [tuple(c.replace(" [", "\n[").replace(" (", "\n(") for c in row) for row in rows]
    return text.Grid(title, (grid.header[0], *grid.header[first:last]), tuple(rows))


def _grid(grid: text.Grid) -> RichTable:
    drawn = RichTable(
        title=grid.title or None, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    for column in grid.header:
        drawn.add_column(Text(column), overflow="fold")
    for row in grid.rows:
        drawn.add_row(*map(Text, row))
    return drawn
