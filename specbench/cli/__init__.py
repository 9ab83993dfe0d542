"""The command line: parses, calls, prints; nothing else.

Nothing here or in the command modules imports torch before a command needs it, so that help and
lists come at once.
"""

import sys
from typing import Annotated

import typer

from specbench import __version__
from specbench.cli.check import check, history
from specbench.cli.distribution import distribution
from specbench.cli.generate import generate
from specbench.cli.listing import app as list_app
from specbench.cli.report import report
from specbench.cli.run import run
from specbench.cli.train import app as train_app
from specbench.cli.tune import tune
from specbench.errors import UserError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Compare speculative drafters: one loop, one verifier, honest numbers.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"specbench {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Options of the program itself."""


app.command()(run)
app.command()(report)
app.command()(distribution)
app.command("verify", hidden=True)(distribution)
app.command()(generate)
app.command()(tune)
app.command()(check)
app.command()(history)
app.add_typer(list_app, name="list")
app.add_typer(train_app, name="train")


def main() -> None:
    """Run the command; a person's mistake is one line on stderr and exit code 2."""
    try:
        app()
    except UserError as error:
        typer.echo(f"specbench: {error}", err=True)
        sys.exit(2)
