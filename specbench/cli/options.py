"""The options that several commands share, each declared once."""

from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.errors import UserError
from specbench.inputs.devices import DEVICES, DTYPES, words

if TYPE_CHECKING:
    from specbench.core.sampling import Sampling
    from specbench.inputs.plan import Settings

models = partial(typer.Option, rich_help_panel="Models")
asking = partial(typer.Option, rich_help_panel="Prompts and sampling")
running = partial(typer.Option, rich_help_panel="Running")

Drafters = Annotated[
    list[str],
    models(
        metavar="NAME[KEY=VALUE|VALUE],...",
        help="Drafters, e.g. `dflash,prompt-lookup`. Settings in brackets make one row each: "
        "`dflash[block_size=4|8]`.",
    ),
]
Target = Annotated[
    str | None,
    models(help="Hub id or folder, e.g. `Qwen/Qwen3-8B`. Default: the embedded tiny-target."),
]
Revision = Annotated[
    str | None,
    models(help="Revision (branch, tag or commit) of the hub model. Default: the newest."),
]
DraftModel = Annotated[
    str | None,
    models(
        help="Hub id or folder of the draft. Not needed for pairs in `specbench list pairs`. "
        "Where several drafters take one, it is for the one without a known pair."
    ),
]
Overrides = Annotated[
    list[str] | None,
    models(
        "--set",
        metavar="DRAFTER.KEY=VALUE",
        help="An option of a drafter, e.g. `dflash.block_size=8`; may be repeated. `specbench "
        "list options NAME` shows them.",
    ),
]
Suites = Annotated[
    list[str] | None,
    asking(help="Suites, e.g. `gsm8k,mt-bench`, or the path of a JSONL file. Default: smoke."),
]
DataDir = Annotated[
    Path | None, asking(help="Folder with the suites' data files (or set SPECBENCH_DATA).")
]
Limit = Annotated[
    int | None,
    asking(min=1, help="Prompts per suite: 32 are always the same 32, and the first of 64."),
]
MaxNewTokens = Annotated[
    int | None, asking(min=1, help="Longest answer in tokens. Default: the suite's.")
]
Temperature = Annotated[float, asking(min=0, help="0 is greedy.")]
TopK = Annotated[int, asking(min=0, help="0 keeps all tokens.")]
TopP = Annotated[float, asking(help="1 keeps all tokens.")]
Thinking = Annotated[str, asking(help="on or off, for chat templates that have the switch.")]
Seed = Annotated[int, asking(help="Random seed.")]
Device = Annotated[str, running(help=f"{words(DEVICES)}.")]
Dtype = Annotated[str, running(help=f"{words(DTYPES)}. auto: float32 on a CPU, bfloat16 on CUDA.")]
Threads = Annotated[
    int | None,
    running(min=1, help="CPU threads. Default: torch's own; 1 for the embedded target."),
]
AllowBroken = Annotated[
    bool,
    running(
        "--allow-broken",
        help="Show the speedup of a drafter with broken output too, and exit with 0.",
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Overwrite that file.")]


def settings(context: typer.Context, *controls: str) -> "Settings":
    """The run that a command was asked for.

    A command declares what it offers; each of its parameters that is called like a field of
    `Settings` becomes that field.

    Raises:
        UserError: a sampling value out of range.
    """
    from specbench.inputs.plan import Settings

    given = context.params
    named = {field.name: given[field.name] for field in fields(Settings) if field.name in given}
    return Settings(
        drafters=(*given["drafter"], *controls),
        suites=tuple(given.get("suite") or ("smoke",)),
        overrides=tuple(given["override"] or ()),
        sampling=sampling(context),
        **named,
    )


def sampling(context: typer.Context) -> "Sampling":
    """The sampling that a command was asked for; greedy where it has no options for it.

    Raises:
        UserError: a value out of range.
    """
    from specbench.core.sampling import Sampling

    names = [field.name for field in fields(Sampling)]
    try:
        return Sampling(**{name: context.params[name] for name in names if name in context.params})
    except ValueError as error:
        raise UserError(f"{error}.") from error
