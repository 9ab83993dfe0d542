"""A tuning for a terminal: the cost of a verification, the depths, and which one pays."""

from collections.abc import Iterable

from rich import box
from rich.table import Table
from rich.text import Text

from specbench.inputs.options import as_typed
from specbench.report.labels import configuration_labels
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
    text = f"{name}: depth {best.depth} is best, {_number(speedup)}x"
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
    by_place = {(cost.rows, cost.context): cost for cost in tuning.verify}
    rows = []
    for count in sorted({cost.rows for cost in tuning.verify}):
        found = [by_place[count, context] for context in contexts]
        rows.append(
            [str(count), *(f"{c.milliseconds:.2f} [{c.low:.2f}, {c.high:.2f}]" for c in found)]
        )
    title = "Milliseconds of one verification: median and quartiles"
    return _table(title, ["rows", *(f"context {context}" for context in contexts)], rows)


def _depths(tuned: Tuned) -> Table:
    options = ", ".join(f"{k}={as_typed(v)}" for k, v in tuned.options.items() if v is not None)
    header = ["depth", "rows", "AAL", "draft ms", "verify ms", "pays at", "model", "measured"]
    rows = [
        [
            f"{depth.depth}{'*' if depth is tuned.best else ''}",
            f"{depth.rows:.1f}",
            _number(depth.aal).replace(" ", "\n", 1),
            f"{depth.draft:.2f}",
            f"{depth.verify:.2f}",
            f"{depth.break_even:.2f}",
            "-" if depth.model is None else f"{depth.model:.2f}x",
            _number(depth.measured).replace(" ", "\n", 1),
        ]
        for depth in tuned.depths
    ]
    return _table(f"{tuned.drafter} ({options})", header, rows)


def _table(title: str, header: list[str], rows: list[list[str]]) -> Table:
    table = Table(
        title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    for name in header:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _number(estimate: Estimate) -> str:
    if estimate.value is None:
        return "-"
    if estimate.interval is None:
        return f"{estimate.value:.2f}"
    low, high = estimate.interval
    return f"{estimate.value:.2f} [{low:.2f}, {high:.2f}]"
