"""`specbench generate`: let one model write, and see how it did."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from specbench.cli import shared
from specbench.errors import UserError

if TYPE_CHECKING:
    from specbench.run.generation import Generator

MASK = "·"


def generate(
    model: Annotated[
        str, typer.Option(help="Hub id, folder, or an embedded model such as tiny-target.")
    ],
    prompt: Annotated[str, typer.Option(help="What to answer, or to continue with --raw.")],
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the text, without a chat template.")
    ] = False,
    length: Annotated[int, typer.Option(min=1, help="Longest text in tokens.")] = 64,
    sampler: Annotated[
        str | None,
        typer.Option(
            help="Of a diffusion model, which slots are filled first: low_confidence (default), "
            "random, entropy, topk_margin, maskgit_plus, origin, first_hitting, multi_block."
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Forwards of a diffusion model. Default: one a token."),
    ] = None,
    block: Annotated[
        int | None,
        typer.Option(
            min=1, help="Fill blocks of so many slots, from the left. Default: no blocks."
        ),
    ] = None,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(min=0, help="0 keeps all tokens.")] = 0,
    top_p: Annotated[float, typer.Option(help="1 keeps all.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of all chance.")] = 0,
    trace: Annotated[bool, typer.Option("--trace", help="Show the text after every step.")] = False,
    tokenizer: Annotated[
        str | None, typer.Option(help="Whose tokenizer to take where the model has none.")
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Of the hub id.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    dtype: Annotated[
        str,
        typer.Option(
            help="auto, float32, bfloat16 or float16. auto: float32 on a CPU, bfloat16 on CUDA."
        ),
    ] = "auto",
) -> None:
    """Text from one model alone, and the step in which each token was filled in.

    A diffusion model in eight steps, watched:

        specbench generate --model tiny-diffusion --tokenizer tiny-target --steps 8 --trace
            --prompt "What is 2 + 3?"
    """
    import torch

    from specbench.inputs.plan import DTYPES, choose_device, choose_dtype
    from specbench.run.generation import Wanted, load_generator

    shared.silence()
    sampling = shared.sampling(temperature, top_k, top_p)
    where = choose_device("auto", device)
    writer = load_generator(
        model, revision, device=torch.device(where), dtype=DTYPES[choose_dtype(dtype, where)]
    )
    words = _tokenizer(writer, model, tokenizer)
    taken: dict[int, tuple[int, int]] = {}
    wanted = Wanted(length, sampler, steps, block, sampling, seed)
    done = writer.steps(_encode(words, prompt, raw), wanted)
    for number, (slots, tokens) in enumerate(done, 1):
        taken |= {slot: (token, number) for slot, token in zip(slots, tokens, strict=True)}
        if trace:
            typer.echo(f"step {number:3}  {_line(taken, words, length)}")
    _report(taken, words, writer.stop_ids)


def _tokenizer(writer: "Generator", model: str, name: str | None) -> Any:
    from specbench.core.target import load_tokenizer
    from specbench.zoo import resolve

    found = load_tokenizer(resolve(name)) if name else writer.tokenizer
    if found is None:
        raise UserError(
            f"There is no tokenizer in {name or model}: name a model that has its with --tokenizer."
        )
    return found


def _encode(words: Any, prompt: str, raw: bool) -> list[int]:
    from specbench.inputs import chat

    if raw:
        return list(words(prompt)["input_ids"])
    return chat.encode(words, [{"role": "user", "content": prompt}], "off")


def _line(taken: dict[int, tuple[int, int]], words: Any, length: int) -> str:
    """All slots on one line, masks as dots."""
    pieces = [words.decode([taken[i][0]]) if i in taken else MASK for i in range(length)]
    return "".join(pieces).replace("\n", "\\n")


def _report(taken: dict[int, tuple[int, int]], words: Any, stop_ids: frozenset[int]) -> None:
    """The text up to its stop token, and slot by slot the step that filled it."""
    slots = sorted(taken)
    end = next((i for i, slot in enumerate(slots) if taken[slot][0] in stop_ids), len(slots))
    typer.echo(words.decode([taken[slot][0] for slot in slots[:end]]))
    numbers = [taken[slot][1] for slot in slots[: end + 1]]
    steps = len({number for _, number in taken.values()})
    typer.echo(f"\n{len(numbers)} tokens, {steps} steps; each token was filled in step", err=True)
    typer.echo(" ".join(map(str, numbers)), err=True)
