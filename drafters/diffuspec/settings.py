"""Settings of the n-gram scorer's training; importing them loads no torch."""

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True)
class NgramSettings:
    """Settings of `drafters.diffuspec.train.train_ngram`."""

    order: Annotated[int, "Longest n-gram, 2 to 6."] = 3
    prune: Annotated[
        tuple[int, ...], "Leave out n-grams that occur so often or less, by order: 0,0,1."
    ] = (0,)
    seed: Annotated[int, "Random seed of the choice of held-out rows."] = 0

    def __post_init__(self) -> None:
        if not 2 <= self.order <= 6:
            raise ValueError(f"order={self.order} must lie in 2 to 6")
