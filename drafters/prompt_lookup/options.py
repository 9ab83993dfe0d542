"""Options of prompt lookup; importing them loads no torch."""

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True)
class PromptLookupOptions:
    """Options of `drafters.prompt_lookup.draft.PromptLookup`."""

    tokens: Annotated[int, "Most tokens copied per round."] = 10
    max_ngram: Annotated[int, "Longest suffix that is looked up; it is tried first."] = 3
    min_ngram: Annotated[int, "Shortest suffix that is looked up."] = 1

    def __post_init__(self) -> None:
        if self.tokens < 1 or not 1 <= self.min_ngram <= self.max_ngram:
            raise ValueError(
                "tokens must be at least 1 and 1 <= min_ngram <= max_ngram, not "
                f"{self.tokens}, {self.min_ngram} and {self.max_ngram}"
            )
