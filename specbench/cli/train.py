"""`specbench train`: the embedded models, and drafts by the recipes that are installed."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Train a target, write its responses, train drafts.")

Corpora = Annotated[
    list[str],
    typer.Option("--corpus", help="PATH or PATH:TIMES_AN_EPOCH, JSON or JSONL; may be repeated."),
]
Exclude = Annotated[
    list[Path],
    typer.Option(help="Drop chats that share 13 words in a row with this file; may be repeated."),
]
Out = Annotated[Path, typer.Option(help="Folder of the trained model.")]
Steps = Annotated[int, typer.Option(min=1)]
BatchSize = Annotated[int, typer.Option(min=1, help="Sequences in a batch.")]
Length = Annotated[int, typer.Option(min=8, help="Tokens in a sequence.")]
Rate = Annotated[float, typer.Option(help="Highest learning rate.")]
Warmup = Annotated[float, typer.Option(min=0, max=1, help="Part of the steps with a rising rate.")]
Seed = Annotated[int, typer.Option()]
Precision = Annotated[str, typer.Option(help="bf16, fp32, or auto: bf16 on CUDA.")]
Compile = Annotated[bool, typer.Option("--compile", help="Use torch.compile.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")]
CheckpointEvery = Annotated[int, typer.Option(min=1, help="Steps.")]


@app.command()
def target(
    corpus: Corpora,
    out: Out,
    exclude: Exclude = [],  # noqa: B006 (typer reads the default, nobody changes it)
    vocabulary: Annotated[int, typer.Option(min=300)] = 4096,
    tokenizer: Annotated[
        str | None, typer.Option(help="Take this model's tokenizer instead of training one.")
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
    length: Length = 256,
    lr: Rate = 2e-3,
    warmup: Warmup = 0.02,
    seed: Seed = 0,
    precision: Precision = "auto",
    compile: Compile = False,
    resume: Resume = False,
    checkpoint_every: CheckpointEvery = 500,
) -> None:
    """Train a small Qwen3-architecture model from nothing."""
    from specbench.training.loop import TrainSettings, default_precision
    from specbench.training.target import TargetShape, prepare, train_target

    data, words = prepare(corpus, exclude, vocabulary, tokenizer, seed)
    for file in data.files:
        typer.echo(f"{file.file}: {file.train} train, {file.held_out} held out, "
                   f"{file.excluded} left out", err=True)  # fmt: skip
    result = train_target(
        data,
        words,
        TargetShape(hidden, layers, heads, kv_heads, head_dim, intermediate, tied),
        TrainSettings(
            steps=steps,
            batch=batch,
            length=length,
            lr=lr,
            warmup=warmup,
            seed=seed,
            precision=default_precision() if precision == "auto" else precision,
            compile=compile,
            checkpoint_every=checkpoint_every,
        ),
        out,
        command=command_line(),
        resume=resume,
    )
    typer.echo(f"{out}: loss {result.loss:.4f}, "
               f"{result.validation['bits_per_byte']:.4f} bits a byte")  # fmt: skip


def command_line() -> str:
    """The running command as a person types it."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["train"]:
        arguments = arguments[1:]
    return shlex.join(["specbench", "train", *arguments])


if __name__ == "__main__":
    app()
