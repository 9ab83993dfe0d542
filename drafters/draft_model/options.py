"""Options of the draft-model drafter; importing them loads no torch."""

from dataclasses import dataclass
from typing import Annotated

from specbench.drafting.options import ModelOptions


@dataclass(frozen=True)
class DraftModelOptions(ModelOptions):
    """Options of `drafters.draft_model.draft.DraftModel`."""

    tokens: Annotated[int, "Most tokens drafted per round."] = 5
    sample: Annotated[
        bool,
        "At temperature > 0, draw from the draft's distribution and verify by exact rejection; "
        "false: propose its most likely tokens, one-hot.",
    ] = True

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ValueError(f"tokens must be at least 1, not {self.tokens}")
