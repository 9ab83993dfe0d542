"""A masked-diffusion language model as the drafter: a whole draft from one or a few forwards."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from drafters.diffusion.model import DiffusionModel
from drafters.diffusion.options import DiffusionOptions
from drafters.diffusion.prefix import Prefix
from drafters.diffusion.sampling import ORDERS, Ranked, denoise
from drafters.diffusion.vocabulary import match
from specbench.api import (
    Commit,
    Drafter,
    DraftSession,
    Proposal,
    Request,
    Rule,
    Sampling,
    TargetView,
    drawn,
    rule_of,
    seeded_generator,
    with_candidates,
)


@dataclass(frozen=True)
class DraftPlan:
    """How a session makes a draft of what the model predicts.

    Attributes:
        tokens: the most tokens of one draft.
        steps: forwards per draft; ``order`` says which slots are filled first.
        sample: draw every slot from its marginal and hand the marginals over.
        candidates: drafts handed over together; all but the first are drawn at
            ``draft_temperature``.
    """

    tokens: int
    steps: int = 1
    order: str = "low_confidence"
    sample: bool = False
    candidates: int = 1
    draft_temperature: float = 1.0


class Diffusion(Drafter):
    """The prefix and k masks through a masked-diffusion model (arXiv 2408.05636)."""

    name = "diffusion"
    Options: ClassVar[type] = DiffusionOptions

    @property
    def plan(self) -> DraftPlan:
        """How its sessions draft."""
        o = self.options
        return DraftPlan(o.tokens, o.steps, o.order, o.sample, o.candidates, o.draft_temperature)

    @property
    def rule(self) -> Rule:
        return rule_of(self.plan.sample, self.plan.candidates)

    @property
    def details(self) -> dict[str, Any]:
        return {
            "family": self.model.family.name,
            "cache": self.cache,
            "candidates": self.plan.candidates,
            "approximate": self.cache == "prefix_causal",
            "shared_vocabulary": round(self.vocabulary.share, 4),
        }

    def bind(self, target: TargetView) -> None:
        """Load the model in the target's dtype, on its device.

        Raises:
            UserError: it cannot be loaded or have that cache, or its
                vocabulary is not the target's.
        """
        self.width = self.plan.candidates * self.plan.tokens
        self.model = DiffusionModel.load(
            self.options.model, self.options.revision, device=target.device, dtype=target.dtype
        )
        self.cache = self.options.cache
        if self.cache == "auto":
            self.cache = "none" if self.model.block_size is None else "block"
        Prefix(self.model, 1, self.cache)  # Refuses a cache here and not in the middle of a run.
        self.vocabulary = match(
            target, self.model, self.options.revision, self.options.map_vocabulary, self.name
        )

    def open(self, request: Request) -> DraftSession:
        return DiffusionSession(self, request)


class DiffusionSession(DraftSession):
    """One sequence: the committed tokens in the drafter's ids, and masks behind them."""

    def __init__(self, drafter: Diffusion, request: Request) -> None:
        self._plan = drafter.plan
        self._model = drafter.model
        self._vocabulary = drafter.vocabulary
        self._sampling = request.sampling
        self._generator = seeded_generator(request.seed, "draft", drafter.model.device)
        wanted = drafter.vocabulary.capacity(request.capacity)
        self._capacity = min(wanted, drafter.model.context_limit)
        self._prefix = Prefix(drafter.model, self._capacity, drafter.cache)
        self._full = False

    @torch.inference_mode()
    def commit(self, commit: Commit) -> None:
        tokens = self._vocabulary.prefix(commit.tokens)
        # A prefix with a gap would be worse than none: go on without drafts.
        self._full = self._full or self._prefix.length + len(tokens) > self._capacity
        if not self._full:
            self._prefix.extend(tokens)

    @torch.inference_mode()
    def propose(self, budget: int) -> Proposal:
        room = 0 if self._full else self._capacity - self._prefix.length
        count = min(budget, self._draft_length(), room)
        if count < 1 or self._prefix.length == 0:
            return Proposal.chain(torch.empty(0, dtype=torch.long, device=self._model.device))
        return self._propose_from(self._vocabulary.logits(self._denoise(count)))

    def buffers(self) -> Iterable[Tensor]:
        return self._prefix.buffers()

    def _draft_length(self) -> int:
        """Return the most tokens of the next draft."""
        return self._plan.tokens

    def _propose_from(self, logits: Tensor) -> Proposal:
        """Make a draft of its slots' logits ``[count, V]``, in the target's ids."""
        plan = self._plan
        if plan.sample and not self._sampling.greedy:
            return drawn(logits, self._sampling, self._generator)
        best, temperature = logits.argmax(-1), plan.draft_temperature
        return with_candidates(best, logits, plan.candidates, temperature, self._generator)

    def _denoise(self, count: int) -> Tensor:
        """Predict ``[count, vocabulary]`` logits in the drafter's ids.

        A slot keeps the logits of the step that filled it: a model is not trained to predict what
        it can see, so later passes have no information about filled slots.
        """
        if self._plan.steps == 1:
            return self._prefix.predict_block(count)
        order, counts = ORDERS[self._plan.order]
        contents = torch.full((count,), self._model.mask_id, device=self._model.device)
        slots = torch.arange(count, device=self._model.device)
        steps = counts(count, min(self._plan.steps, count), self._generator)
        choice = Ranked(slots, steps, order, self._generator)
        found: list[Tensor] = []

        def predict(block: Tensor) -> Tensor:
            found.append(self._vocabulary.sayable(self._prefix.predict_given(block)))
            return found[-1]

        filled = list(denoise(predict, contents, choice, Sampling(), self._generator))
        logits = torch.empty_like(found[0])
        for step, rows in zip(filled, found, strict=True):
            logits[step.slots] = rows[step.slots]
        return logits
