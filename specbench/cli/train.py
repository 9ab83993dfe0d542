"""`specbench train`: the embedded models, and whatever trainers are installed."""

import shlex
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from specbench.cli.fields import with_fields
from specbench.inputs.options import assignments, parse_options
from specbench.inputs.registry import TRAINERS
from specbench.training.settings import (
    Job,
    RecipeSettings,
    ResponseSettings,
    TargetShape,
    TrainSettings,
)


class Trainers(TyperGroup):
    """The commands of this module and, once it is used, one per installed trainer."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Make the trainers' commands, then parse."""
        for point in sorted(entry_points(group=TRAINERS), key=lambda point: point.name):
            self.add_command(_command(point))
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=Trainers,
    no_args_is_help=True,
    help="Train a target, have it write responses, train drafts on them.",
)

Corpora = Annotated[
    list[str],
    typer.Option("--corpus", help="PATH or PATH:TIMES_PER_EPOCH, JSON or JSONL; may be repeated."),
]
Exclude = Annotated[
    list[Path],
    typer.Option(help="Drop chats that share 13 words in a row with this file; may be repeated."),
]
Target = Annotated[
    str, typer.Option(help="Hub id, folder, or an embedded model such as tiny-target.")
]
Out = Annotated[Path, typer.Option(help="Folder of the trained model.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")]
Assignments = Annotated[
    list[str], typer.Option("--set", help="KEY=VALUE, see `list options RECIPE`; may be repeated.")
]

TARGET_RUN = TrainSettings(steps=3000, precision="auto")
DRAFT_RUN = TrainSettings(steps=3000, batch=8, length=512, lr=6e-4, warmup=0.04, precision="auto")
RESPONSES = ResponseSettings(precision="auto")


@app.command()
@with_fields("target")
def target(
    corpus: Corpora,
    out: Out,
    exclude: Exclude = [],  # noqa: B006 (typer reads the default, nobody changes it)
    vocabulary: Annotated[int, typer.Option(min=300, help="Tokens of a new tokenizer.")] = 4096,
    tokenizer: Annotated[
        str | None, typer.Option(help="Take this model's tokenizer instead of training one.")
    ] = None,
    init: Annotated[
        str | None, typer.Option(help="Go on from this model, its shape and its tokenizer.")
    ] = None,
    answers: Annotated[
        Path | None, typer.Option(help="Responses of that model: unlearn the repetitions in them.")
    ] = None,
    *,
    shape: TargetShape,
    settings: TrainSettings = TARGET_RUN,
    resume: Resume = False,
) -> None:
    """Train a small Qwen3-architecture model."""
    from specbench.training.embedded.target import prepare, train_target

    data, trained = prepare(corpus, exclude, vocabulary, tokenizer or init, settings.seed)
    for file in data.files:
        counts = f"{file.train} train, {file.held_out} held out, {file.excluded} left out"
        typer.echo(f"{file.file}: {counts}", err=True)
    result = train_target(
        data,
        trained,
        init or shape,
        settings,
        out,
        command=command_line(),
        answers=answers,
        resume=resume,
    )
    figure = result.validation["bits_per_byte"]
    typer.echo(f"{out}: loss {result.loss:.4f}, {figure:.4f} bits per byte on held-out rows")


@app.command()
@with_fields("responses")
def responses(
    target: Target,
    corpus: Corpora,
    out: Annotated[Path, typer.Option(help="JSONL of chats; what it already holds is kept.")],
    settings: ResponseSettings = RESPONSES,
) -> None:
    """Have a target answer the prompts of a corpus: the text that its drafts learn from."""
    from specbench.training.embedded.responses import write_responses

    count, tokens = write_responses(target, corpus, out, settings)
    typer.echo(f"{out}: {count} responses, {tokens} tokens")


def command_line() -> str:
    """The running command as a person types it."""
    return shlex.join(["specbench", *sys.argv[1:]])


def _command(point: EntryPoint) -> Any:
    """Make a trainer's command; the trainer itself is imported only when the command runs."""
    announced = entry_points(group=f"{TRAINERS}.options", name=point.name)
    settings = next(iter(announced)).load() if announced else RecipeSettings
    if issubclass(settings, RecipeSettings):
        run, summary = _recipe_command(point), f"Train a draft by the recipe {point.value}."
    else:
        run, summary = _plain_command(point, settings), f"Run the trainer {point.value}."
    one = typer.Typer(add_completion=False)
    one.command(point.name, help=summary)(run)
    return typer.main.get_command(one)


def _recipe_command(point: EntryPoint) -> Callable[..., None]:
    def run(
        target: Target,
        corpus: Corpora,
        out: Out,
        exclude: Exclude = [],  # noqa: B006 (typer reads the default, nobody changes it)
        settings: TrainSettings = DRAFT_RUN,
        resume: Resume = False,
        given: Assignments = [],  # noqa: B006 (as above)
    ) -> None:
        from specbench.training.recipe import train_draft

        recipe = point.load()
        options = parse_options(point.name, recipe.Options, assignments(given))
        job = Job(target, tuple(corpus), tuple(exclude), out, command_line())
        result = train_draft(recipe, options, job, settings, resume=resume)
        figures = ", ".join(f"{name} {value:.4f}" for name, value in result.validation.items())
        typer.echo(f"{out}: loss {result.loss:.4f}, {figures}")

    return with_fields(point.name)(run)


def _plain_command(point: EntryPoint, settings: type) -> Callable[..., None]:
    def run(
        *,
        target: Target,
        corpus: Corpora,
        out: Out,
        exclude: Exclude = [],  # noqa: B006 (typer reads the default, nobody changes it)
        options: Any,
    ) -> None:
        job = Job(target, tuple(corpus), tuple(exclude), out, command_line())
        typer.echo(f"{out}: {point.load()(options, job)}")

    run.__annotations__["options"] = settings
    return with_fields(point.name)(run)
