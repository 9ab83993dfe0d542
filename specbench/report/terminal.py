"""A summary for a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from specbench.report import captions, text
from specbench.report.summary import Summary, Table


def rich_table(summary: Summary, *, details: bool = True) -> RenderableType:
    """The headline and what qualifies it, a table a suite; with ``details`` all that the markdown
    says but for conditional acceptance."""
    parts: list[RenderableType] = []
    for heading, table in zip(captions.headings(summary), summary.tables, strict=True):
        parts += [
            Text(heading, style="bold"),
            *(_grid(_headline(table, s), True) for s in table.suites),
        ]
        parts += _details(table) if details else []
        lines = captions.caption(table) if details else captions.remarks(table)
        parts += [*(Text(line, style="dim") for line in lines), Text()]
    return Group(*parts, Text(captions.METHOD, style="dim"))


def _headline(table: Table, suite: str) -> text.Grid:
    """What `text.headline` has of one suite, and what its figures rest on, a drafter a row."""
    rows = [(label, line[suite]) for label, line in table.lines if suite in line]
    loops = any(row.looping.value and not row.is_baseline for _, row in rows)
    header = (
        suite, "speedup", "AAL", *(["AAL without\nloops"] if loops else []),
        "repeated\n4-grams %", "cut at\nbudget %",
    )  # fmt: skip
    cells = []
    for label, row in rows:
        figures = [text.speed(row), text.number(row.aal_pooled)]
        figures += [text.number(row.aal_without_loops)] if loops else []
        figures += [text.number(e, percent=True) for e in (row.repeated_4grams, row.cut_at_budget)]
        output = "reference" if row.is_baseline else row.lossless
        name = "\n".join([label, f"n={text.prompts(row)}, {output}", *text.marks(row)])
        cells.append((name, *map(_stacked, figures)))
    return text.Grid("", header, tuple(cells))


def _details(table: Table) -> list[RenderableType]:
    details, depths, versus = text.details(table), text.acceptance(table), text.versus(table)
    phases = text.phases(table)
    parts: list[RenderableType] = [
        _grid(_narrow(details, "Speed", 4, 7)),
        _grid(_narrow(details, "Answers", 11, len(details.header))),
    ]
    if versus is not None:
        parts.append(_grid(_narrow(versus, versus.title, 3, len(versus.header))))
    if phases is not None:
        parts.append(_grid(_narrow(phases, phases.title, 3, len(phases.header) - 1)))
    if depths is not None:
        parts.append(_grid(_narrow(depths, depths.title, 3, 4)))
    return parts


def _narrow(grid: text.Grid, title: str, first: int, last: int) -> text.Grid:
    """Some columns of a grid for 80 characters; drafter, suite and n come in one."""
    rows = []
    for drafter, suite, n, *cells in grid.rows:
        rows.append((f"{drafter}\n{suite}, n={n}", *cells[first - 3 : last - 3]))
    if last - first > 1:
        rows = [tuple(map(_stacked, row)) for row in rows]
    return text.Grid(title, (grid.header[0], *grid.header[first:last]), tuple(rows))


def _stacked(cell: str) -> str:
    """What is in brackets below its figure."""
    return cell.replace(" [", "\n[").replace(" (", "\n(")


def _grid(grid: text.Grid, headline: bool = False) -> RichTable:
    """Of the headline only the drafter's column may fold, and a space is between two columns."""
    drawn = RichTable(
        title=grid.title or None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 0 if headline else 1, 0, 0),
    )
    for place, column in enumerate(grid.header):
        drawn.add_column(Text(column), overflow="fold", no_wrap=headline and place > 0)
    for row in grid.rows:
        drawn.add_row(*map(Text, row))
    return drawn
