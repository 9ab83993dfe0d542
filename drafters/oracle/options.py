"""Options of the oracle; importing them loads no torch."""

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True)
class OracleOptions:
    """Options of `drafters.oracle.draft.Oracle`."""

    rate: Annotated[
        float, "Probability that the right token is among the candidates of its depth."
    ] = 0.8
    tokens: Annotated[int, "Depth of a proposal."] = 8
    branches: Annotated[int, "Candidates per depth; 1 makes the proposal a chain."] = 1
    seed: Annotated[int, "Random seed of the errors."] = 0

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1 or self.tokens < 1 or self.branches < 1:
            raise ValueError(
                "rate must be within [0, 1], tokens >= 1 and branches >= 1, not "
                f"{self.rate}, {self.tokens} and {self.branches}"
            )
