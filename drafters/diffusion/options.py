"""Options of the diffusion drafter; importing them loads no torch."""

from dataclasses import dataclass
from typing import Annotated

from specbench.drafting.options import ModelOptions, check_candidates

CACHES = ("none", "prefix_causal", "block")
"""Caches of `drafters.diffusion.prefix.Prefix`."""

DRAFT_ORDERS = ("low_confidence", "random", "entropy", "topk_margin", "maskgit_plus", "origin")
"""The orders of `drafters.diffusion.sampling` that finish in any number of steps."""

MULTI_BLOCK = "multi_block"
SAMPLERS = (*DRAFT_ORDERS, "first_hitting", MULTI_BLOCK)
"""The samplers of `drafters.diffusion.generate`, under the names their authors gave the option."""

Cache = Annotated[
    str,
    "none: every forward runs the whole prefix; prefix_causal: keep the keys and values of a "
    "causal prefix, an approximation of full attention; block: keep those of finished blocks, "
    "exact, block-causal models only; auto: block where the model can have it, else none.",
]
MapVocabulary = Annotated[
    bool, "Draft for a target with another tokenizer, through the tokens that both have."
]


@dataclass(frozen=True)
class DiffusionOptions(ModelOptions):
    """Options of `drafters.diffusion.draft.Diffusion`."""

    tokens: Annotated[int, "Most tokens drafted per round."] = 16
    steps: Annotated[int, "Forwards per draft; order says which slots are filled first."] = 1
    order: Annotated[str, f"With more than one step: {', '.join(DRAFT_ORDERS)}."] = "low_confidence"
    sample: Annotated[
        bool,
        "At temperature > 0, draw every slot independently from its marginal and verify by exact "
        "rejection; one step only, since later steps would see the draws. false: propose the most "
        "likely tokens, one-hot. Which of the two is kept more often depends on the model.",
    ] = False
    cache: Cache = "auto"
    map_vocabulary: MapVocabulary = False
    candidates: Annotated[
        int,
        "Above 1: verify the most likely tokens and candidates - 1 drafts drawn from the same "
        "pass, and keep the best (rule select); one step only.",
    ] = 1
    draft_temperature: Annotated[float, "Temperature at which candidates are drawn."] = 1.5

    def __post_init__(self) -> None:
        if self.tokens < 1 or not 1 <= self.steps <= self.tokens:
            raise ValueError(
                "tokens must be at least 1 and steps from 1 to tokens, not "
                f"{self.tokens} and {self.steps}"
            )
        if self.order not in DRAFT_ORDERS:
            raise ValueError(f"order is one of {', '.join(DRAFT_ORDERS)}, not {self.order!r}")
        check_cache(self.cache)
        check_candidates(self.candidates, self.draft_temperature)
        if self.sample and self.steps > 1:
            raise ValueError(
                f"sample draws from the marginals of a single step, not of {self.steps}: take "
                "steps=1 or sample=false"
            )
        if self.candidates > 1 and (self.sample or self.steps > 1):
            raise ValueError(
                "candidates are drawn from the marginals of a single step and handed over without "
                "them: take steps=1 and sample=false"
            )


@dataclass(frozen=True)
class DiffusionGeneratorOptions:
    """Options of `drafters.diffusion.generate.DiffusionGenerator`."""

    sampler: Annotated[str, f"Which slots are filled first: {', '.join(SAMPLERS)}."] = (
        "low_confidence"
    )
    steps: Annotated[int | None, "Forwards in all; none: one per token."] = None
    block: Annotated[
        int | None,
        "Fill blocks of so many slots, from the left; none: no blocks, or those of a block-causal "
        "model.",
    ] = None

    def __post_init__(self) -> None:
        if self.sampler not in SAMPLERS:
            raise ValueError(f"sampler is one of {', '.join(SAMPLERS)}, not {self.sampler!r}")
        for option in ("steps", "block"):
            if (value := getattr(self, option)) is not None and value < 1:
                raise ValueError(f"{option} must be at least 1, not {value}")
        if self.sampler == MULTI_BLOCK and self.steps is not None:
            raise ValueError(f"{MULTI_BLOCK} takes as many steps as it needs: leave steps out")


def check_cache(cache: str) -> None:
    """Check the option ``cache`` of a drafter on a diffusion model.

    Raises:
        ValueError: neither auto nor one of `CACHES`.
    """
    if cache not in ("auto", *CACHES):
        raise ValueError(f"cache is one of auto, {', '.join(CACHES)}, not {cache!r}")
