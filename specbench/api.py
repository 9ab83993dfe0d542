"""All that a drafter's author may import."""

from specbench.core.drafter import (
    Autoregressive,
    Commit,
    Drafter,
    DraftSession,
    Request,
    TargetView,
)
from specbench.core.kv import KVCache, cache_argument
from specbench.core.proposal import Proposal
from specbench.core.rules import REJECT, SELECT, SELECT_RATIO, WALK, Kept, Rule
from specbench.core.sampling import Sampling, draw, probabilities, seeded_generator
from specbench.core.target import Target
from specbench.drafting.adaptive import AdaptiveLength, before_stop
from specbench.drafting.options import ModelOptions
from specbench.drafting.proposals import (
    all_finite,
    draw_candidates,
    drawn,
    merge_chains,
    rule_of,
    with_candidates,
)
from specbench.errors import UserError

__all__ = [
    "REJECT",
    "SELECT",
    "SELECT_RATIO",
    "WALK",
    "AdaptiveLength",
    "Autoregressive",
    "Commit",
    "DraftSession",
    "Drafter",
    "KVCache",
    "Kept",
    "ModelOptions",
    "Proposal",
    "Request",
    "Rule",
    "Sampling",
    "Target",
    "TargetView",
    "UserError",
    "all_finite",
    "before_stop",
    "cache_argument",
    "draw",
    "draw_candidates",
    "drawn",
    "merge_chains",
    "probabilities",
    "rule_of",
    "seeded_generator",
    "with_candidates",
]
