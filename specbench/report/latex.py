"""A summary for a paper: booktabs tables that need no other package."""

from collections.abc import Iterable

from specbench.report import captions
from specbench.report.cells import TableCell
from specbench.report.summary import Summary
from specbench.report.tables import Grid, grids

PREAMBLE = (
    "% Needs \\usepackage{booktabs}; \\input this file. Wide tables: \\resizebox or landscape."
)
SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "`": r"\textasciigrave{}",
    "±": r"$\pm$",
}  # fmt: skip


def latex_text(summary: Summary) -> str:
    """One ``table`` float per grid, and below them the settings as a list."""
    blocks = [PREAMBLE]
    for heading, table in captions.headed(summary):
        blocks += [_float(heading, grid) for grid in grids(table)]
        items = [rf"\item {_escape(line)}" for line in captions.caption(table)]
        blocks.append("\n".join([r"\begin{itemize}", *items, r"\end{itemize}"]))
    return "\n\n".join([*blocks, _escape(captions.METHOD)]) + "\n"


def _float(heading: str, grid: Grid) -> str:
    title = f"{heading}: {grid.title.lower()}" if grid.title else heading
    return "\n".join(
        [
            r"\begin{table}[htbp]",
            r"\centering\footnotesize",
            rf"\caption{{{_escape(title)}}}",
            rf"\begin{{tabular}}{{{'l' * len(grid.header)}}}",
            r"\toprule",
            _line(map(_escape, grid.header)),
            r"\midrule",
            *(_line(map(_cell, row)) for row in grid.rows),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def _line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _cell(cell: TableCell) -> str:
    lines = [_escape(line) for line in cell.joined("\n").split("\n")]
    stack = r" \\ ".join(lines)
    return stack if len(lines) == 1 else rf"\shortstack[l]{{{stack}}}"


def _escape(line: str) -> str:
    """Plain text; after a line break a bracket would be read as an option, so it is protected."""
    escaped = "".join(SPECIAL.get(character, character) for character in line)
    return f"{{}}{escaped}" if escaped.startswith("[") else escaped
