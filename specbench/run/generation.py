"""Text from one model alone: plain decoding, and what other kinds of model bring for themselves.

A kind of model that is no `AutoModelForCausalLM` is announced under the entry-point group
`specbench.generators`: a function that takes a name and gives a `Generator`, or None where
the name holds another kind of model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Protocol

import torch

from specbench.core.decode import generate
from specbench.core.drafter import Autoregressive
from specbench.core.sampling import Sampling
from specbench.core.target import Target
from specbench.errors import UserError
from specbench.zoo import resolve

GROUP = "specbench.generators"


Filled = tuple[list[int], list[int]]
"""The slots that a step filled, counted from the prompt's end, and their tokens."""


@dataclass(frozen=True)
class Wanted:
    """How a text is to be written.

    Attributes:
        length: slots in all, the most tokens of the text.
        sampler, steps, block: of `specbench generate`; None takes the model's own way.
        sampling: how tokens are drawn.
        seed: of the draws.
    """

    length: int
    sampler: str | None = None
    steps: int | None = None
    block: int | None = None
    sampling: Sampling = Sampling()
    seed: int = 0


class Generator(Protocol):
    """A model that writes text, step by step.

    Attributes:
        tokenizer: its tokenizer, or None.
        stop_ids: ids that end a text.
    """

    tokenizer: Any
    stop_ids: frozenset[int]

    def steps(self, prompt: list[int], wanted: Wanted) -> Iterator[Filled]:
        """What each step filled.

        Raises:
            UserError: settings that this model cannot be run with.
        """
        ...


class PlainDecoding:
    """An autoregressive model: a token a step, from the left."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.tokenizer = target.tokenizer
        self.stop_ids = target.stop_ids

    def steps(self, prompt: list[int], wanted: Wanted) -> Iterator[Filled]:
        """See `Generator`; the next slot and its token, to the stop token."""
        given = {"--sampler": wanted.sampler, "--steps": wanted.steps, "--block": wanted.block}
        wrong = [option for option, value in given.items() if value is not None]
        if wrong:
            raise UserError(
                f"{self._target.name} is autoregressive, one token a step from the left: leave "
                f"{' and '.join(wrong)} out."
            )
        drafter = Autoregressive()
        drafter.bind(self._target.view())
        output = generate(
            self._target,
            drafter,
            prompt,
            wanted.length,
            sampling=wanted.sampling,
            seed=wanted.seed,
        )
        return (([slot], [token]) for slot, token in enumerate(output.tokens))


def load_generator(
    name: str, revision: str | None, *, device: torch.device, dtype: torch.dtype
) -> Generator:
    """What writes text with the model ``name``: an embedded name, a folder or a hub id.

    Raises:
        UserError: it cannot be loaded.
    """
    where = resolve(name)
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        found: Generator | None = point.load()(where, revision, device=device, dtype=dtype)
        if found is not None:
            return found
    return PlainDecoding(Target.load(where, device=device, dtype=dtype, revision=revision))
