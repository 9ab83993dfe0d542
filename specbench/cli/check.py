"""`specbench check` and `specbench history`: has it got worse?"""

from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.files import write
from specbench.errors import UserError


def check(
    candidate: Annotated[Path, typer.Argument(help="Run folder to judge.")],
    baseline: Annotated[Path, typer.Option(help="Run folder to compare it with.")] = Path(
        "results/baseline"
    ),
    aal_tolerance: Annotated[
        float, typer.Option(min=0, max=1, help="Relative loss of AAL that is allowed.")
    ] = 0.02,
    speed_tolerance: Annotated[
        float, typer.Option(min=0, max=1, help="Relative loss of speedup that is allowed.")
    ] = 0.10,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML to this file.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write JSON to this file.")
    ] = None,
    benchmarks: Annotated[
        Path | None,
        typer.Option(help="Write two lists for github-action-benchmark into this folder."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Judge cells even if their settings differ.")
    ] = False,
    update: Annotated[
        bool, typer.Option("--update", help="Make the candidate the new baseline.")
    ] = False,
) -> None:
    """Compare a run with a baseline run: is everything there, still lossless, and as good?

    A figure fails if its loss exceeds the tolerance and "no change", paired over the prompts that
    both runs answered, is rejected: by an exact test for few prompts, else by the interval of the
    change. All figures of a kind share an error of 5 %, so that many figures raise no more false
    alarms than one. Speed is judged only on the same machine.

    Exit codes: 0 no regression, 1 regression, 2 usage or unreadable, 3 not comparable.
    """
    from rich.console import Console

    from specbench.records.records import MANIFEST
    from specbench.regression import outputs
    from specbench.regression.baseline import replace_baseline
    from specbench.regression.check import check as judge

    known, code = (baseline / MANIFEST).exists(), 0
    if not known and not update:
        raise UserError(
            f"{baseline} holds no run to compare with: --update copies {candidate} there."
        )
    if known:
        limits = {"AAL": aal_tolerance, "speedup": speed_tolerance}
        done = judge(candidate, baseline, limits, force=force)
        Console().print(outputs.rich_check(done))
        outputs.append_summary(done)
        for path, text in outputs.files(done, junit, json_file, benchmarks).items():
            write(path, text)
        code = done.exit_code
    if update:
        replace_baseline(baseline, candidate)
        typer.echo(f"{candidate} is the new baseline, in {baseline}.")
        code = 0
    raise typer.Exit(code)


def history(
    folder: Annotated[Path, typer.Argument(help="Folder of the history; --add makes it.")],
    add: Annotated[
        list[Path] | None, typer.Option(help="Run folder to add; may be repeated.")
    ] = None,
    plots: Annotated[
        Path | None, typer.Option(help="Folder for trend plots, one per target and suite.")
    ] = None,
) -> None:
    """An append-only history of runs, keyed by commit: trends, and where they changed."""
    from specbench.regression import history as record

    for run in add or []:
        typer.echo(f"{run}: {record.add(folder, run)} figures added")
    points = record.read(folder)
    if not points:
        raise UserError(f"{folder} holds no history: begin one with --add RUN.")
    for line in record.lines(points):
        typer.echo(line)
    if plots is not None:
        from specbench.regression.trends import draw

        for path in draw(points, plots):
            typer.echo(str(path))
