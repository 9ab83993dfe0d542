"""A check for a terminal of 80 columns."""

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specbench.regression import outputs
from specbench.regression.check import Check


def rich_check(check: Check) -> RenderableType:
    """The findings as a table, then the notes and the conclusion; only words are folded."""
    lines = [*outputs.notes(check), outputs.conclusion(check)]
    return Group(*([_table(check)] if check.findings else []), *map(Text, lines))


def _table(check: Check) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=0)
    table.add_column("check", no_wrap=True)
    table.add_column("drafter", overflow="fold")
    for name in ("baseline", "candidate"):
        table.add_column(name, no_wrap=True)
    table.add_column("change", overflow="fold")
    for finding in check.findings:
        mark, stage, drafter, suite, base, candidate, change = outputs.cells(finding)
        stacked = (text.replace(" [", "\n[") for text in (base, candidate))
        table.add_row(*map(Text, (f"{mark} {stage}", f"{drafter}\non {suite}", *stacked, change)))
    return table
