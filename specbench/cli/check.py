"""`specbench check` and `specbench history`: has it got worse?"""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.cli.files import write
from specbench.errors import UserError

if TYPE_CHECKING:
    from specbench.regression.check import Check

BENCHMARK_FILES = ("bigger-is-better.json", "smaller-is-better.json")


def check(
    candidate: Annotated[Path, typer.Argument(help="Run folder to be judged.")],
    baseline: Annotated[Path, typer.Option(help="Run folder to judge it by.")] = Path(
        "results/baseline"
    ),
    aal_tolerance: Annotated[
        float, typer.Option(min=0, max=1, help="Relative loss of AAL that is let pass.")
    ] = 0.02,
    speed_tolerance: Annotated[
        float, typer.Option(min=0, max=1, help="Relative loss of speedup that is let pass.")
    ] = 0.10,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML there.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write JSON there.")] = None,
    benchmarks: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help=f"Write {' and '.join(BENCHMARK_FILES)} for github-action-benchmark.",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Judge cells whose settings differ, too.")
    ] = False,
    update: Annotated[
        bool, typer.Option("--update", help="Make the candidate the new baseline.")
    ] = False,
) -> None:
    """Judge a run by a baseline run: is all there, still lossless, and as good?

    A figure fails where its loss exceeds the tolerance and the interval of the change, paired over
    the prompts both have, excludes "no change". All figures of a kind share the 5 % by which an
    interval errs, so many raise no more false alarms than one. Speed is judged on the same machine
    only.

    Exit codes: 0 fine, 1 regression, 2 usage or unreadable, 3 not comparable.
    """
    from specbench.records.records import MANIFEST
    from specbench.regression.check import check as judge

    if not (baseline / MANIFEST).exists() and not update:
        raise UserError(f"{baseline} holds no run to judge by: --update makes it of {candidate}.")
    code = 0
    if (baseline / MANIFEST).exists() or not update:
        limits = {"AAL": aal_tolerance, "speedup": speed_tolerance}
        done = judge(candidate, baseline, limits, force=force)
        _show(done)
        _publish(done, junit, json_file, benchmarks)
        code = done.exit_code
    if update:
        _replace(baseline, candidate)
        typer.echo(f"{candidate} is the new baseline, in {baseline}.")
        code = 0
    raise typer.Exit(code)


def history(
    folder: Annotated[Path, typer.Argument(help="Folder of the history; made with --add.")],
    add: Annotated[
        list[Path] | None, typer.Option(help="Run folder to add; may be repeated.")
    ] = None,
    plots: Annotated[
        Path | None, typer.Option(help="Folder for trend plots, one a target and suite.")
    ] = None,
) -> None:
    """An append-only history of runs, keyed by commit: trends, and where they changed."""
    from specbench.regression import history as record

    for run in add or []:
        typer.echo(f"{run}: {record.add(folder, run)} figures added")
    points = record.read(folder)
    if not points:
        raise UserError(f"{folder} holds no history: begin one with --add RUN.")
    for name, group in record.series(points).items():
        target, suite, figure, drafter, _, settings = name
        if record.several_settings(points, group[0]):
            drafter = f"{drafter} (settings {settings or 'unknown'})"
        changes = [f"{group[i].commit or group[i].run}"[:10] for i in record.change_points(group)]
        newest = group[-1]
        text = f"{target}, {suite}, {drafter}: {figure} {newest.value:.3f}, {len(group)} runs"
        typer.echo(text + (f", new level at {', '.join(changes)}" if changes else ""))
    if plots is not None:
        from specbench.regression.trends import draw

        for path in draw(points, plots):
            typer.echo(str(path))


def _show(done: "Check") -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from specbench.regression import outputs

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in outputs.HEADER:
        table.add_column(name, overflow="fold")
    for finding in done.findings:
        table.add_row(*map(Text, outputs.cells(finding)))
    console = Console()
    if done.findings:
        console.print(table)
    for line in [*outputs.notes(done), outputs.conclusion(done)]:
        console.print(Text(line))


def _publish(
    done: "Check", junit: Path | None, json_file: Path | None, benchmarks: Path | None
) -> None:
    """The files that were asked for, and the summary of a job that has one."""
    from specbench.regression import outputs

    outputs.append_summary(done)
    if junit is not None:
        write(junit, outputs.junit(done))
    if json_file is not None:
        write(json_file, outputs.to_json(done))
    if benchmarks is not None:
        write(benchmarks / BENCHMARK_FILES[0], outputs.benchmark_list(done))
        write(benchmarks / BENCHMARK_FILES[1], outputs.benchmark_list_smaller(done))


def _replace(baseline: Path, candidate: Path) -> None:
    """The candidate's manifest, samples and traces take the baseline's place."""
    from specbench.records.records import MANIFEST, SAMPLES, load_manifest
    from specbench.records.traces import TRACES

    load_manifest(candidate)
    if candidate.resolve() == baseline.resolve():
        raise UserError(f"{candidate} is the baseline already.")
    try:
        baseline.mkdir(parents=True, exist_ok=True)
        if (candidate / TRACES).exists():
            shutil.copyfile(candidate / TRACES, baseline / TRACES)
        else:
            (baseline / TRACES).unlink(missing_ok=True)
        for name in (SAMPLES, MANIFEST):
            draft = baseline / f"{name}.new"
            shutil.copyfile(candidate / name, draft)
            draft.replace(baseline / name)
    except OSError as error:
        raise UserError(f"{baseline} cannot be written: {error.strerror}.") from error
