"""A kind of model that writes text alone, for `specbench generate`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch

from specbench.core.options import NoOptions
from specbench.core.sampling import Sampling

Filled = tuple[list[int], list[int]]
"""The slots that a step filled, counted from the prompt's end, and their tokens."""


@dataclass(frozen=True)
class TextRequest:
    """A text to be written.

    Attributes:
        length: slots in all, the most tokens of the text.
        options: the generator's own options object; None stands for its defaults.
        sampling: how tokens are drawn.
        seed: of the draws.
    """

    length: int
    options: Any = None
    sampling: Sampling = Sampling()
    seed: int = 0


class Generator(ABC):
    """A model that writes text, step by step.

    A kind that is no `AutoModelForCausalLM` is announced under the entry-point group
    `specbench.generators`.

    Attributes:
        Options: frozen dataclass of its settings (`--set key=value`).
        tokenizer: its tokenizer, or None.
        stop_ids: ids that end a text.
    """

    Options: ClassVar[type] = NoOptions
    tokenizer: Any
    stop_ids: frozenset[int]

    @classmethod
    @abstractmethod
    def load(
        cls, name: str, revision: str | None, *, device: torch.device, dtype: torch.dtype
    ) -> Self | None:
        """Load an embedded model, a folder or a hub id; None where it holds another kind of model.

        Raises:
            UserError: it is of this kind and cannot be loaded.
        """

    @abstractmethod
    def steps(self, prompt: list[int], request: TextRequest) -> Iterator[Filled]:
        """What each step filled.

        Raises:
            UserError: a request that does not go with this model.
        """
