"""`specbench report`: tables from finished and unfinished runs."""

from pathlib import Path
from typing import Annotated

import typer

from specbench.errors import UserError

RESULTS = Path("results")


def report(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[DIR]...", help="Run folders; default: all under results/."),
    ] = None,
    format: Annotated[  # noqa: A002 (the option's own name)
        str | None,
        typer.Option(
            "--format", help="markdown, csv or json; default: markdown, tables on a terminal."
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write to this file.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite that file.")] = False,
    allow_broken: Annotated[
        bool,
        typer.Option(
            "--allow-broken", help="Show the speedup of a drafter with broken output too."
        ),
    ] = False,
) -> None:
    """Say how the drafters of one or several runs compare."""
    from rich.console import Console

    from specbench.report import render, rich_table, run_folders, summarise

    if output is not None:
        _check_output(output, force)
    summary = summarise(folders or run_folders(RESULTS), allow_broken=allow_broken)
    console = Console()
    if output is None and format is None and console.is_terminal:
        console.print(rich_table(summary))
        return
    text = render(summary, format or "markdown")
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--output {output} cannot be written: {error.strerror}.") from error


def _check_output(output: Path, force: bool) -> None:
    """Refuse, before any work, a file that cannot or must not be written.

    Raises:
        UserError: it exists and ``force`` is not set, or its folder does not exist.
    """
    if output.is_dir() or not output.parent.is_dir():
        raise UserError(f"--output {output} must name a file in a folder that exists.")
    if output.exists() and not force:
        raise UserError(
            f"{output} exists already: take another --output, or overwrite with --force."
        )
