"""`specbench run`: measure drafters on suites."""

import shlex
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.cli import options
from specbench.cli.files import RESULTS
from specbench.cli.options import running
from specbench.cli.process import silence, terminable
from specbench.cli.tables import show

if TYPE_CHECKING:
    from specbench.inputs.plan import Plan
    from specbench.run.runner import Outcome


def run(
    context: typer.Context,
    drafter: options.Drafters,
    suite: options.Suites = None,
    target: options.Target = None,
    revision: options.Revision = None,
    draft_model: options.DraftModel = None,
    override: options.Overrides = None,
    limit: options.Limit = None,
    max_new_tokens: options.MaxNewTokens = None,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    thinking: options.Thinking = "off",
    seed: options.Seed = 0,
    data_dir: options.DataDir = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    out: Annotated[
        Path | None,
        running(
            help="Folder of the run. Default: one under results/, the same for the same command."
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        running(
            "--dry-run",
            help="Show what would be run, what of it is already answered and how long the rest "
            "takes, and stop.",
        ),
    ] = False,
    self_test: Annotated[
        bool,
        running(
            "--self-test",
            help="Also measure the baseline against itself: the smallest difference that this "
            "machine can resolve.",
        ),
    ] = False,
    trace: Annotated[
        int,
        running(
            min=0,
            help="Prompts per suite to decode again under a probe, to see where the time goes.",
        ),
    ] = 2,
    retry_failed: Annotated[
        bool,
        running("--retry-failed", help="Measure again what failed when this command ran before."),
    ] = False,
    allow_broken: options.AllowBroken = False,
) -> None:
    """Measure drafters against autoregressive decoding, on the same prompts, side by side.

    The same command again continues an interrupted run. Exit code 1: some samples failed or are
    not the target's own output.

    On a laptop, with the embedded models:

        specbench run --drafter dflash,prompt-lookup,draft-model --suite smoke

    A published pair on a GPU:

        specbench run --target Qwen/Qwen3-8B --drafter dflash --suite gsm8k,humaneval --limit 64
    """
    from specbench.inputs.plan import make_plan

    silence()
    plan = make_plan(options.settings(context, *(["self-test"] if self_test else [])))
    if target is None:
        typer.echo(f"No --target: taking the embedded {plan.target} on the {plan.device}.")
    folder = out or RESULTS / plan.name
    if dry_run:
        _describe(plan, folder)
        return
    outcome = _execute(plan, folder, trace, retry_failed)
    raise typer.Exit(_conclude(plan, outcome, allow_broken))


def _execute(plan: "Plan", folder: Path, trace: int, retry_failed: bool) -> "Outcome":
    from rich.console import Console

    from specbench.cli.live import Display
    from specbench.run.runner import run as run_plan

    command = shlex.join(["specbench", *sys.argv[1:]])
    last_words = partial(_stopped, plan, folder, command)
    with terminable(last_words), Display(Console()) as observer:
        return run_plan(plan, folder, command, observer, retry_failed=retry_failed, trace=trace)


def _conclude(plan: "Plan", outcome: "Outcome", allow_broken: bool) -> int:
    """Print the table of a run that came to its end; return the exit code."""
    from rich.console import Console

    from specbench.report.summary import summarise
    from specbench.report.terminal import rich_table

    folder = outcome.folder
    if outcome.finished_before:
        typer.echo(f"{folder} is finished; to measure it once more, give another --out.")
    summary = summarise([folder], allow_broken=allow_broken)
    Console().print(rich_table(summary, details=False))
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
    """What would be run, and what of it is already answered in its folder."""
    from specbench.cli.live import duration
    from specbench.run.progress import progress

    revision = f" at {plan.revision}" if plan.revision else ""
    typer.echo(f"target   {plan.target}{revision} on {plan.device} in {plan.dtype}")
    for arm in plan.arms:
        model = f"  draft model {arm.draft_model} ({arm.found})" if arm.draft_model else ""
        typer.echo(f"drafter  {arm.label}{model}")
    for suite in plan.suites:
        typer.echo(
            f"suite    {suite.name}: {len(suite.prompts)} prompts, {suite.turns} turns, at most "
            f"{suite.max_new_tokens} new tokens each"
        )
    parts = progress(plan, folder)
    left = [part.seconds_left for part in parts]
    times = ["unknown" if seconds is None else duration(seconds) for seconds in left]
    rows = [
        (part.suite.name, part.arm.label, len(part.answers), part.missing, time)
        for part, time in zip(parts, times, strict=True)
    ]
    show(("suite", "drafter", "answered", "missing", "time left"), rows)
    missing = sum(part.missing for part in parts)
    known = [seconds for seconds in left if seconds is not None]
    about = f", about {duration(sum(known))}" if len(known) == len(left) else ""
    typer.echo(
        f"in all   {len(parts)} cells, {plan.answers} answers, {missing} of them missing in "
        f"{folder}{about}; nothing was run"
    )


def _stopped(plan: "Plan", folder: Path, command: str) -> Iterator[str]:
    """What an interrupted run has, and how to go on with it."""
    from specbench.run.progress import progress

    yield f"Stopped; what was measured is in {folder}."
    parts = progress(plan, folder)
    for suite in plan.suites:
        arms = [part for part in parts if part.suite is suite]
        done = [prompt for prompt in suite.prompts if all(part.has(prompt) for part in arms)]
        last = f", the last of them {done[-1].id}" if done else ""
        yield f"{suite.name}: {len(done)} of {len(suite.prompts)} prompts are done{last}."
        for prompt in suite.prompts:
            have = [part.arm.label for part in arms if part.has(prompt)]
            if have and prompt not in done:
                lack = [part.arm.label for part in arms if not part.has(prompt)]
                yield (
                    f"{suite.name}: {prompt.id} is answered by {', '.join(have)}; not by "
                    f"{', '.join(lack)}."
                )
    yield f"To go on: {command}"
