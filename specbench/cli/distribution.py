"""`specbench distribution`: do sampled tokens follow the target's distribution?"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specbench.cli import options
from specbench.cli.files import check_output, write
from specbench.cli.process import exit_code, silence, terminable
from specbench.errors import UserError

if TYPE_CHECKING:
    from specbench.core.target import Target
    from specbench.inputs.plan import Plan
    from specbench.run.arms import DrafterArm
    from specbench.run.distribution import DistributionTest

SCHEMA = 1
CODES = {"failed": 1, "no power": 3, "passed": 0}
"""Exit codes, the worst first: of several configurations the worst one's counts."""


def distribution(
    context: typer.Context,
    drafter: options.Drafters,
    target: options.Target = None,
    revision: options.Revision = None,
    draft_model: options.DraftModel = None,
    override: options.Overrides = None,
    temperature: options.Temperature = 1.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    samples: Annotated[
        int,
        typer.Option(min=40, help="Answers drawn; four times as many detect half the deviation."),
    ] = 400,
    tokens: Annotated[int, typer.Option(min=1, help="Emitted tokens per answer.")] = 6,
    prompts: Annotated[
        int, typer.Option(min=1, help="Prompts: the shortest of the suite smoke.")
    ] = 4,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    output: Annotated[Path | None, typer.Option(help="Write the result here, as JSON.")] = None,
    overwrite: options.Overwrite = False,
) -> None:
    """Test whether sampled tokens follow the target's distribution.

    For rules that keep the distribution and not the text. Many answers to a few prompts are
    drawn, and at every position the emitted tokens are compared with the target's own
    distribution (chi-square, corrected for the number of positions). The same test of unverified
    drafts is the control: it must fail, or the test could not have found anything.

    Exit code 0: passed; 1: failed; 3: inconclusive.

        specbench distribution --drafter draft-model --temperature 0.8
    """
    from specbench.inputs.plan import make_plan
    from specbench.run.arms import load

    silence()
    settings = options.settings(context)
    if settings.sampling.greedy:
        raise UserError("--temperature must be above 0: greedy texts are compared by `run`.")
    if output is not None:
        check_output(output, overwrite)
    plan = make_plan(settings)
    if len(plan.arms) == 1:
        raise UserError("--drafter names the baseline only: name a drafter to test.")
    asked = {"samples": samples, "tokens": tokens, "prompts": prompts}
    try:
        with terminable():
            loaded, arms = load(plan)
            results = [_verified(plan, loaded, ready, **asked) for ready in arms[1:]]
    except KeyboardInterrupt as stop:
        raise typer.Exit(exit_code(stop)) from None
    if output is not None:
        result = {"schema": SCHEMA, **asked, "seed": seed, "results": results}
        write(output, json.dumps(result, indent=2) + "\n")
    verdicts = {result["verdict"] for result in results}
    raise typer.Exit(next(code for verdict, code in CODES.items() if verdict in verdicts))


def _verified(
    plan: "Plan", target: "Target", ready: "DrafterArm", *, samples: int, tokens: int, prompts: int
) -> dict[str, Any]:
    """Test one drafter, print what was found, return it as JSON values."""
    from specbench.run.distribution import CONTROL, distribution_test
    from specbench.run.turns import Asking

    cell, drafter = ready.cells[0], ready.bound
    turns = Asking(target.tokenizer, plan.thinking).first_turns(plan.suites[0])
    chosen = sorted((turn.prompt for turn in turns), key=len)[:prompts]
    with _progress(cell.drafter, 2 * samples) as tell:
        test, control = (
            distribution_test(
                target,
                drafter,
                rule,
                chosen,
                samples=samples,
                tokens=tokens,
                sampling=plan.sampling,
                seed=plan.seed,
                tell=tell,
            )
            for rule in (ready.rule, CONTROL)
        )
    verdict = _verdict(test, control)
    _print(cell.drafter, test, control, verdict)
    return {"verdict": verdict, "cell": asdict(cell), "test": asdict(test),
            "control": asdict(control), "threshold": test.threshold}  # fmt: skip


def _verdict(test: "DistributionTest", control: "DistributionTest") -> str:
    if not test.passed:
        return "failed"
    return "no power" if control.passed else "passed"


def _print(
    drafter: str, test: "DistributionTest", control: "DistributionTest", verdict: str
) -> None:
    degrees = test.positions[0].degrees
    typer.echo(
        f"{drafter}, rule {test.rule}: {test.samples} answers, {test.drafted} tokens drafted"
    )
    typer.echo(f"position  chi-square({degrees})  p        p of drafts at face value")
    for one, other in zip(test.positions, control.positions, strict=True):
        typer.echo(f"{one.position:<8}  {one.chi_square:<14.1f}  {one.p:<7.2g}  {other.p:.2g}")
    if test.impossible:
        typer.echo(f"{test.impossible} emitted tokens have no probability at all.")
    typer.echo({
        "passed": f"passed: no p below {test.threshold:.2g}, and drafts at face value fail",
        "failed": f"FAILED: a p below {test.threshold:.2g} or an impossible token",
        "no power": "no power: drafts taken at face value pass as well, so nothing is shown; "
        "take more --samples, or a drafter that drafts otherwise than the target",
    }[verdict])  # fmt: skip


@contextmanager
def _progress(name: str, total: int) -> Iterator[Callable[[], None]]:
    """Something to call after each answer: it moves a bar on a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(name, total=total)
        yield lambda: bar.advance(task)
