"""`specbench train`: the embedded models, and drafts by the recipes that are installed."""

import shlex
import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from specbench.training.loop import TrainSettings

RECIPES = "specbench.trainers"
"""Entry-point group of the recipes; each becomes a subcommand of its name."""


app = typer.Typer(
    no_args_is_help=True, help="Train a target, have it write responses, train drafts on them."
)

Corpora = Annotated[
    list[str],
    typer.Option("--corpus", help="PATH or PATH:TIMES_AN_EPOCH, JSON or JSONL; may be repeated."),
]
Exclude = Annotated[
    list[Path],
    typer.Option(help="Drop chats that share 13 words in a row with this file; may be repeated."),
]
Target = Annotated[
    str, typer.Option(help="Hub id, folder, or an embedded model such as tiny-target.")
]
Out = Annotated[Path, typer.Option(help="Folder of the trained model.")]
Steps = Annotated[int, typer.Option(min=1)]
BatchSize = Annotated[int, typer.Option(min=1, help="Sequences in a batch.")]
Accumulate = Annotated[int, typer.Option(min=1, help="Batches in a step.")]
Length = Annotated[int, typer.Option(min=8, help="Tokens in a sequence.")]
Rate = Annotated[float, typer.Option(min=0, help="Highest learning rate.")]
Warmup = Annotated[float, typer.Option(min=0, max=1, help="Part of the steps with a rising rate.")]
Seed = Annotated[int, typer.Option()]
Precision = Annotated[str, typer.Option(help="bf16, fp32, or auto: bf16 on CUDA.")]
Compiled = Annotated[bool, typer.Option("--compile", help="Use torch.compile.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")]
Every = Annotated[int, typer.Option(min=1, help="Steps between two checkpoints.")]
Assignments = Annotated[
    list[str], typer.Option("--set", help="A setting of the recipe, KEY=VALUE; may be repeated.")
]


@app.command()
def target(
    corpus: Corpora,
    out: Out,
    exclude: Exclude = [],  # noqa: B006 (typer reads the default, nobody changes it)
    vocabulary: Annotated[int, typer.Option(min=300)] = 4096,
    tokenizer: Annotated[
        str | None, typer.Option(help="Take this model's tokenizer instead of training one.")
    ] = None,
    init: Annotated[
        str | None, typer.Option(help="Go on from this model, its shape and its tokenizer.")
    ] = None,
    answers: Annotated[
        Path | None,
        typer.Option(help="Responses of that model: unlearn the repetitions in them."),
    ] = None,
    hidden: int = 192,
    layers: int = 12,
    heads: int = 3,
    kv_heads: int = 1,
    head_dim: int = 64,
    intermediate: int = 512,
    tied: bool = True,
    steps: Steps = 3000,
    batch: BatchSize = 16,
    accumulate: Accumulate = 1,
    length: Length = 256,
    lr: Rate = 2e-3,
    warmup: Warmup = 0.02,
    seed: Seed = 0,
    precision: Precision = "auto",
    compiled: Compiled = False,
    checkpoint_every: Every = 500,
    resume: Resume = False,
) -> None:
    """Train a small Qwen3-architecture model."""
    from specbench.training.embedded.target import TargetShape, prepare, train_target

    data, words = prepare(corpus, exclude, vocabulary, tokenizer or init, seed)
    for file in data.files:
        counts = f"{file.train} train, {file.held_out} held out, {file.excluded} left out"
        typer.echo(f"{file.file}: {counts}", err=True)
    result = train_target(
        data,
        words,
        init or TargetShape(hidden, layers, heads, kv_heads, head_dim, intermediate, tied),
        _settings(
            precision,
            steps=steps,
            batch=batch,
            accumulate=accumulate,
            length=length,
            lr=lr,
            warmup=warmup,
            seed=seed,
            compile=compiled,
            checkpoint_every=checkpoint_every,
        ),
        out,
        command=command_line(),
        answers=answers,
        resume=resume,
    )
    figure = result.validation["bits_per_byte"]
    typer.echo(f"{out}: loss {result.loss:.4f}, {figure:.4f} bits a byte on held-out rows")


@app.command()
def responses(
    target: Target,
    corpus: Corpora,
    out: Annotated[Path, typer.Option(help="JSONL of chats; what it already holds is kept.")],
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 256,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 0.0,
    batch: BatchSize = 64,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Prompts in all, a seeded choice.")
    ] = None,
    longest_prompt: Annotated[int, typer.Option(help="Longer prompts are left out.")] = 512,
    seed: Seed = 0,
    precision: Precision = "auto",
) -> None:
    """Have a target answer the prompts of a corpus: what its drafts learn from."""
    from specbench.training.embedded.responses import ResponseSettings, write_responses
    from specbench.training.loop import resolve_precision

    settings = ResponseSettings(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        batch=batch,
        limit=limit,
        longest_prompt=longest_prompt,
        seed=seed,
        precision=resolve_precision(precision),
    )
    written = write_responses(target, corpus, out, settings)
    typer.echo(f"{out}: {written.responses} responses, {written.tokens} tokens")


@app.command()
def ngram(
    target: Target,
    corpus: Corpora,
    out: Out,
    exclude: Exclude = [],  # noqa: B006 (typer reads the default, nobody changes it)
    order: Annotated[int, typer.Option(min=2, max=6)] = 3,
    prune: Annotated[
        str,
        typer.Option(help="Leave out n-grams that occur so often or less, by order: 0,0,1."),
    ] = "0",
    seed: Seed = 0,
) -> None:
    """Count an n-gram model over a target's token ids: DiffuSpec's causal scorer."""
    from specbench.training.scorer import NgramRun, train_ngram

    run = NgramRun(target, tuple(corpus), tuple(exclude), out, order, _thresholds(prune), seed)
    result = train_ngram(run, command_line())
    counts = ", ".join(f"{count:,}" for count in result.grams)
    typer.echo(
        f"{out}: {counts} n-grams of {result.tokens:,} tokens, "
        f"{result.held_out_nats:.4f} nats a token on held-out rows"
    )


def _thresholds(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise typer.BadParameter(f"{text!r} must be whole numbers, one an order: 0,0,1")
    return tuple(int(part) for part in parts)


def _settings(precision: str, **values: Any) -> "TrainSettings":
    from specbench.training.loop import TrainSettings, resolve_precision

    return TrainSettings(precision=resolve_precision(precision), **values)


def command_line() -> str:
    """The running command as a person types it."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["train"]:
        arguments = arguments[1:]
    return shlex.join(["specbench", "train", *arguments])


def _add_recipe(point: EntryPoint) -> None:
    """A subcommand with the options that all recipes share; the recipe is imported to run only."""

    @app.command(point.name, help=f"Train a draft by the recipe {point.value}.")
    def run(
        target: Target,
        corpus: Corpora,
        out: Out,
        exclude: Exclude = [],  # noqa: B006 (typer reads the default, nobody changes it)
        steps: Steps = 3000,
        batch: BatchSize = 8,
        accumulate: Accumulate = 1,
        length: Length = 512,
        lr: Rate = 6e-4,
        warmup: Warmup = 0.04,
        seed: Seed = 0,
        precision: Precision = "auto",
        compiled: Compiled = False,
        checkpoint_every: Every = 500,
        resume: Resume = False,
        assignments: Assignments = [],  # noqa: B006 (as above)
    ) -> None:
        from specbench.training.recipe import DraftRun, train_draft

        settings = _settings(
            precision,
            steps=steps,
            batch=batch,
            accumulate=accumulate,
            length=length,
            lr=lr,
            warmup=warmup,
            seed=seed,
            compile=compiled,
            checkpoint_every=checkpoint_every,
        )
        job = DraftRun(target, tuple(corpus), tuple(exclude), out, settings, resume)
        result = train_draft(point.load(), assignments, job, command_line())
        figures = ", ".join(f"{name} {value:.4f}" for name, value in result.validation.items())
        typer.echo(f"{out}: loss {result.loss:.4f}, {figures}")


for _point in sorted(entry_points(group=RECIPES), key=lambda point: point.name):
    _add_recipe(_point)

if __name__ == "__main__":
    app()
