"""Options that drafters share; imports no torch, so that they can be listed at once."""

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True)
class ModelOptions:
    """Settings of a drafter that loads a draft model; its options inherit them."""

    model: Annotated[str, "Hub id, folder or embedded name of the draft model."]
    revision: Annotated[
        str | None, "Revision (branch, tag or commit) of the draft model's hub id."
    ] = None


def check_candidates(count: int, temperature: float) -> None:
    """Check the options ``candidates`` and ``draft_temperature``.

    Raises:
        ValueError: no candidate, or a temperature that is not above 0.
    """
    if count < 1 or temperature <= 0:
        raise ValueError(
            "candidates must be at least 1 and draft_temperature above 0, not "
            f"{count} and {temperature}"
        )
