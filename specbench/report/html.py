"""A summary as one HTML file without any other: tables to sort and filter, plots inline."""

import re
from html import escape
from importlib.resources import files

from specbench.report import captions
from specbench.report.cells import Shown, TableCell
from specbench.report.summary import Summary, Table
from specbench.report.tables import Grid, grids

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>specbench report</title>
<style>
{style}</style>
</head>
<body>
<header>
<h1>specbench report</h1>
<nav aria-label="Tables"><ul>
{contents}
</ul></nav>
</header>
<main>
{sections}
<section aria-labelledby="method"><h2 id="method">How to read it</h2>
<p>{method}</p></section>
</main>
<script>
{script}</script>
</body>
</html>
"""
SYMBOLS = {
    "identical": "✓", "near-tie": "≈", "broken": "✗", "lossy": "!", "untested": "?",
    "reference": "•",
}  # fmt: skip


def html_text(summary: Summary) -> str:
    """The page. Its plots need matplotlib, which is imported only here."""
    sections, contents = [], []
    for number, (heading, table) in enumerate(captions.headed(summary), 1):
        sections.append(_section(number, heading, table))
        contents.append(f'<li><a href="#table-{number}">{escape(heading)}</a></li>')
    return PAGE.format(
        style=_own("page.css"),
        script=_own("page.js"),
        contents="\n".join(contents),
        sections="\n".join(sections),
        method=escape(captions.METHOD),
    )


def _own(name: str) -> str:
    return files("specbench.report").joinpath(name).read_text(encoding="utf-8")


def _section(number: int, heading: str, table: Table) -> str:
    tables = grids(table)
    notes = [f"<li>{_note(line)}</li>" for line in captions.caption(table)]
    return "\n".join(
        [
            f'<section aria-labelledby="table-{number}">',
            f'<h2 id="table-{number}">{escape(heading)}</h2>',
            _grid(tables[0], "Speedup, AAL and n"),
            _plots(number, heading, table),
            *(_grid(grid, grid.title) for grid in tables[1:]),
            "<h3>What was run</h3>",
            "<ul class='notes'>",
            *notes,
            "</ul>",
            "</section>",
        ]
    )


def _note(line: str) -> str:
    """A line of the caption; text between backticks becomes code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(line))


def _grid(grid: Grid, title: str) -> str:
    head = "".join(
        f'<th scope="col" aria-sort="none"><button type="button">{escape(column)}</button></th>'
        for column in grid.header
    )
    body = "\n".join(
        f'<tr><th scope="row">{_cell(row[0])}</th>{"".join(map(_data, row[1:]))}</tr>'
        for row in grid.rows
    )
    return (
        f'<div class="grid"><div class="bar"><h3>{escape(title)}</h3>'
        f'<label>Filter rows <input type="search" placeholder="drafter, suite, mark"></label>'
        f'<output aria-live="polite">{len(grid.rows)} rows</output></div>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(title)}">'
        f'<table><caption class="hidden">{escape(title)}</caption><thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div></div>"
    )


def _data(cell: TableCell) -> str:
    """A cell, with the number of its first line for sorting."""
    number = cell.lines[0].number if cell.lines else None
    value = f' data-value="{number:g}"' if number is not None else ""
    return f"<td{value}>{_cell(cell)}</td>"


def _cell(cell: TableCell) -> str:
    return (", " if cell.listed else "<br>").join(map(_line, cell.lines))


def _line(line: Shown) -> str:
    """A line of a cell: a mark, a verdict with its symbol, or a figure with a grey interval."""
    parts = [escape(part) for part in line.parts]
    if line.mark:
        return f'<span class="mark {line.mark}">{" ".join(parts)}</span>'
    if line.interval:
        parts[1] = f'<span class="interval">{parts[1]}</span>'
    if line.verdict:
        symbol = SYMBOLS[line.verdict]
        parts.insert(0, f'<span class="verdict {line.verdict}" aria-hidden="true">{symbol}</span>')
    return " ".join(parts)


def _plots(number: int, heading: str, table: Table) -> str:
    from specbench.report.canvas import svg
    from specbench.report.plots import pictures

    return "\n".join(
        f"<figure><figcaption>{escape(plot.title)}</figcaption>"
        f"{_inline(f'p{number}-{plot.name}-', plot.title, svg(figure))}</figure>"
        for plot, figure in pictures(table, heading)
    )


def _inline(prefix: str, caption: str, svg: str) -> str:
    """An SVG for a page with several: its ids get a prefix, and screen readers get its caption."""
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}", svg)
    label = escape(f"{caption}; the figures are in the tables.")
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
