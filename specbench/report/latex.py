"""A summary for a paper: booktabs tables that need no other package."""

from __future__ import annotations

from specbench.report import captions, text
from specbench.report.summary import Summary, Table

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
    """A ``table`` float a grid, and the settings as an itemised list below."""
    blocks = [PREAMBLE]
    for heading, table in zip(captions.headings(summary), summary.tables, strict=True):
        blocks += [_float(heading, grid) for grid in text.grids(table)]
        blocks.append(_notes(table))
    return "\n\n".join([*blocks, _escape(captions.METHOD)]) + "\n"


def _float(heading: str, grid: text.Grid) -> str:
    title = f"{heading}: {grid.title.lower()}" if grid.title else heading
    return "\n".join(
        [
            r"\begin{table}[htbp]",
            r"\centering\footnotesize",
            rf"\caption{{{_escape(title)}}}",
            rf"\begin{{tabular}}{{{'l' * len(grid.header)}}}",
            r"\toprule",
            _line(grid.header),
            r"\midrule",
            *map(_line, grid.rows),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def _notes(table: Table) -> str:
    items = [rf"\item {_escape(line)}" for line in captions.caption(table)]
    return "\n".join([r"\begin{itemize}", *items, r"\end{itemize}"])


def _line(cells: tuple[str, ...]) -> str:
    return " & ".join(map(_cell, cells)) + r" \\"


def _cell(cell: str) -> str:
    lines = [_escape(line) for line in cell.split("\n")]
    stack = r" \\ ".join(lines)
    return stack if len(lines) == 1 else rf"\shortstack[l]{{{stack}}}"


def _escape(line: str) -> str:
    """Plain text; a bracket after a line break would be read as an option, so it is braced."""
    text_ = "".join(SPECIAL.get(character, character) for character in line)
    return f"{{}}{text_}" if text_.startswith("[") else text_
