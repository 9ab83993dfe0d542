"""All names that the author of a drafter needs; ``drafting`` and ``training`` add helpers."""

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
from specbench.drafting.candidates import (
    check_candidates,
    draw_candidates,
    merge_chains,
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
    "Proposal",
    "Request",
    "Rule",
    "Sampling",
    "Target",
    "TargetView",
    "UserError",
    "before_stop",
    "cache_argument",
    "check_candidates",
    "draw",
    "draw_candidates",
    "merge_chains",
    "probabilities",
    "seeded_generator",
    "with_candidates",
]
