"""The words for a device and a dtype, and what "auto" stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specbench.errors import UserError

if TYPE_CHECKING:
    import torch

AUTO = "auto"
DEVICES = ("cpu", "cuda")
DTYPES = ("float32", "bfloat16", "float16")


def choose_device(wanted: str, default: str = AUTO) -> str:
    """One of `DEVICES`; "auto" takes ``default``, and where that is "auto" too, CUDA if possible.

    Raises:
        UserError: another word, or CUDA that is not there.
    """
    import torch

    device = default if wanted == AUTO else wanted
    if device == AUTO:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device not in DEVICES:
        raise UserError(f"--device is {words(DEVICES)}, not {wanted!r}.")
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no CUDA device here; take --device cpu.")
    return device


def choose_dtype(wanted: str, device: str) -> str:
    """One of `DTYPES`; "auto" is float32 on a CPU and bfloat16 on CUDA.

    Raises:
        UserError: another word.
    """
    if wanted == AUTO:
        return "float32" if device == "cpu" else "bfloat16"
    if wanted not in DTYPES:
        raise UserError(f"--dtype is {words(DTYPES)}, not {wanted!r}.")
    return wanted


def torch_dtype(name: str) -> torch.dtype:
    """torch's dtype called ``name``, one of `DTYPES`."""
    import torch

    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]


def words(choices: tuple[str, ...]) -> str:
    """ "auto, a, b or c"."""
    return f"{', '.join((AUTO, *choices[:-1]))} or {choices[-1]}"
