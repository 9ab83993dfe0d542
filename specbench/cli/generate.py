"""`specbench generate`: let one model write, and see how it did."""

from typing import Annotated, Any

import typer

from specbench.cli import options
from specbench.cli.process import silence
from specbench.errors import UserError

MASK = "·"


def generate(
    context: typer.Context,
    model: Annotated[
        str, typer.Option(help="Hub id, folder, or an embedded model such as tiny-target.")
    ],
    prompt: Annotated[str, typer.Option(help="What to answer, or to continue with --raw.")],
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the text, without a chat template.")
    ] = False,
    length: Annotated[int, typer.Option(min=1, help="Longest text in tokens.")] = 64,
    override: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A setting of the model's kind, e.g. `steps=8` of a diffusion model; may be "
            "repeated. `specbench list options diffusion` shows them.",
        ),
    ] = None,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    seed: options.Seed = 0,
    trace: Annotated[bool, typer.Option("--trace", help="Show the text after every step.")] = False,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Model whose tokenizer is used where the model has none of its own."),
    ] = None,
    revision: options.Revision = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
) -> None:
    """Write text with one model alone, and show the step in which each token was filled in.

    A diffusion model in eight steps, watched:

        specbench generate --model tiny-diffusion --tokenizer tiny-target --set steps=8 --trace
            --prompt "What is 2 + 3?"
    """
    import torch

    from specbench.core.target import load_tokenizer
    from specbench.drafting.generation import TextRequest
    from specbench.inputs import chat
    from specbench.inputs.devices import choose_device, choose_dtype, torch_dtype
    from specbench.inputs.options import assignments, parse_options
    from specbench.run.generation import load_generator

    silence()
    sampling = options.sampling(context)
    given = assignments(override or ())
    where = choose_device(device)
    precision = torch_dtype(choose_dtype(dtype, where))
    writer = load_generator(model, revision, device=torch.device(where), dtype=precision)
    settings = parse_options(model, writer.Options, given)
    loaded = load_tokenizer(tokenizer) if tokenizer else writer.tokenizer
    if loaded is None:
        raise UserError(
            f"There is no tokenizer in {tokenizer or model}: name a model that has its with "
            "--tokenizer."
        )
    question = [{"role": "user", "content": prompt}]
    ids = list(loaded(prompt)["input_ids"]) if raw else chat.encode(loaded, question, "off")
    taken: dict[int, tuple[int, int]] = {}
    steps = writer.steps(ids, TextRequest(length, settings, sampling, seed))
    for number, (slots, tokens) in enumerate(steps, 1):
        taken |= {slot: (token, number) for slot, token in zip(slots, tokens, strict=True)}
        if trace:
            line = [loaded.decode([taken[i][0]]) if i in taken else MASK for i in range(length)]
            typer.echo(f"step {number:3}  {''.join(line)}".replace("\n", "\\n"))
    _report(taken, loaded, writer.stop_ids)


def _report(taken: dict[int, tuple[int, int]], tokenizer: Any, stop_ids: frozenset[int]) -> None:
    """The text up to its stop token, and slot by slot the step that filled it."""
    slots = sorted(taken)
    end = next((i for i, slot in enumerate(slots) if taken[slot][0] in stop_ids), len(slots))
    typer.echo(tokenizer.decode([taken[slot][0] for slot in slots[:end]]))
    numbers = [taken[slot][1] for slot in slots[: end + 1]]
    steps = len({number for _, number in taken.values()})
    typer.echo(f"\n{len(numbers)} tokens, {steps} steps; each token was filled in step", err=True)
    typer.echo(" ".join(map(str, numbers)), err=True)
