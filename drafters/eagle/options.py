"""Options of EAGLE-1, EAGLE-2 and EAGLE-3; importing them loads no torch."""

from dataclasses import dataclass
from typing import Annotated

from specbench.drafting.options import ModelOptions

Theta = Annotated[
    float | None, "Base of the draft's rotary positions; none: as the draft's config.json says."
]


@dataclass(frozen=True)
class TreeOptions(ModelOptions):
    """Options of the drafters whose tree is grown by score."""

    top_k: Annotated[
        int, "Nodes expanded per level, and children of each of them; 1 makes a chain."
    ] = 10
    depth: Annotated[
        int, "Draft forwards behind the catch-up pass; the tree has one level more."
    ] = 7
    total_tokens: Annotated[
        int, "Nodes that are verified, the anchor included (as in the published settings)."
    ] = 60
    rope_theta: Theta = None

    def __post_init__(self) -> None:
        if self.top_k < 1 or self.depth < 0 or self.total_tokens < 2:
            raise ValueError(
                "a tree needs top_k >= 1, depth >= 0 and total_tokens >= 2, not "
                f"{self.top_k}, {self.depth} and {self.total_tokens}"
            )


@dataclass(frozen=True)
class Eagle3Options(TreeOptions):
    """Options of `drafters.eagle.draft.Eagle3`."""

    norm_output: Annotated[
        bool | None,
        "Whether the next step gets the normed output (EAGLE-3.1); none: as the draft's "
        "config.json says, which does not mean the same in every trainer.",
    ] = None


@dataclass(frozen=True)
class Eagle2Options(TreeOptions):
    """Options of `drafters.eagle.draft.Eagle2`, as it was published."""

    depth: Annotated[
        int, "Draft forwards behind the catch-up pass; the tree has one level more."
    ] = 5


@dataclass(frozen=True)
class Eagle1Options(ModelOptions):
    """Options of `drafters.eagle.draft.Eagle1`, whose tree is fixed."""

    rope_theta: Theta = None
    sample: Annotated[
        bool,
        "At temperature > 0, draw siblings from the draft's distribution and verify by exact "
        "rejection; false: propose the most likely ones, one-hot.",
    ] = True
