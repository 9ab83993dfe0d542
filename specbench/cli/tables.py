"""Plain tables."""

from collections.abc import Sequence

import typer


def show(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table on a terminal, tab-separated lines elsewhere (nothing is cut off there)."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        for row in (columns, *rows):
            typer.echo("\t".join(map(str, row)))
        return
    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(str, row))
    console.print(table)
