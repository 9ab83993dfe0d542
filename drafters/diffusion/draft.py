"""A masked-diffusion language model as the drafter: a whole draft from one or a few forwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from drafters.diffusion.model import DiffusionModel
from drafters.diffusion.prefix import CACHES
from drafters.diffusion.sampling import ORDERS, Ranked, denoise
from drafters.diffusion.vocabulary import match
from specbench.api import (
    REJECT,
    SELECT,
    WALK,
    Commit,
    Drafter,
    DraftSession,
    Proposal,
    Request,
    Rule,
    Sampling,
    TargetView,
    UserError,
    check_candidates,
    draw,
    probabilities,
    seeded_generator,
    with_candidates,
)

DRAFT_ORDERS = tuple(name for name in ORDERS if name != "first_hitting")
"""Orders that finish in any number of steps; `first_hitting` takes one a token."""


@dataclass(frozen=True)
class Options:
    """Settings of `Diffusion`.

    Attributes:
        model: hub id or folder of the masked-diffusion model.
        revision: of the hub id.
        tokens: the most tokens drafted a round.
        steps: forwards a draft takes; what they fill first is settled by ``order``.
        order: with more than one step, one of `DRAFT_ORDERS`.
        sample: at temperature > 0, draw every slot independently from its own marginal and hand
            the marginals over for exact rejection sampling; one step only, since later steps
            would see the draws. False takes the most likely tokens, one-hot. Which of the two is
            kept more often hangs on the model: where neighbours hang together, independent draws
            rarely fit, and where the model is unsure, its favourite is rarely said.
        cache: "none" runs the whole prefix every forward; "prefix_causal" keeps the keys and
            values of a causal prefix, an approximation of full attention; "block" keeps those of
            finished blocks, exactly, in block-causal models; "auto" is "block" where the model
            can have it and else "none".
        map_vocabulary: draft for a target with another tokenizer, through the tokens they share.
        candidates: more than one verifies the most likely tokens and so many drafts less one,
            drawn from the same pass, and keeps the best (rule "select"); one step only.
        draft_temperature: at which they are drawn.
    """

    model: str | None = None
    revision: str | None = None
    tokens: int = 16
    steps: int = 1
    order: str = "low_confidence"
    sample: bool = False
    cache: str = "auto"
    map_vocabulary: bool = False
    candidates: int = 1
    draft_temperature: float = 1.5

    def __post_init__(self) -> None:
        if self.tokens < 1 or not 1 <= self.steps <= self.tokens:
            raise UserError(
                f"diffusion needs tokens >= 1 and steps from 1 to tokens, not {self.tokens} and "
                f"{self.steps}."
            )
        for option, given, known in (
            ("order", self.order, DRAFT_ORDERS),
            ("cache", self.cache, ("auto", *CACHES)),
        ):
            if given not in known:
                raise UserError(f"diffusion.{option} is {given!r}; it is {', '.join(known)}.")
        if self.sample and self.steps > 1:
            raise UserError(
                f"diffusion.sample draws from the marginals of a single step, not of {self.steps}: "
                "take steps=1 or sample=false."
            )
        check_candidates(self.candidates, self.draft_temperature)
        if self.candidates > 1 and (self.sample or self.steps > 1):
            raise UserError(
                "diffusion.candidates are drawn from the marginals of a single step and handed "
                "over without them: take steps=1 and sample=false."
            )


class Diffusion(Drafter):
    """The prefix and k masks through a masked-diffusion model (arXiv 2408.05636)."""

    name = "diffusion"
    Options: ClassVar[type] = Options

    @property
    def longest(self) -> int:
        """The most tokens of one draft."""
        return int(self.options.tokens)

    @property
    def rule(self) -> Rule:
        if self.options.candidates > 1:
            return SELECT
        return REJECT if self.options.sample else WALK

    @property
    def details(self) -> dict[str, Any]:
        return {
            "family": self.model.family.name,
            "cache": self.cache,
            "candidates": self.options.candidates,
            "approximate": self.cache == "prefix_causal",
            "shared_vocabulary": round(self.vocabulary.share, 4),
        }

    def bind(self, target: TargetView) -> None:
        """Load the model in the target's dtype, on its device.

        Raises:
            UserError: no model is named, it cannot be loaded or have that cache, or its
                vocabulary is not the target's.
        """
        if self.options.model is None:
            raise UserError(
                f"{self.name} needs a masked-diffusion model: give its folder or hub id "
                "(--draft-model)."
            )
        self.width = self.options.candidates * self.longest
        self.model = DiffusionModel.load(
            self.options.model, self.options.revision, device=target.device, dtype=target.dtype
        )
        self.cache = self.options.cache
        if self.cache == "auto":
            self.cache = "none" if self.model.block_size is None else "block"
        self.model.open(1, self.cache)  # Refuses here what it would refuse in a run.
        self.vocabulary = match(
            target, self.model, self.options.revision, self.options.map_vocabulary, self.name
        )

    def open(self, request: Request) -> DraftSession:
        return DiffusionSession(self, request)


class DiffusionSession(DraftSession):
    """One sequence: the committed tokens in the drafter's ids, and masks behind them."""

    def __init__(self, drafter: Diffusion, request: Request) -> None:
        self._options = drafter.options
        self._model = drafter.model
        self._vocabulary = drafter.vocabulary
        self._sampling = request.sampling
        self._generator = seeded_generator(request.seed, "draft", drafter.model.device)
        wanted = drafter.vocabulary.capacity(request.capacity)
        self._capacity = min(wanted, drafter.model.context_limit)
        self._prefix = drafter.model.open(self._capacity, drafter.cache)
        self._full = False

    @torch.inference_mode()
    def commit(self, commit: Commit) -> None:
        tokens = self._vocabulary.prefix(commit.tokens)
        # A prefix with a gap would be worse than none: it goes on without drafts.
        self._full = self._full or self._prefix.length + len(tokens) > self._capacity
        if not self._full:
            self._prefix.extend(tokens)

    @torch.inference_mode()
    def propose(self, budget: int) -> Proposal:
        room = 0 if self._full else self._capacity - self._prefix.length
        count = min(budget, self._most(), room)
        if count < 1 or self._prefix.length == 0:
            return Proposal.chain(torch.empty(0, dtype=torch.long, device=self._model.device))
        return self._from(self._vocabulary.logits(self._passes(count)))

    def _most(self) -> int:
        """The most tokens of the next draft."""
        return int(self._options.tokens)

    def _from(self, logits: Tensor) -> Proposal:
        """A draft from ``[count, V]`` logits of its slots in the target's ids."""
        options = self._options
        if options.sample and not self._sampling.greedy:
            probs = probabilities(logits, self._sampling)
            uniforms = torch.rand(len(probs), generator=self._generator, device=probs.device)
            return Proposal.chain(draw(probs, uniforms), probs)
        best, temperature = logits.argmax(-1), options.draft_temperature
        return with_candidates(best, logits, options.candidates, temperature, self._generator)

    def _passes(self, count: int) -> Tensor:
        """``[count, vocabulary]`` logits, drafter ids; of a slot that a step filled, that step's.

        (A model is not trained to predict what it can see, so the last pass says nothing new
        about the filled slots.)
        """
        if self._options.steps == 1:
            return self._prefix.predict_block(count)
        order, counts = ORDERS[self._options.order]
        contents = torch.full((count,), self._model.mask_id, device=self._model.device)
        slots = torch.arange(count, device=self._model.device)
        steps = counts(count, min(self._options.steps, count), self._generator)
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
