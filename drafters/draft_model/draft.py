"""Speculative sampling with a smaller causal LM that drafts a chain (arXiv 2211.17192)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from drafters.draft_model.options import DraftModelOptions
from specbench.api import (
    Commit,
    Drafter,
    DraftSession,
    KVCache,
    Proposal,
    Request,
    Rule,
    Sampling,
    Target,
    TargetView,
    all_finite,
    draw,
    probabilities,
    rule_of,
    seeded_generator,
)
from specbench.drafting.kv import cache_buffers
from specbench.drafting.vocabulary import require_same_vocabulary


class DraftModel(Drafter):
    """A causal LM with the target's vocabulary, one forward per drafted token."""

    name = "draft-model"
    Options = DraftModelOptions

    @property
    def rule(self) -> Rule:
        return rule_of(self.options.sample)

    def bind(self, target: TargetView) -> None:
        """Load the draft on the target's device and in its dtype, and compare vocabularies.

        Raises:
            UserError: it cannot be loaded, or its tokenizer differs.
        """
        self.width = self.options.tokens
        self.model = Target.load(
            self.options.model,
            device=target.device,
            dtype=target.dtype,
            revision=self.options.revision,
            role="draft",
        )
        self._vocabulary = target.vocab_size
        require_same_vocabulary(target, self.model)

    def open(self, request: Request) -> DraftSession:
        return _Chain(self.model, self._vocabulary, self.options, request)


class _Chain(DraftSession):
    """One sequence.

    Between rounds the cache holds a prefix of the committed tokens and ``_pending`` the rest:
    the bonus and, where the whole draft was accepted, the last drafted token before it.
    """

    def __init__(
        self, model: Target, vocabulary: int, options: DraftModelOptions, request: Request
    ) -> None:
        self._model = model
        self._vocabulary = vocabulary
        self._tokens = options.tokens
        self._sampling = request.sampling if options.sample else Sampling()
        self._generator = seeded_generator(request.seed, "draft", model.device)
        self._cache = KVCache(model.num_layers, request.capacity)
        self._pending: list[int] = []
        self._committed = 0

    def commit(self, commit: Commit) -> None:
        # Accepted tokens are in the cache already, except the last one that was drafted.
        self._cache.truncate(min(self._cache.length, self._committed + commit.accepted))
        self._committed += len(commit.tokens)
        missing = self._committed - self._cache.length
        self._pending = [*self._pending, *commit.tokens][-missing:]

    @torch.inference_mode()
    def propose(self, budget: int) -> Proposal:
        count = min(budget, self._tokens, self._room())
        # Ids that only the target has (unused padding rows) have no embedding here.
        known = [min(token, self._model.vocab_size - 1) for token in self._pending]
        ids = torch.tensor(known, device=self._model.device)
        if count < 1:
            return Proposal.chain(ids[:0])
        uniforms = torch.rand(count, generator=self._generator, device=self._model.device)
        tokens: list[Tensor] = []
        peaks: list[Tensor] = []
        probs: list[Tensor] = []
        for uniform in uniforms:
            logits = self._next_logits(ids)
            if self._sampling.greedy:
                peak, ids = logits.max(-1, keepdim=True)
                peaks.append(peak)
            else:
                probs.append(probabilities(logits, self._sampling))
                ids = draw(probs[-1], uniform)[None]
            tokens.append(ids)
        if probs:
            return Proposal.chain(torch.cat(tokens), torch.stack(probs))
        return Proposal.chain(torch.cat(tokens), finite=all_finite(torch.cat(peaks)))

    def buffers(self) -> Iterable[Tensor]:
        return cache_buffers(self._cache)

    def _room(self) -> int:
        """Count the tokens that may still be drafted within the draft's own context."""
        limit = self._model.context_limit
        return self._tokens if limit is None else limit + 1 - self._committed

    def _next_logits(self, ids: Tensor) -> Tensor:
        """Append ``ids`` ``[m]`` and return the ``[vocabulary]`` logits of the next token.

        They are as wide as the target's: rows that only one of the two models has are padding and
        never drafted.
        """
        tree = Proposal.chain(ids[1:]) if self._cache.length else None
        logits, _ = self._model.forward(ids, self._cache, tree=tree, last_only=True)
        missing = self._vocabulary - logits.shape[-1]
        # A negative pad crops.
        return torch.nn.functional.pad(logits[-1], (0, missing), value=-torch.inf)
