"""`specbench run`: measure drafters on suites."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.cli.shared import RESULTS, names, sampling, silence

if TYPE_CHECKING:
    from specbench.inputs.plan import Plan

RUNNING = "Running"
MODELS = "Models"
ASKING = "Prompts and sampling"


def run(
    drafter: Annotated[
        list[str],
        typer.Option(
            metavar="NAME[KEY=VALUE|VALUE],...",
            help="Drafters, e.g. `dflash,prompt-lookup`. Settings in brackets make one row each: "
            "`dflash[block_size=4|8]`.",
            rich_help_panel=MODELS,
        ),
    ],
    suite: Annotated[
        list[str] | None,
        typer.Option(
            help="Suites, e.g. `gsm8k,mt-bench`, or the path of a JSONL file. Default: smoke.",
            rich_help_panel=ASKING,
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="Hub id or folder, e.g. `Qwen/Qwen3-8B`. Default: the embedded tiny-target.",
            rich_help_panel=MODELS,
        ),
    ] = None,
    revision: Annotated[
        str | None,
        typer.Option(help="Of the target's hub id; default: the newest.", rich_help_panel=MODELS),
    ] = None,
    draft_model: Annotated[
        str | None,
        typer.Option(
            help="Hub id or folder of the draft. Not needed for pairs in `specbench list pairs`. "
            "Where several drafters take one, it is for the one without a known pair.",
            rich_help_panel=MODELS,
        ),
    ] = None,
    override: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="DRAFTER.KEY=VALUE",
            help="An option of a drafter, e.g. `dflash.block_size=8`; may be repeated. `specbench "
            "list options NAME` shows them.",
            rich_help_panel=MODELS,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Prompts per suite: 32 are always the same 32, and the first of 64.",
            rich_help_panel=ASKING,
        ),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            min=1, help="Longest answer in tokens. Default: the suite's.", rich_help_panel=ASKING
        ),
    ] = None,
    temperature: Annotated[
        float, typer.Option(min=0, help="0 is greedy.", rich_help_panel=ASKING)
    ] = 0.0,
    top_k: Annotated[
        int, typer.Option(min=0, help="0 keeps all tokens.", rich_help_panel=ASKING)
    ] = 0,
    top_p: Annotated[float, typer.Option(help="1 keeps all.", rich_help_panel=ASKING)] = 1.0,
    thinking: Annotated[
        str,
        typer.Option(
            help="on or off, for chat templates that know the switch.", rich_help_panel=ASKING
        ),
    ] = "off",
    seed: Annotated[int, typer.Option(help="Of all sampling.", rich_help_panel=ASKING)] = 0,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="Folder with the suites' data files (or set SPECBENCH_DATA).",
            rich_help_panel=ASKING,
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(help="auto, cpu or cuda.", rich_help_panel=RUNNING)
    ] = "auto",
    dtype: Annotated[
        str,
        typer.Option(
            help="auto, float32, bfloat16 or float16. auto: float32 on a CPU, bfloat16 on CUDA.",
            rich_help_panel=RUNNING,
        ),
    ] = "auto",
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="CPU threads. Default: torch's own; 1 for the embedded target.",
            rich_help_panel=RUNNING,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the run. Default: one under results/, the same for the same command.",
            rich_help_panel=RUNNING,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show what would be run and stop.", rich_help_panel=RUNNING),
    ] = False,
    self_test: Annotated[
        bool,
        typer.Option(
            "--self-test",
            help="Measure the baseline against itself too: what this machine cannot tell apart.",
            rich_help_panel=RUNNING,
        ),
    ] = False,
    trace: Annotated[
        int,
        typer.Option(
            min=0,
            help="Prompts a suite to decode once more under a probe, to see where a round's time "
            "goes.",
            rich_help_panel=RUNNING,
        ),
    ] = 2,
    retry_failed: Annotated[
        bool,
        typer.Option(
            "--retry-failed",
            help="Measure once more what failed when this command ran before.",
            rich_help_panel=RUNNING,
        ),
    ] = False,
    allow_broken: Annotated[
        bool,
        typer.Option(
            "--allow-broken",
            help="Show the speedup of a drafter with broken output too, and exit with 0.",
            rich_help_panel=RUNNING,
        ),
    ] = False,
) -> None:
    """Measure drafters against autoregressive decoding, on the same prompts, side by side.

    The same command again continues an interrupted run. Exit code 1: some samples failed or are
    not the target's own output.

    On a laptop, with the embedded models:

        specbench run --drafter dflash,prompt-lookup,draft-model --suite smoke

    A published pair on a GPU:

        specbench run --target Qwen/Qwen3-8B --drafter dflash --suite gsm8k,humaneval --limit 64
    """
    from specbench.inputs.plan import Settings, make_plan

    silence()
    plan = make_plan(
        Settings(
            drafters=names("--drafter", drafter) + (("self-test",) if self_test else ()),
            suites=names("--suite", suite or ["smoke"]),
            target=target,
            revision=revision,
            draft_model=draft_model,
            overrides=tuple(override or ()),
            limit=limit,
            max_new_tokens=max_new_tokens,
            sampling=sampling(temperature, top_k, top_p),
            device=device,
            dtype=dtype,
            seed=seed,
            threads=threads,
            data_dir=data_dir,
            thinking=thinking,
        )
    )
    if target is None:
        typer.echo(f"No --target: taking the embedded {plan.target} on the {plan.device}.")
    folder = out or RESULTS / plan.name
    if dry_run:
        _describe(plan, folder)
        return
    raise typer.Exit(_execute(plan, folder, trace, retry_failed, allow_broken))


def _execute(plan: "Plan", folder: Path, trace: int, retry_failed: bool, allow_broken: bool) -> int:
    """Run, print the table, return the exit code."""
    from rich.console import Console

    from specbench.cli.live import display
    from specbench.cli.stopping import exit_code, terminable
    from specbench.report.summary import summarise
    from specbench.report.terminal import rich_table
    from specbench.run.runner import run as run_plan

    console = Console()
    command = shlex.join(["specbench", *sys.argv[1:]])
    try:
        with terminable(), display(console) as observer:
            outcome = run_plan(
                plan, folder, command, observer, retry_failed=retry_failed, trace=trace
            )
    except KeyboardInterrupt as stop:
        typer.echo(
            f"Stopped; what was measured is in {folder}, the same command goes on.", err=True
        )
        return exit_code(stop)
    if outcome.finished_before:
        typer.echo(f"{folder} is finished; to measure it once more, give another --out.")
    summary = summarise([folder], allow_broken=allow_broken)
    console.print(rich_table(summary, details=False))
    typer.echo(f"Records: {folder}\nMore of them: specbench report {folder}")
    if outcome.failed:
        typer.echo(
            f"{outcome.failed} of {plan.answers} samples failed; --retry-failed measures them once "
            "more.",
            err=True,
        )
    if outcome.broken:
        typer.echo(
            f"{outcome.broken} of {plan.answers} samples are not the target's own output.", err=True
        )
    return 1 if outcome.failed or (outcome.broken and not allow_broken) else 0


def _describe(plan: "Plan", folder: Path) -> None:
    from specbench.inputs.plan import turns

    revision = f" at {plan.revision}" if plan.revision else ""
    typer.echo(f"target   {plan.target}{revision} on {plan.device} in {plan.dtype}")
    for arm in plan.arms:
        options = ", ".join(f"{k}={v}" for k, v in arm.options.items() if k != "model")
        model = f"  draft model {arm.draft_model} ({arm.found})" if arm.draft_model else ""
        typer.echo(f"drafter  {arm.name}{model}{f'  {options}' if options else ''}")
    for suite in plan.suites:
        typer.echo(
            f"suite    {suite.name}: {len(suite.prompts)} prompts, {turns(suite)} turns, at most "
            f"{suite.max_new_tokens} new tokens each"
        )
    cells = len(plan.arms) * len(plan.suites)
    typer.echo(f"in all   {cells} cells, {plan.answers} answers, into {folder}; nothing was run")
