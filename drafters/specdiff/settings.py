"""Settings of streak distillation; importing them loads no torch."""

from dataclasses import dataclass, field
from typing import Annotated

from drafters.diffusion.settings import PREFIXES, Prefix
from specbench.training.settings import DraftSettings, check_choice, check_least

LOSSES = ("streak", "ce")


@dataclass(frozen=True)
class StreakSettings(DraftSettings):
    """Settings of `drafters.specdiff.train.StreakRecipe`."""

    init: Annotated[
        str, "Folder, hub id or embedded model of the diffusion draft to distil into."
    ] = field()
    gamma: Annotated[int, "Tokens per window, all masked."] = 16
    windows: Annotated[
        int | None, "Random offsets taken from each completion of a batch; none: every offset."
    ] = 1
    loss: Annotated[
        str,
        "streak: minus the expected streak; ce: cross entropy, each token weighted by the "
        "probability that a draft gets as far, which passes no gradient.",
    ] = "streak"
    temperature: Annotated[float, "Of the drafter's marginals: the one to draft at."] = 1.0
    prefix: Prefix = "full"
    rank: Annotated[
        int | None,
        "Rank of adapters on all projections, merged in the saved draft; none: train all weights.",
    ] = None
    alpha: Annotated[float, "Adapters are scaled by alpha / rank."] = 32.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, gamma=1, windows=1, rank=1)
        check_choice("loss", self.loss, LOSSES)
        check_choice("prefix", self.prefix, PREFIXES)
        if self.temperature <= 0:
            raise ValueError(f"temperature={self.temperature} must be above 0")
