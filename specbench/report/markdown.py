"""A summary as GitHub's markdown."""

from specbench.report import captions
from specbench.report.summary import Summary, Table
from specbench.report.tables import Grid, grids


def markdown_text(summary: Summary) -> str:
    """Tables and settings, and below all of them how to read them."""
    blocks = []
    for heading, table in captions.headed(summary):
        blocks += [f"## {_escape(heading)}", *_grids(table)]
        blocks += ["\n".join(f"- {line}" for line in captions.caption(table))]
    return "\n\n".join([*blocks, captions.METHOD]) + "\n"


def _grids(table: Table) -> list[str]:
    blocks = []
    for grid in grids(table):
        blocks += [f"### {grid.title}"] if grid.title else []
        blocks.append(_grid(grid))
    return blocks


def _grid(grid: Grid) -> str:
    rows = [[cell.joined("\n") for cell in row] for row in grid.rows]
    lines = [grid.header, ["---"] * len(grid.header), *rows]
    return "\n".join("| " + " | ".join(map(_escape, line)) + " |" for line in lines)


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "<br>")
