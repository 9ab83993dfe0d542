"""Settings of EAGLE-3's training; importing them loads no torch."""

from dataclasses import dataclass
from typing import Annotated

from specbench.training.settings import DraftSettings, check_least


@dataclass(frozen=True)
class Eagle3Settings(DraftSettings):
    """Settings of `drafters.eagle.train.Eagle3Recipe`.

    A draft to go on from keeps the size of its vocabulary; its ids are chosen anew, and the head
    takes the target's own rows for ids that the draft did not have.
    """

    decided_by_init = ("draft_vocab_size", "rope_theta", "heads", "kv_heads", "head_dim",
                       "intermediate")  # fmt: skip

    steps: Annotated[int, "Unrolled steps of the training-time test."] = 7
    decay: Annotated[float, "Step s weighs decay ** s in the loss."] = 0.8
    draft_vocab_size: Annotated[
        int,
        "Ids the draft can propose, the most frequent ones of the responses; at most the target's.",
    ] = 32000
    rope_theta: Annotated[
        float, "Base of the draft's rotary positions; published heads keep 10000 for any target."
    ] = 10000.0
    heads: Annotated[int | None, "Query heads; none: the target's."] = None
    kv_heads: Annotated[int | None, "Key and value heads; none: the target's."] = None
    head_dim: Annotated[int | None, "Width of a head; none: the target's."] = None
    intermediate: Annotated[int | None, "Feed-forward width; none: the target's."] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, steps=1, draft_vocab_size=1)
