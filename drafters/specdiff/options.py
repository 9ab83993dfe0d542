"""Options of SpecDiff and SpecDiff-2; importing them loads no torch."""

from dataclasses import dataclass
from typing import Annotated

from drafters.diffusion.options import Cache, MapVocabulary, check_cache
from specbench.drafting.options import ModelOptions, check_candidates

RULES = ("select", "walk", "reject", "select-ratio")
"""Names of the acceptance rules that `SpecDiff2` can take."""


@dataclass(frozen=True)
class SpecDiffOptions(ModelOptions):
    """Options of `drafters.specdiff.draft.SpecDiff`."""

    tokens: Annotated[int, "Most tokens drafted per round."] = 16
    cache: Cache = "auto"
    map_vocabulary: MapVocabulary = False

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ValueError(f"tokens must be at least 1, not {self.tokens}")
        check_cache(self.cache)


@dataclass(frozen=True)
class SpecDiff2Options(SpecDiffOptions):
    """Options of `drafters.specdiff.draft.SpecDiff2`."""

    candidates: Annotated[
        int, "Drafts per round (the paper's K); each verifies up to tokens rows."
    ] = 8
    draft_temperature: Annotated[
        float, "Temperature at which drafts are drawn, whatever the target's is."
    ] = 1.5
    draft_top_k: Annotated[
        int, "Draw only from the k most likely tokens of a slot; 0: from all."
    ] = 0
    rule: Annotated[
        str,
        "At temperature > 0. select: the paper's self-selection; walk: follow all drafts at once; "
        "reject: try each draft against its marginals, as the released code does; select-ratio: "
        "try the selected draft so, which is lossy.",
    ] = "select"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_candidates(self.candidates, self.draft_temperature)
        if self.draft_top_k < 0:
            raise ValueError(f"draft_top_k must not be negative, not {self.draft_top_k}")
        if self.rule not in RULES:
            raise ValueError(f"rule is one of {', '.join(RULES)}, not {self.rule!r}")
