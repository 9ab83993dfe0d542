"""`specbench list`: what can be run."""

from typing import Annotated

import typer

from specbench.cli.tables import show
from specbench.inputs import cards, pairs, registry
from specbench.inputs.options import describe
from specbench.inputs.registry import DRAFTERS, GENERATORS, TRAINERS
from specbench.training.settings import RecipeSettings

app = typer.Typer(
    no_args_is_help=True, help="List drafters and their options, suites, or published drafts."
)
HOW_TO_SET = {
    DRAFTERS: "--set {name}.KEY=VALUE or --drafter {name}[KEY=VALUE]",
    TRAINERS: "specbench train {name} {form}",
    GENERATORS: "specbench generate --set KEY=VALUE",
}


@app.command()
def drafters() -> None:
    """Every installed drafter and preset, and the distribution it comes from."""
    rows = [
        (one.name, _what(one), one.distribution, one.preset.note if one.preset else "")
        for one in registry.registered()
    ]
    show(("drafter", "class or preset", "distribution", "note"), rows)


def _what(one: registry.Registered) -> str:
    """Its class, or for a preset its drafter with the preset's settings."""
    if one.preset is None:
        return one.entry.value
    return f"{one.base}[{','.join(f'{key}={text}' for key, text in one.settings.items())}]"


@app.command()
def options(
    name: Annotated[
        str, typer.Argument(help="Name of a drafter, a trainer or a generator, e.g. dflash.")
    ],
) -> None:
    """The settings of everything that has this name, with defaults and meanings."""
    groups = [
        group
        for group in registry.KINDS
        if any(one.name == name for one in registry.registered(group))
    ]
    for group in groups or [DRAFTERS]:
        one, kind = registry.find(name, group), registry.options_class(name, group)
        form = "--set KEY=VALUE" if issubclass(kind, RecipeSettings) else "--KEY VALUE"
        how = HOW_TO_SET[group].format(name=name, form=form)
        typer.echo(f"{registry.KINDS[group]} {name}: {how}")
        rows = [
            (
                field.name,
                field.type,
                one.settings.get(field.name, field.default or "required"),
                field.help,
            )
            for field in describe(kind)
        ]
        show(("option", "type", "default", "meaning"), rows)


@app.command()
def suites() -> None:
    """The shipped suites; a JSONL file of your own prompts works by its path."""
    rows = [
        (c.name, c.rows, c.max_new_tokens, c.licence, c.description, c.citation)
        for c in cards.list_suites()
    ]
    show(("suite", "prompts", "max new tokens", "licence", "what it is", "citation"), rows)


@app.command(name="pairs")
def list_pairs() -> None:
    """Targets and the drafts that were published for them; `run` finds these by itself."""
    takers: dict[tuple[str, str, str], list[str]] = {}
    for drafter, pair in pairs.all_pairs():
        takers.setdefault((pair.target, pair.draft, pair.note), []).append(drafter)
    rows = [(target, ", ".join(names), *rest) for (target, *rest), names in takers.items()]
    show(("target", "drafters", "draft model", "note"), rows)
