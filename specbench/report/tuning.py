"""A tuning for a terminal: the cost of a verification, the depths, and which one pays."""

from collections.abc import Iterable

from rich.table import Table

from specbench.inputs.options import as_typed
from specbench.report.labels import configuration_labels
from specbench.report.runs import group_by
from specbench.report.terminal import rich_grid
from specbench.stats.bootstrap import FEW_PROMPTS, Estimate
from specbench.stats.costs import Tuned, Tuning


def tuning_tables(tuning: Tuning) -> list[Table]:
    """The curve of verification costs, then one table per drafter."""
    return [_curve(tuning), *map(_depths, tuning.drafters)]


def conclusion(tuning: Tuning) -> str:
    """One line per drafter: the best depth, how sure its speedup is, and what rivals it."""
    where = f"{tuning.prompts} prompts of {tuning.suite}"
    lines = [f"{where}; an autoregressive step takes {tuning.step:.2f} ms here."]
    names = configuration_labels([(one.drafter, one.options) for one in tuning.drafters])
    lines += map(_best, names, tuning.drafters)
    return "\n".join(line for line in lines if line)


def _best(name: str, tuned: Tuned) -> str:
    best, speedup, undecided = tuned.best, tuned.best_speedup, tuned.undecided
    if best is None or speedup is None:
        return ""
    text = f"{name}: depth {best.depth} is best, {speedup.text()}x"
    if len(tuned.depths) > 1:
        text += f" (interval corrected for the choice among {len(tuned.depths)} depths)"
    text += "" if (speedup.value or 0) > 1 else ", slower than no drafter"
    if undecided and speedup.n < FEW_PROMPTS:
        return f"{text}; too few prompts to tell it apart from other depths."
    if undecided:
        return f"{text}; not told apart from {_listed(undecided)}."
    return f"{text}; told apart from every other depth." if len(tuned.depths) > 1 else f"{text}."


def _listed(depths: Iterable[int]) -> str:
    *first, last = map(str, depths)
    return f"depths {', '.join(first)} and {last}" if first else f"depth {last}"


def _curve(tuning: Tuning) -> Table:
    contexts = sorted({cost.context for cost in tuning.verify})
    by_context = sorted(tuning.verify, key=lambda cost: (cost.rows, cost.context))
    rows = [
        [str(count), *(f"{c.milliseconds:.2f} [{c.low:.2f}, {c.high:.2f}]" for c in costs)]
        for count, costs in group_by(by_context, lambda cost: cost.rows).items()
    ]
    title = "Milliseconds of one verification: median and quartiles"
    return rich_grid(title, ["rows", *(f"context {context}" for context in contexts)], rows)


def _depths(tuned: Tuned) -> Table:
    options = ", ".join(f"{k}={as_typed(v)}" for k, v in tuned.options.items() if v is not None)
    header = ["depth", "rows", "AAL", "draft ms", "verify ms", "pays at", "model", "measured"]
    rows = [
        [
            f"{depth.depth}{'*' if depth is tuned.best else ''}",
            f"{depth.rows:.1f}",
            _stacked(depth.aal),
            f"{depth.draft:.2f}",
            f"{depth.verify:.2f}",
            f"{depth.break_even:.2f}",
            "-" if depth.model is None else f"{depth.model:.2f}x",
            _stacked(depth.measured),
        ]
        for depth in tuned.depths
    ]
    return rich_grid(f"{tuned.drafter} ({options})", header, rows)


def _stacked(estimate: Estimate) -> str:
    return estimate.text().replace(" ", "\n", 1) or "-"
