"""`specbench generate`: let one model write, and see how it did."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from specbench.cli import options
from specbench.cli.process import silence
from specbench.errors import UserError

if TYPE_CHECKING:
    from specbench.drafting.generation import Generator

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

    from specbench.drafting.generation import TextRequest
    from specbench.inputs.devices import choose_device, choose_dtype, torch_dtype
    from specbench.inputs.options import assignments, parse_options
    from specbench.run.generation import load_generator

    silence()
    sampling = options.sampling(context)
    given = assignments(override or ())
    where = choose_device(device)
    writer = load_generator(
        model,
        revision,
        device=torch.device(where),
        dtype=torch_dtype(choose_dtype(dtype, where)),
    )
    settings = parse_options(model, writer.Options, given)
    loaded = _tokenizer(writer, model, tokenizer)
    taken: dict[int, tuple[int, int]] = {}
    request = TextRequest(length, settings, sampling, seed)
    for number, (slots, tokens) in enumerate(
        writer.steps(_encode(loaded, prompt, raw), request), 1
    ):
        taken |= {slot: (token, number) for slot, token in zip(slots, tokens, strict=True)}
        if trace:
            typer.echo(f"step {number:3}  {_line(taken, loaded, length)}")
    _report(taken, loaded, writer.stop_ids)


def _tokenizer(writer: "Generator", model: str, name: str | None) -> Any:
    from specbench.core.target import load_tokenizer

    found = load_tokenizer(name) if name else writer.tokenizer
    if found is None:
        raise UserError(
            f"There is no tokenizer in {name or model}: name a model that has its with --tokenizer."
        )
    return found


def _encode(tokenizer: Any, prompt: str, raw: bool) -> list[int]:
    from specbench.inputs import chat

    if raw:
        return list(tokenizer(prompt)["input_ids"])
    return chat.encode(tokenizer, [{"role": "user", "content": prompt}], "off")


def _line(taken: dict[int, tuple[int, int]], tokenizer: Any, length: int) -> str:
    """All slots on one line, masks as dots."""
    pieces = [tokenizer.decode([taken[i][0]]) if i in taken else MASK for i in range(length)]
    return "".join(pieces).replace("\n", "\\n")


def _report(taken: dict[int, tuple[int, int]], tokenizer: Any, stop_ids: frozenset[int]) -> None:
    """The text up to its stop token, and slot by slot the step that filled it."""
    slots = sorted(taken)
    end = next((i for i, slot in enumerate(slots) if taken[slot][0] in stop_ids), len(slots))
    typer.echo(tokenizer.decode([taken[slot][0] for slot in slots[:end]]))
    numbers = [taken[slot][1] for slot in slots[: end + 1]]
    steps = len({number for _, number in taken.values()})
    typer.echo(f"\n{len(numbers)} tokens, {steps} steps; each token was filled in step", err=True)
    typer.echo(" ".join(map(str, numbers)), err=True)
