"""Text from one model alone: plain decoding, and the kinds of model that are announced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

import torch

from specbench.core.decode import generate
from specbench.core.drafter import Autoregressive
from specbench.core.target import Target
from specbench.drafting.generation import Filled, Generator, TextRequest
from specbench.inputs import registry


class PlainDecoding(Generator):
    """An autoregressive model: one token per step, from the left."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.tokenizer = target.tokenizer
        self.stop_ids = target.stop_ids

    @classmethod
    def load(
        cls, name: str, revision: str | None, *, device: torch.device, dtype: torch.dtype
    ) -> Self:
        """See `Generator`; whatever is no causal language model is refused."""
        return cls(Target.load(name, device=device, dtype=dtype, revision=revision, role="model"))

    def steps(self, prompt: list[int], request: TextRequest) -> Iterator[Filled]:
        """See `Generator`; each step fills the next slot, up to the stop token."""
        drafter = Autoregressive()
        drafter.bind(self._target.view())
        output = generate(
            self._target,
            drafter,
            prompt,
            request.length,
            sampling=request.sampling,
            seed=request.seed,
        )
        return (([slot], [token]) for slot, token in enumerate(output.tokens))


def load_generator(
    name: str, revision: str | None, *, device: torch.device, dtype: torch.dtype
) -> Generator:
    """Load what writes text with an embedded model, a folder or a hub id.

    Raises:
        UserError: it cannot be loaded.
    """
    for one in registry.registered(registry.GENERATORS):
        kind: type[Generator] = registry.load(one.name, registry.GENERATORS)
        found = kind.load(name, revision, device=device, dtype=dtype)
        if found is not None:
            return found
    return PlainDecoding.load(name, revision, device=device, dtype=dtype)
