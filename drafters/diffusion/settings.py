"""Settings of masked-diffusion training; importing them loads no torch."""

from dataclasses import dataclass
from typing import Annotated

from specbench.training.settings import DraftSettings, MaskToken, check_choice, check_least

OBJECTIVES = ("llada", "shifted", "bd3")
PREFIXES = ("full", "cut", "causal")
"""What the clean prefix of a practised window sees."""

Prefix = Annotated[
    str,
    "What the prefix of a window sees; full: what the model's own attention allows, the masks too, "
    "as drafting without a cache; cut: everything but the masks (SpecDiff-2's prefix-cut); "
    "causal: earlier tokens only, as drafting with the prefix_causal cache.",
]


@dataclass(frozen=True)
class DiffusionSettings(DraftSettings):
    """Settings of `drafters.diffusion.train.DiffusionRecipe`.

    A draft to go on from keeps its layers, mask, shift and block size.
    """

    decided_by_init = ("layers", "mask_token_id")

    objective: Annotated[
        str,
        "llada: one t per sequence, weight 1 / p; shifted: the same, but the row at p - 1 predicts "
        "p, as in the autoregressive start (Dream, DiffuLLaMA); bd3: blocks, noisy and clean "
        "tokens in one forward.",
    ] = "shifted"
    layers: Annotated[
        int | None,
        "Layers of the target to start with, evenly spaced from the first to the last; none: all.",
    ] = None
    block_size: Annotated[int, "Tokens per block of bd3."] = 16
    eps: Annotated[float, "Smallest masking probability of llada and shifted."] = 1e-3
    low: Annotated[float, "Least t of bd3's clipped schedule."] = 0.0
    high: Annotated[float, "Largest t of bd3's clipped schedule."] = 1.0
    anneal_steps: Annotated[
        int, "Steps over which shifted's attention goes from causal to full."
    ] = 0
    practice: Annotated[
        float,
        "Share of the batches that practise drafting instead of the objective: windows of masks "
        "only behind clean prefixes. Not for bd3.",
    ] = 0.0
    window: Annotated[int, "Masks per window, and tokens per draft in the figures."] = 16
    windows: Annotated[int, "Windows practised in each sequence of a batch."] = 1
    prefix: Prefix = "full"
    decay: Annotated[
        float | None, "Slot k of a window weighs exp(-(k - 1) / decay); none: all weigh the same."
    ] = None
    mask_token_id: MaskToken = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, block_size=1, anneal_steps=0, window=1, windows=1)
        check_choice("objective", self.objective, OBJECTIVES)
        check_choice("prefix", self.prefix, PREFIXES)
        if not 0 <= self.low < self.high <= 1:
            raise ValueError(f"low={self.low} and high={self.high} must be 0 <= low < high <= 1")
        if not 0 < self.eps <= 1 or not 0 <= self.practice <= 1:
            raise ValueError(
                f"eps={self.eps} must lie in (0, 1] and practice={self.practice} in [0, 1]"
            )
        if self.decay is not None and self.decay <= 0:
            raise ValueError(f"decay={self.decay} must be above 0, or none")
        if self.practice and self.objective == "bd3":
            raise ValueError("bd3 masks whole blocks anyway: practice is for llada and shifted")
        if self.anneal_steps and self.objective != "shifted":
            raise ValueError("anneal_steps is for shifted, which begins as a causal model")
