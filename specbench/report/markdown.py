"""A summary as GitHub's markdown."""

from collections.abc import Sequence

from specbench.report import captions
from specbench.report.summary import Summary
from specbench.report.tables import grids


def markdown_text(summary: Summary) -> str:
    """Tables and settings, and below all of them how to read them."""
    blocks = []
    for heading, table in captions.headed(summary):
        blocks.append(f"## {_escape(heading)}")
        for grid in grids(table):
            blocks += [f"### {grid.title}"] if grid.title else []
            rows = ([cell.joined("\n") for cell in row] for row in grid.rows)
            blocks.append(markdown_table([grid.header, *rows]))
        blocks.append("\n".join(f"- {line}" for line in captions.caption(table)))
    return "\n\n".join([*blocks, captions.METHOD]) + "\n"


def markdown_table(lines: Sequence[Sequence[str]]) -> str:
    """Lines of cells, the header first."""
    ruled = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "\n".join("| " + " | ".join(map(_escape, line)) + " |" for line in ruled)


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "<br>")
