"""A summary as one HTML file that needs nothing else: tables to sort and filter, plots inline."""

from __future__ import annotations

import re
from html import escape
from importlib.resources import files

from specbench.report import captions, text
from specbench.report.summary import Summary, Table

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
PICTURES = {
    "speedup": "Speedup of each drafter, with intervals",
    "aal": "Average acceptance length of each drafter, with intervals",
    "aal-speedup": "Speedup against average acceptance length",
    "acceptance": "Share of rounds that reached each depth",
    "verify-cost": "Milliseconds of a verification by rows",
    "time": "Milliseconds a round by phase",
    "rounds": "Share of rounds by the tokens they emitted",
}
SYMBOLS = {
    "identical": "✓", "near-tie": "≈", "broken": "✗", "lossy": "!", "untested": "?",
    "reference": "•",
}  # fmt: skip
NUMBER = re.compile(r"-?\d+(\.\d+)?")


def html_text(summary: Summary) -> str:
    """The page; its plots need matplotlib, which is loaded here and not before."""
    headings = captions.headings(summary)
    sections = [
        _section(number, heading, table)
        for number, (heading, table) in enumerate(zip(headings, summary.tables, strict=True), 1)
    ]
    contents = [
        f'<li><a href="#table-{number}">{escape(heading)}</a></li>'
        for number, heading in enumerate(headings, 1)
    ]
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
    grids = text.grids(table)
    notes = [f"<li>{_note(line)}</li>" for line in captions.caption(table)]
    return "\n".join(
        [
            f'<section aria-labelledby="table-{number}">',
            f'<h2 id="table-{number}">{escape(heading)}</h2>',
            _grid(grids[0], "Speedup, AAL and n"),
            _plots(number, heading, table),
            *(_grid(grid, grid.title) for grid in grids[1:]),
            "<h3>What was run</h3>",
            "<ul class='notes'>",
            *notes,
            "</ul>",
            "</section>",
        ]
    )


def _note(line: str) -> str:
    """A caption line, what stands between backticks as code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(line))


def _grid(grid: text.Grid, title: str) -> str:
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


def _data(cell: str) -> str:
    """A cell, with the number that it starts with for sorting."""
    number = NUMBER.match(cell)
    value = f' data-value="{number[0]}"' if number else ""
    return f"<td{value}>{_cell(cell)}</td>"


def _cell(cell: str) -> str:
    return "<br>".join(_line(line) for line in cell.split("\n"))


def _line(line: str) -> str:
    """A line of a cell: a mark, a verdict, or a figure whose interval stands back."""
    kind = line.partition(" (")[0]
    if line in text.MARKS:
        return f'<span class="mark {line.lower()}">{line}</span>'
    if re.fullmatch(r"\d+ failed", line):
        return f'<span class="mark failed">{line}</span>'
    if kind in SYMBOLS:
        symbol = f'<span class="verdict {kind}" aria-hidden="true">{SYMBOLS[kind]}</span>'
        return f"{symbol} {escape(line)}"
    return re.sub(r"(\[[^\]]*\])", r'<span class="interval">\1</span>', escape(line))


def _plots(number: int, heading: str, table: Table) -> str:
    from specbench.report import plots

    drawn = plots.figures(table, heading)
    return "\n".join(
        f"<figure><figcaption>{PICTURES[name]}</figcaption>{_inline(number, name, plots.svg(f))}"
        "</figure>"
        for name, f in drawn.items()
    )


def _inline(number: int, name: str, svg: str) -> str:
    """An SVG for a page that holds several: ids of its own, and a name for a screen reader."""
    own = f"p{number}-{name}-"
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{own}", svg)
    label = f"{PICTURES[name]}; the figures are in the tables."
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)
