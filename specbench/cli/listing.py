"""`specbench list`: what can be run."""

import inspect
import re
from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from specbench.inputs import pairs, registry, suite
from specbench.inputs.options import as_typed

app = typer.Typer(
    no_args_is_help=True, help="List drafters and their options, suites, or published drafts."
)
ATTRIBUTE = re.compile(r"^    (\w+(?:, \w+)*): (.+(?:\n {8}.+)*)", re.MULTILINE)
"""An entry of a docstring's Attributes: names, and what they mean."""


@app.command()
def drafters() -> None:
    """Every installed drafter and the distribution it comes from."""
    rows = [(one.name, one.entry.value, one.distribution) for one in registry.registered()]
    _print(("drafter", "class", "distribution"), rows)


@app.command()
def options(
    drafter: Annotated[str, typer.Argument(help="Its name, e.g. dflash.")],
) -> None:
    """What can be set of a drafter, by --set DRAFTER.KEY=VALUE or DRAFTER[KEY=VALUE]."""
    kind = registry.drafter_class(drafter).Options
    meanings = _meanings(kind)
    rows = [
        (
            field.name,
            "needed" if field.default is MISSING else as_typed(field.default),
            meanings.get(field.name, ""),
        )
        for field in fields(kind)
    ]
    _print(("option", "default", "meaning"), rows)


def _meanings(kind: type) -> dict[str, str]:
    """What the docstrings of a dataclass and its bases say of its fields."""
    return {
        name: " ".join(text.replace("`", "").split())
        for one in reversed(kind.__mro__)
        for names, text in ATTRIBUTE.findall(inspect.cleandoc(one.__doc__ or ""))
        for name in names.split(", ")
    }


@app.command()
def suites() -> None:
    """The shipped suites; a JSONL file of your own prompts works by its path."""
    rows = [
        (card.name, str(card.rows), str(card.max_new_tokens), card.licence, card.description)
        for card in suite.list_suites()
    ]
    _print(("suite", "prompts", "max new tokens", "licence", "what it is"), rows)


@app.command(name="pairs")
def list_pairs() -> None:
    """Targets and the drafts that were published for them; `run` finds these by itself."""
    takers: dict[tuple[str, str, str], list[str]] = {}
    for pair in pairs.all_pairs():
        takers.setdefault((pair.target, pair.draft, pair.note), []).append(pair.drafter)
    rows = [
        (target, ", ".join(drafters), draft, note)
        for (target, draft, note), drafters in takers.items()
    ]
    _print(("target", "drafters", "draft model", "note"), rows)


def _print(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """A table on a terminal, tab-separated lines elsewhere (nothing is cut off there)."""
    console = Console()
    if not console.is_terminal:
        for row in (columns, *rows):
            typer.echo("\t".join(row))
        return
    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)
