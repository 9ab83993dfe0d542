"""`specbench list`: what can be run."""

from collections.abc import Sequence

import typer
from rich.console import Console
from rich.table import Table

from specbench import pairs, registry, suite

app = typer.Typer(no_args_is_help=True, help="List drafters, suites, or published drafts.")


@app.command()
def drafters() -> None:
    """Every installed drafter and the distribution it comes from."""
    rows = [(one.name, one.entry.value, one.distribution) for one in registry.registered()]
    _print(("drafter", "class", "distribution"), rows)


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
    table = Table(*columns)
    for row in rows:
        table.add_row(*row)
    console.print(table)
