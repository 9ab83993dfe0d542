"""SpecDiff (arXiv 2408.05636) and SpecDiff-2 (arXiv 2511.00606) on masked-diffusion models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from drafters.diffusion.draft import Diffusion, DiffusionSession
from drafters.diffusion.prefix import CACHES
from specbench.api import (
    REJECT,
    SELECT,
    SELECT_RATIO,
    WALK,
    DraftSession,
    Proposal,
    Request,
    Rule,
    Sampling,
    check_candidates,
    draw_candidates,
    merge_chains,
    probabilities,
)

RULES = {rule.name: rule for rule in (SELECT, WALK, REJECT, SELECT_RATIO)}


@dataclass(frozen=True)
class SpecDiffOptions:
    """Settings of `SpecDiff`.

    Attributes:
        model: hub id or folder of the masked-diffusion model.
        revision: of the hub id.
        tokens: the most tokens drafted a round.
        cache: "auto", "none", "prefix_causal" (an approximation) or "block", as `diffusion` has it.
        map_vocabulary: draft for a target with another tokenizer, through the tokens they share.
    """

    model: str | None = None
    revision: str | None = None
    tokens: int = 16
    cache: str = "auto"
    map_vocabulary: bool = False

    # What the method settles of `diffusion`'s options.
    steps: ClassVar[int] = 1
    sample: ClassVar[bool] = True
    candidates: ClassVar[int] = 1
    draft_temperature: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ValueError(f"tokens must be at least 1, not {self.tokens}")
        if self.cache not in ("auto", *CACHES):
            raise ValueError(f"cache is auto or one of {', '.join(CACHES)}, not {self.cache!r}")


class SpecDiff(Diffusion):
    """One pass, one draw a slot from its marginal, the ratio rule on the chain."""

    name = "specdiff"
    Options = SpecDiffOptions


@dataclass(frozen=True)
class SpecDiff2Options(SpecDiffOptions):
    """Settings of `SpecDiff2`.

    Attributes:
        candidates: drafts of a round (the paper's K). Each verifies up to ``tokens`` rows.
        draft_temperature: at which they are drawn, whatever the target's temperature.
        draft_top_k: only the k most likely tokens of a slot are drawn; 0 draws from all.
        rule: at temperature > 0. "select" is the paper's self-selection; "walk" follows all
            candidates at once; "reject" tries each against the marginals it was drawn from, as
            the released code does; "select-ratio" tries the selected one so, which is lossy.
    """

    candidates: int = 8  # type: ignore[misc]
    draft_temperature: float = 1.5  # type: ignore[misc]
    draft_top_k: int = 0
    rule: str = "select"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_candidates(self.candidates, self.draft_temperature)
        if self.draft_top_k < 0:
            raise ValueError(f"draft_top_k must not be negative, not {self.draft_top_k}")
        if self.rule not in RULES:
            raise ValueError(f"rule is one of {', '.join(RULES)}, not {self.rule!r}")


class SpecDiff2(Diffusion):
    """One pass, K drafts drawn from its marginals, and the target keeps the best of them."""

    name = "specdiff2"
    Options = SpecDiff2Options

    @property
    def rule(self) -> Rule:
        return RULES[self.options.rule]

    def open(self, request: Request) -> DraftSession:
        return SpecDiff2Session(self, request)


class SpecDiff2Session(DiffusionSession):
    """`DiffusionSession` with drafts that are drawn at a temperature of their own."""

    def __init__(self, drafter: SpecDiff2, request: Request) -> None:
        super().__init__(drafter, request)
        options = drafter.options
        self._marginals = Sampling(options.draft_temperature, options.draft_top_k)
        self._rule = drafter.rule.at(request.sampling)

    def _from(self, logits: Tensor) -> Proposal:
        count = self._options.candidates
        probs = probabilities(logits, self._marginals)
        chains = draw_candidates(probs, count, self._generator)
        if self._rule is REJECT:
            return Proposal.chains(chains, probs.expand(count, -1, -1))
        handed = probs if self._rule is SELECT_RATIO else None
        return merge_chains(chains, handed, logits.max().isfinite())
