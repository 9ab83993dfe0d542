"""`specbench report`: tables from finished and unfinished runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from specbench.cli.files import RESULTS, check_output, write

if TYPE_CHECKING:
    from specbench.report import Summary


def report(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[DIR]...", help="Run folders; default: all under results/."),
    ] = None,
    format: Annotated[  # noqa: A002 (the option's own name)
        str | None,
        typer.Option(
            "--format",
            help="markdown, csv, json, latex or html; default: markdown, tables on a terminal.",
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write to this file.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Overwrite that file.")] = False,
    plots: Annotated[
        Path | None, typer.Option(help="Draw plots into this folder, as PNG and SVG.")
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Put runs side by side that differ in more than the drafter; the caption says in "
            "what.",
        ),
    ] = False,
    newest: Annotated[
        bool,
        typer.Option("--newest", help="Of a cell that several runs measured, take the last one."),
    ] = False,
    allow_broken: Annotated[
        bool,
        typer.Option(
            "--allow-broken", help="Show the speedup of a drafter with broken output too."
        ),
    ] = False,
) -> None:
    """Say how the drafters of one or several runs compare.

    Runs named here that differ in dtype, attention, template, thinking, sampling, length cap or
    prompts are refused; without names, each kind gets a table of its own.
    """
    from rich.console import Console

    from specbench.report import render, rich_table, run_folders, summarise

    if output is not None:
        check_output(output, overwrite)
    named: Literal["refuse", "separate"] = "refuse" if folders else "separate"
    summary = summarise(
        folders or run_folders(RESULTS),
        allow_broken=allow_broken,
        unlike="together" if force else named,
        newest=newest,
    )
    if plots is not None:
        _draw(summary, plots)
    console = Console()
    if output is None and format is None and console.is_terminal:
        console.print(rich_table(summary))
        return
    text = render(summary, format or "markdown")
    if output is None:
        typer.echo(text, nl=False)
        return
    write(output, text)


def _draw(summary: "Summary", folder: Path) -> None:
    from specbench.report.plots import save

    written = save(summary, folder)
    typer.echo(f"{len(written)} files in {folder}", err=True)
