"""Text from a masked-diffusion model alone, step by step, for `specbench generate`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import torch

from drafters.diffusion.families import FAMILIES, recognise
from drafters.diffusion.model import DiffusionModel
from drafters.diffusion.options import MULTI_BLOCK, DiffusionGeneratorOptions
from drafters.diffusion.prefix import Prefix
from drafters.diffusion.sampling import ORDERS, Choice, MultiBlock, Ranked, Step, denoise, even
from specbench.api import Sampling, UserError, seeded_generator
from specbench.drafting.checkpoints import find_checkpoint, read_config
from specbench.drafting.generation import Filled, Generator, TextRequest
from specbench.drafting.vocabulary import load_tokenizer


class DiffusionGenerator(Generator):
    """Fills a fixed number of slots behind a prompt.

    Without blocks all slots are open from the start. With them (LLaDA's semi-autoregressive way)
    the blocks are filled one after the other from the left, the steps are spread over them, and
    the masks of later blocks are visible all the time. A block-causal model has blocks of its own
    and never sees later ones.
    """

    Options = DiffusionGeneratorOptions

    def __init__(self, model: DiffusionModel, tokenizer: Any) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.stop_ids = model.stop_ids

    @classmethod
    def load(
        cls, name: str, revision: str | None, *, device: torch.device, dtype: torch.dtype
    ) -> Self | None:
        """See `Generator`; None where the name holds no masked-diffusion model."""
        raw = read_config(find_checkpoint(name, revision))
        try:
            recognise(raw, name)
        except UserError:
            if "diffusion" in raw or raw.get("model_type") in FAMILIES:
                raise
            return None
        model = DiffusionModel.load(name, revision, device=device, dtype=dtype)
        return cls(model, load_tokenizer(name, revision))

    def steps(self, prompt: list[int], request: TextRequest) -> Iterator[Filled]:
        """What each forward filled; nothing is filled behind the block with the first stop token.

        Raises:
            UserError: a block or number of steps that does not go with the model or the length,
                or a text longer than the context.
        """
        options, length = request.options or self.Options(), request.length
        self._check(prompt, length, options.block)
        generator = seeded_generator(request.seed, "draft", self.model.device)
        if options.sampler == MULTI_BLOCK:
            size = options.block or self.model.block_size or 32
            choice = MultiBlock(length, self.model.mask_id, self.stop_ids, size)
            windows: list[tuple[range, Choice]] = [(range(length), choice)]
        else:
            blocks = self._windows(len(prompt), length, options.block)
            windows = self._ranked(blocks, options.steps, options.sampler, generator)
        for step in self._fill(prompt, length, windows, request.sampling, generator):
            yield step.slots.tolist(), step.tokens.tolist()

    def _fill(
        self,
        prompt: list[int],
        length: int,
        windows: list[tuple[range, Choice]],
        sampling: Sampling,
        generator: torch.Generator,
    ) -> Iterator[Step]:
        """Fill one window after the other; a block-causal model sees a window once the earlier
        ones are filled."""
        causal = self.model.block_size is not None
        prefix = Prefix(self.model, len(prompt) + length, "block" if causal else "none")
        prefix.extend(prompt)
        contents = torch.full((length,), self.model.mask_id, device=self.model.device)
        for window, choice in windows:
            filled = contents[window.start : window.stop]
            seen, first = (filled, window.start) if causal else (contents, 0)
            for step in denoise(prefix.predict_given, seen, choice, sampling, generator):
                yield Step(step.slots + first, step.tokens)
            if causal:
                prefix.extend(filled)
            if not self.stop_ids.isdisjoint(filled.tolist()):
                return

    def _windows(self, start: int, length: int, block: int | None) -> list[range]:
        """The slots of each block. A block-causal model's blocks begin at multiples of its size in
        the whole text, so the prompt's end may cut the first one short."""
        size = self.model.block_size or block or length
        first = size - start % size if self.model.block_size else size
        starts = [0, *range(first, length, size)]
        return [range(a, b) for a, b in zip(starts, [*starts[1:], length], strict=True) if a < b]

    def _ranked(
        self, windows: list[range], steps: int | None, name: str, generator: torch.Generator
    ) -> list[tuple[range, Choice]]:
        """The choice of a sampler for each window."""
        order, counts = ORDERS[name]
        length = windows[-1].stop
        if name == "first_hitting" and steps not in (None, length):
            raise UserError(f"first_hitting fills one slot per step: {length} steps, not {steps}.")
        if steps is not None and steps < len(windows):
            raise UserError(
                f"steps={steps} is too few for {len(windows)} blocks, which take a step each."
            )
        chosen: list[tuple[range, Choice]] = []
        shares = [len(window) for window in windows]
        if steps is not None:
            shares = even(steps, len(windows))
        for window, share in zip(windows, shares, strict=True):
            causal = self.model.block_size is not None
            slots = range(len(window)) if causal else window
            where = torch.tensor(slots, device=self.model.device)
            taken = counts(len(window), share, generator)
            chosen.append((window, Ranked(where, taken, order, generator)))
        return chosen

    def _check(self, prompt: list[int], length: int, block: int | None) -> None:
        size = self.model.block_size
        if size is not None and block not in (None, size):
            raise UserError(f"{self.model.name} attends in blocks of {size}: set block to {size}.")
        if not prompt:
            raise UserError("The prompt is empty: a diffusion model needs a token to start from.")
        if len(prompt) + length > self.model.context_limit:
            raise UserError(
                f"A prompt of {len(prompt)} tokens and {length} new ones are more than the "
                f"context of {self.model.name}, {self.model.context_limit}."
            )
