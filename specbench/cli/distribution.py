"""`specbench distribution`: do sampled tokens follow the target's distribution?"""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.cli import options
from specbench.cli.files import check_output, write
from specbench.cli.process import silence, terminable
from specbench.errors import UserError

if TYPE_CHECKING:
    from specbench.run.distribution import Finding

CODES = {"failed": 1, "inconclusive": 3, "passed": 0}
"""Exit codes, the worst first: of several configurations the worst one's counts."""

SENTENCES = {
    "passed": "passed: no p below {threshold:.2g}, and unverified drafts fail",
    "failed": "FAILED: a p below {threshold:.2g} or an impossible token",
    "inconclusive": "Inconclusive: even unverified drafts pass. Raise --samples, or test a drafter "
    "that differs more from the target.",
}


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
    from rich.console import Console
    from rich.progress import Progress

    from specbench.inputs.plan import make_plan
    from specbench.run.arms import load
    from specbench.run.distribution import Effort, examine, to_json

    silence()
    settings = options.settings(context)
    if settings.sampling.greedy:
        raise UserError("--temperature must be above 0: greedy texts are compared by `run`.")
    if output is not None:
        check_output(output, overwrite)
    plan = make_plan(settings)
    if len(plan.arms) == 1:
        raise UserError("--drafter names the baseline only: name a drafter to test.")
    effort = Effort(samples, tokens, prompts)
    findings = []
    console = Console(stderr=True)
    with terminable():
        loaded, arms = load(plan)
        for arm in arms[1:]:
            with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
                task = bar.add_task(arm.cells[0].drafter, total=2 * samples)
                tell = partial(bar.advance, task)
                findings.append(examine(plan, loaded, arm, effort, tell))
            _print(findings[-1])
    if output is not None:
        write(output, to_json(findings, effort, seed))
    verdicts = {finding.verdict for finding in findings}
    raise typer.Exit(next(code for verdict, code in CODES.items() if verdict in verdicts))


def _print(finding: "Finding") -> None:
    test, control = finding.test, finding.control
    degrees = test.positions[0].degrees
    typer.echo(
        f"{finding.cell.drafter}, rule {test.rule}: {test.samples} answers, {test.drafted} tokens "
        "drafted"
    )
    typer.echo(f"position  chi-square({degrees})  p        p of unverified drafts")
    for one, other in zip(test.positions, control.positions, strict=True):
        typer.echo(f"{one.position:<8}  {one.chi_square:<14.1f}  {one.p:<7.2g}  {other.p:.2g}")
    if test.impossible:
        typer.echo(f"{test.impossible} emitted tokens have no probability at all.")
    typer.echo(SENTENCES[finding.verdict].format(threshold=test.threshold))
