"""`specbench tune`: what a verification costs here, and the draft length that pays."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.cli import options
from specbench.cli.files import make_folder, write
from specbench.cli.process import silence
from specbench.errors import UserError
from specbench.inputs.options import as_typed

if TYPE_CHECKING:
    from rich.table import Table

    from specbench.run.tune import Tuned, Tuning
    from specbench.stats.metrics import Estimate


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
        str, typer.Option(help="Draft lengths to try; those beyond the drafter's are left out.")
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

    Measures a verification by rows and context length, then AAL, drafting cost and speed at each
    draft length. Beside the measured speedup stands that of the model
    AAL * step / (draft + verify), and the AAL from which on the length pays.

        specbench tune --drafter dflash,prompt-lookup,draft-model
    """
    from rich.console import Console

    from specbench.inputs.plan import make_plan
    from specbench.run.tune import TUNING, to_json
    from specbench.run.tune import tune as measure

    silence()
    plan = make_plan(options.settings(context))
    if len(plan.suites) > 1:
        raise UserError("--suite names several suites, and the draft length is tuned on one.")
    if out is not None:
        # Now, so that nothing is measured in vain.
        make_folder(out)
    console = Console()
    with console.status("measuring"):
        tuning = measure(plan, _depths(depths))
    console.print(_curve(tuning), *(_table(tuned) for tuned in tuning.drafters))
    typer.echo(_best(tuning))
    if out is not None:
        write(out / TUNING, to_json(tuning))
        typer.echo(f"Written: {out / TUNING}")


def _depths(text: str) -> list[int]:
    try:
        depths = sorted({int(part) for part in text.split(",")})
    except ValueError:
        depths = []
    if not depths or depths[0] < 1:
        raise UserError(f"--depths {text} must be numbers from 1 on, with commas between them.")
    return depths


def _curve(tuning: "Tuning") -> "Table":
    contexts = sorted({cost.context for cost in tuning.verify})
    table = _plain("Milliseconds of one verification, with the middle half of all")
    table.add_column("rows", justify="right")
    for context in contexts:
        table.add_column(f"context {context}", justify="right")
    by_place = {(cost.rows, cost.context): cost for cost in tuning.verify}
    for rows in sorted({cost.rows for cost in tuning.verify}):
        found = [by_place[rows, context] for context in contexts]
        cells = [f"{c.milliseconds:.2f} \\[{c.low:.2f}, {c.high:.2f}]" for c in found]
        table.add_row(str(rows), *cells)
    return table


def _plain(title: str) -> "Table":
    from rich import box
    from rich.table import Table

    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))


def _table(tuned: "Tuned") -> "Table":
    given = ", ".join(f"{k}={as_typed(v)}" for k, v in tuned.options.items() if v is not None)
    table = _plain(f"{tuned.drafter} ({given})")
    for name in (
        "depth", "rows", "AAL", "draft ms", "verify ms", "pays at", "model", "measured",
    ):  # fmt: skip
        table.add_column(name, justify="right", no_wrap=True)
    for depth in tuned.depths:
        mark = "*" if depth is tuned.best else ""
        table.add_row(
            f"{depth.depth}{mark}",
            f"{depth.rows:.1f}",
            _number(depth.aal).replace(" ", "\n", 1),
            f"{depth.draft:.2f}",
            f"{depth.verify:.2f}",
            f"{depth.break_even:.2f}",
            "-" if depth.model is None else f"{depth.model:.2f}x",
            _number(depth.measured).replace(" ", "\n", 1),
        )
    return table


def _number(estimate: "Estimate") -> str:
    if estimate.value is None:
        return "-"
    if estimate.interval is None:
        return f"{estimate.value:.2f}"
    low, high = estimate.interval
    return f"{estimate.value:.2f} \\[{low:.2f}, {high:.2f}]"


def _labels(drafters: Sequence["Tuned"]) -> list[str]:
    """The drafter's name, with the options that tell it from others of its name."""
    from specbench.report.labels import distinguish

    labels = []
    for tuned in drafters:
        same = [other for other in drafters if other.drafter == tuned.drafter]
        notes = distinguish([{k: as_typed(v) for k, v in one.options.items()} for one in same])
        note = notes[next(i for i, one in enumerate(same) if one is tuned)]
        labels.append(f"{tuned.drafter} ({note})" if note else tuned.drafter)
    return labels


def _best(tuning: "Tuning") -> str:
    where = f"{tuning.prompts} prompts of {tuning.suite}"
    lines = [f"{where}; an autoregressive step takes {tuning.step:.2f} ms here."]
    for label, tuned in zip(_labels(tuning.drafters), tuning.drafters, strict=True):
        best = tuned.best
        if best is not None:
            name = f"{label}: depth {best.depth}"
            pays = "" if (best.measured.value or 0) > 1 else ", which is slower than none"
            lines.append(f"{name} is best, {_number(best.measured)}x{pays}.".replace("\\", ""))
    return "\n".join(lines)
