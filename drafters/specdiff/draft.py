"""SpecDiff (arXiv 2408.05636) and SpecDiff-2 (arXiv 2511.00606) on masked-diffusion models."""

from __future__ import annotations

from torch import Tensor

from drafters.diffusion.draft import Diffusion, DiffusionSession, DraftPlan
from drafters.specdiff.options import SpecDiff2Options, SpecDiffOptions
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
    all_finite,
    draw_candidates,
    merge_chains,
    probabilities,
)

RULES = {rule.name: rule for rule in (SELECT, WALK, REJECT, SELECT_RATIO)}


class SpecDiff(Diffusion):
    """One pass, one draw per slot from its marginal, exact rejection on the chain."""

    name = "specdiff"
    Options = SpecDiffOptions

    @property
    def plan(self) -> DraftPlan:
        return DraftPlan(self.options.tokens, sample=True)


class SpecDiff2(Diffusion):
    """One pass, K drafts drawn from its marginals; the target keeps the best of them."""

    name = "specdiff2"
    Options = SpecDiff2Options

    @property
    def plan(self) -> DraftPlan:
        o = self.options
        return DraftPlan(o.tokens, candidates=o.candidates, draft_temperature=o.draft_temperature)

    @property
    def rule(self) -> Rule:
        return RULES[self.options.rule]

    def open(self, request: Request) -> DraftSession:
        return SpecDiff2Session(self, request)


class SpecDiff2Session(DiffusionSession):
    """`DiffusionSession` with drafts drawn at a temperature of their own."""

    def __init__(self, drafter: SpecDiff2, request: Request) -> None:
        super().__init__(drafter, request)
        options = drafter.options
        self._marginals = Sampling(options.draft_temperature, options.draft_top_k)
        self._rule = drafter.rule.at(request.sampling)

    def _propose_from(self, logits: Tensor) -> Proposal:
        count = self._plan.candidates
        probs = probabilities(logits, self._marginals)
        chains = draw_candidates(probs, count, self._generator)
        if self._rule is REJECT:
            return Proposal.chains(chains, probs.expand(count, -1, -1))
        handed = probs if self._rule is SELECT_RATIO else None
        return merge_chains(chains, handed, all_finite(logits.amax(-1)))
