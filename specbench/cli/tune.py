"""`specbench tune`: what a verification costs here, and the draft length that pays."""

from pathlib import Path
from typing import Annotated

import typer

from specbench.cli import options
from specbench.cli.files import make_folder, write
from specbench.cli.process import silence
from specbench.errors import UserError


def tune(
    context: typer.Context,
    drafter: options.Drafters,
    suite: options.Suites = None,
    target: options.Target = None,
    revision: options.Revision = None,
    draft_model: options.DraftModel = None,
    override: options.Overrides = None,
    limit: Annotated[int, typer.Option(min=1, help="Prompts to decode.")] = 8,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Longest answer in tokens.")] = 64,
    depths: Annotated[
        str,
        typer.Option(help="Draft lengths to try; those that a drafter cannot reach are left out."),
    ] = "1,2,4,8,16,32",
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    data_dir: options.DataDir = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for tune.json; in a run's folder, `specbench report --plots` draws it."
        ),
    ] = None,
) -> None:
    """Find the draft length that pays on this machine.

    Measures a verification by rows and context length, then AAL, drafting time and speed at each
    draft length. Beside the measured speedup stand the model's, AAL * step / (draft + verify), and
    the AAL above which the length pays.

        specbench tune --drafter dflash,prompt-lookup,draft-model
    """
    from rich.console import Console

    from specbench.inputs.plan import make_plan
    from specbench.report.tuning import conclusion, tuning_tables
    from specbench.run.tune import tune as measure
    from specbench.stats.costs import TUNING, to_json

    silence()
    plan = make_plan(options.settings(context))
    if len(plan.suites) > 1:
        raise UserError("--suite names several suites, and the draft length is tuned on one.")
    if out is not None:
        make_folder(out)  # Before anything is measured in vain.
    console = Console()
    with console.status("measuring"):
        tuning = measure(plan, _depths(depths))
    console.print(*tuning_tables(tuning))
    typer.echo(conclusion(tuning))
    if out is not None:
        write(out / TUNING, to_json(tuning))
        typer.echo(f"Written: {out / TUNING}")


def _depths(text: str) -> list[int]:
    try:
        depths = sorted({int(part) for part in text.split(",")})
    except ValueError:
        depths = []
    if not depths or depths[0] < 1:
        raise UserError(f"--depths {text} must be numbers of at least 1, separated by commas.")
    return depths
