"""`specbench report`: tables from finished and unfinished runs."""

from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.files import RESULTS, check_output, write
from specbench.cli.options import Overwrite
from specbench.report.formats import FORMATS, render


def report(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[DIR]...", help="Run folders. Default: all under results/."),
    ] = None,
    format: Annotated[  # noqa: A002 (the option's own name)
        str | None,
        typer.Option(
            help=f"One of {', '.join(FORMATS)}. Default: tables on a terminal, else markdown."
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write to this file.")] = None,
    overwrite: Overwrite = False,
    plots: Annotated[
        Path | None, typer.Option(help="Draw plots into this folder, as PNG and SVG.")
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Put runs side by side that differ in more than the drafter; the caption names "
            "the settings.",
        ),
    ] = False,
    newest: Annotated[
        bool,
        typer.Option("--newest", help="If several runs measured a cell, show only the last one."),
    ] = False,
    allow_broken: Annotated[
        bool,
        typer.Option(
            "--allow-broken", help="Show the speedup of drafters with broken output, too."
        ),
    ] = False,
) -> None:
    """Compare the drafters of one or several runs.

    Named runs that differ in dtype, attention, template, thinking, sampling, length cap or prompts
    are refused. Without names, runs that differ are shown in separate tables.
    """
    from rich.console import Console

    from specbench.report.runs import run_folders
    from specbench.report.summary import summarise
    from specbench.report.terminal import rich_table

    if output is not None:
        check_output(output, overwrite)
    summary = summarise(
        folders or run_folders(RESULTS),
        allow_broken=allow_broken,
        unlike="together" if force else "refuse" if folders else "separate",
        newest=newest,
    )
    if plots is not None:
        from specbench.report.plots import save

        typer.echo(f"{len(save(summary, plots))} files in {plots}", err=True)
    console = Console()
    if output is None and format is None and console.is_terminal:
        console.print(rich_table(summary))
        return
    text = render(summary, format or "markdown")
    if output is None:
        typer.echo(text, nl=False)
    else:
        write(output, text)
