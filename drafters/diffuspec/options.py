"""Options of DiffuSpec; importing them loads no torch."""

from dataclasses import dataclass
from typing import Annotated

from drafters.diffusion.options import CACHES, MapVocabulary
from specbench.drafting.adaptive import AdaptiveLength
from specbench.drafting.options import ModelOptions, check_candidates

STOP_RULES = ("first-raw", "natural", "mean", "literal")
"""When a path may end in the stop token.

``literal`` is the text of the paper: the stop token is a candidate everywhere, and the paths that
it ends compete with the others by their sums of log-probabilities. Sums only fall, so where the
model is certain the winner is the stop token alone. The three readings that draft: ``first-raw``
lets a path end where the raw argmax draft does and nowhere else; ``natural`` also where the stop
token is among the most likely candidates; ``mean`` everywhere, and compares means.
"""


@dataclass(frozen=True)
class DiffuSpecOptions(ModelOptions):
    """Options of `drafters.diffuspec.draft.DiffuSpec`; the defaults are the paper's."""

    search: Annotated[
        bool,
        "Choose the path by causal-consistency search; false: draft every position's most likely "
        "token.",
    ] = True
    scorer: Annotated[
        str | None,
        "Folder of an n-gram scorer, or a causal LM with the target's tokenizer; none: the "
        "embedded one, which fits the embedded models.",
    ] = None
    beam: Annotated[int, "Unfinished paths that the search keeps."] = 3
    weight: Annotated[
        float, "Weight of the diffusion model in a path's score (lambda); the scorer has the rest."
    ] = 0.5
    mass: Annotated[
        float, "Probability mass that a position's candidates cover together (tau)."
    ] = 0.8
    max_candidates: Annotated[int, "Most candidates per position, the stop token not counted."] = 15
    stop_rule: Annotated[
        str, f"Where a path may end in the stop token: {', '.join(STOP_RULES)}."
    ] = "first-raw"
    adaptive: Annotated[bool, "Adapt the draft length from round to round."] = True
    k_min: Annotated[int, "Shortest adaptive draft."] = 20
    k_max: Annotated[int, "Longest adaptive draft, and the first one."] = 30
    delta: Annotated[int, "Tokens added while everything drafted is accepted."] = 10
    rho: Annotated[float, "Weight of the newest round in the smoothed counts."] = 0.5
    tokens: Annotated[int, "Draft length with adaptive=false."] = 30
    steps: Annotated[
        int, "Forwards per draft; those before the last fill the slots with the highest confidence."
    ] = 1
    cache: Annotated[
        str, "none, prefix_causal (an approximation) or block, as in the drafter diffusion."
    ] = "none"
    map_vocabulary: MapVocabulary = False
    candidates: Annotated[
        int,
        "Above 1: verify the path and candidates - 1 drafts of its length drawn from the same "
        "pass, and keep the best (rule select).",
    ] = 1
    draft_temperature: Annotated[float, "Temperature at which candidates are drawn."] = 1.5

    def __post_init__(self) -> None:
        for option in ("beam", "max_candidates", "tokens", "steps"):
            if getattr(self, option) < 1:
                raise ValueError(f"{option} must be at least 1, not {getattr(self, option)}")
        if not 0 <= self.weight <= 1 or not 0 < self.mass <= 1:
            raise ValueError(
                f"weight must lie in [0, 1] and mass in (0, 1], not {self.weight} and {self.mass}"
            )
        for option, known in (("stop_rule", STOP_RULES), ("cache", CACHES)):
            given = getattr(self, option)
            if given not in known:
                raise ValueError(f"{option} is one of {', '.join(known)}, not {given!r}")
        check_candidates(self.candidates, self.draft_temperature)
        self.length()

    def length(self) -> AdaptiveLength:
        """The length of the first draft, and how it changes; equal bounds where it is fixed."""
        if self.adaptive:
            return AdaptiveLength(self.k_min, self.k_max, self.delta, self.rho)
        return AdaptiveLength(self.tokens, self.tokens)
