"""What several commands make of their arguments."""

from pathlib import Path
from typing import TYPE_CHECKING

from specbench.errors import UserError
from specbench.inputs.options import split_outside_brackets

if TYPE_CHECKING:
    from specbench.core.sampling import Sampling

RESULTS = Path("results")


def names(option: str, texts: list[str]) -> tuple[str, ...]:
    """The names that an option lists, with commas or several times.

    Raises:
        UserError: none at all.
    """
    found = tuple(name for text in texts for name in split_outside_brackets(text))
    if not found:
        raise UserError(f"{option} names nothing: `specbench list` shows what there is.")
    return found


def sampling(temperature: float, top_k: int, top_p: float) -> "Sampling":
    """The sampling that was asked for.

    Raises:
        UserError: a value out of range.
    """
    from specbench.core.sampling import Sampling

    try:
        return Sampling(temperature, top_k, top_p)
    except ValueError as error:
        raise UserError(f"{error}.") from error


def check_output(output: Path, overwrite: bool) -> None:
    """Refuse, before any work, a file that cannot or must not be written.

    Raises:
        UserError: it exists and ``overwrite`` is not set, or its folder does not exist.
    """
    if output.is_dir() or not output.parent.is_dir():
        raise UserError(f"--output {output} must name a file in a folder that exists.")
    if output.exists() and not overwrite:
        raise UserError(
            f"{output} exists already: take another --output, or overwrite with --overwrite."
        )


def silence() -> None:
    """The libraries' bars and advice would stand between our own lines."""
    import logging
    import warnings

    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="transformers")
