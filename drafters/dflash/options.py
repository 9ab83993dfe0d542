"""Options of DFlash; importing them loads no torch."""

from dataclasses import dataclass
from typing import Annotated

from specbench.drafting.options import ModelOptions, check_candidates


@dataclass(frozen=True)
class DFlashOptions(ModelOptions):
    """Options of `drafters.dflash.draft.DFlash`."""

    block_size: Annotated[
        int | None, "Rows of a block, the anchor included; none: the size it was trained with."
    ] = None
    sample: Annotated[
        bool,
        "At temperature > 0, draw from the draft's distribution and verify by exact rejection; "
        "false: propose the most likely tokens, one-hot, as behind the paper's temperature-1 "
        "figures.",
    ] = True
    candidates: Annotated[
        int,
        "Above 1: verify the most likely tokens and candidates - 1 drafts drawn from the same "
        "pass, and keep the best (rule select); sample is then unused.",
    ] = 1
    draft_temperature: Annotated[float, "Temperature at which candidates are drawn."] = 1.5
    adaptive: Annotated[
        bool,
        "Adapt the draft length from round to round, up to the block size (DiffuSpec's adaptive "
        "draft length).",
    ] = False
    k_min: Annotated[
        int | None,
        "Shortest adaptive draft; none: two thirds of the longest, as in DiffuSpec.",
    ] = None

    def __post_init__(self) -> None:
        check_candidates(self.candidates, self.draft_temperature)
