"""`specbench tune`: what a verification costs here, and the draft length that pays."""

from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.files import make_folder, write
from specbench.cli.shared import names, silence
from specbench.errors import UserError


def tune(
    drafter: Annotated[
        list[str], typer.Option(help="Drafters, as for `run`: `dflash,eagle3[total_tokens=16|60]`.")
    ],
    suite: Annotated[str, typer.Option(help="Suite, or the path of a JSONL file.")] = "smoke",
    target: Annotated[
        str | None, typer.Option(help="Hub id or folder. Default: the embedded tiny-target.")
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help="Revision (branch, tag or commit) of the hub target.")
    ] = None,
    draft_model: Annotated[str | None, typer.Option(help="Hub id or folder of the draft.")] = None,
    override: Annotated[
        list[str] | None, typer.Option("--set", metavar="DRAFTER.KEY=VALUE", help="An option.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Prompts to decode.")] = 8,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Most tokens per answer.")] = 64,
    depths: Annotated[
        str,
        typer.Option(help="Draft lengths to try; those that a drafter cannot reach are left out."),
    ] = "1,2,4,8,16,32",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder with the suites' data.")] = None,
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

    from specbench.inputs.plan import Settings, make_plan
    from specbench.report.tuning import conclusion, tuning_tables
    from specbench.run.tune import tune as measure
    from specbench.stats.costs import TUNING, to_json

    silence()
    plan = make_plan(
        Settings(
            drafters=names("--drafter", drafter),
            suites=(suite,),
            target=target,
            revision=revision,
            draft_model=draft_model,
            overrides=tuple(override or ()),
            limit=limit,
            max_new_tokens=max_new_tokens,
            device=device,
            dtype=dtype,
            threads=threads,
            data_dir=data_dir,
        )
    )
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
