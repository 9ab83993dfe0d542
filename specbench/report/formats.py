"""A summary as text: markdown, LaTeX and HTML for people, csv and json for programs."""

from __future__ import annotations

from typing import Literal, get_args

from specbench.errors import UserError
from specbench.report import captions, text
from specbench.report.html import html_text
from specbench.report.latex import latex_text
from specbench.report.objects import csv_text, json_text
from specbench.report.summary import Summary, Table

Format = Literal["markdown", "csv", "json", "latex", "html"]


def render(summary: Summary, format: str) -> str:  # noqa: A002 (the option's own name)
    """The report as one text that ends with a newline.

    Raises:
        UserError: another format than those of `Format`.
    """
    writers = {
        "markdown": _markdown, "csv": csv_text, "json": json_text, "latex": latex_text,
        "html": html_text,
    }  # fmt: skip
    if format not in writers:
        raise UserError(f"--format is {', '.join(get_args(Format))}, not {format!r}.")
    return writers[format](summary)


def _markdown(summary: Summary) -> str:
    blocks = []
    for heading, table in zip(captions.headings(summary), summary.tables, strict=True):
        blocks += [f"## {_escape(heading)}", *_grids(table)]
        blocks += ["\n".join(f"- {line}" for line in captions.caption(table))]
    return "\n\n".join([*blocks, captions.METHOD]) + "\n"


def _grids(table: Table) -> list[str]:
    blocks = []
    for grid in text.grids(table):
        blocks += [f"### {grid.title}"] if grid.title else []
        blocks.append(_grid(grid))
    return blocks


def _grid(grid: text.Grid) -> str:
    lines = [grid.header, ("---",) * len(grid.header), *grid.rows]
    return "\n".join("| " + " | ".join(_escape(cell) for cell in line) + " |" for line in lines)


def _escape(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", "<br>")
