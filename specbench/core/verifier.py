"""The verifier: it owns the target's cache and decides what is kept of a proposal."""

from __future__ import annotations

import torch
from torch import Tensor

from specbench.core.drafter import Commit, NullProbe, Probe
from specbench.core.kv import KVCache
from specbench.core.proposal import Proposal
from specbench.core.rules import WALK, Rule
from specbench.core.sampling import Sampling, draw, probabilities, seeded_generator
from specbench.core.target import Target


class Verifier:
    """The target's side of one sequence.

    Between calls the cache holds every committed token but the anchor. A rule with `same_text`
    draws output token t with the t-th uniform of the seed, whatever the drafter proposes. The
    other rules draw from a generator of their own.

    Args:
        target: the model.
        sampling: how the output tokens are drawn.
        seed: random seed of this sequence.
        prompt_length: number of prompt tokens.
        budget: the most output tokens.
        width: the most tokens one proposal holds.
        taps: boundaries whose hidden states the commits carry.
        rule: acceptance rule for temperature > 0; greedy sampling always walks.
        probe: observes the rule and the cache's compaction as "accept".
    """

    def __init__(
        self,
        target: Target,
        sampling: Sampling,
        seed: int,
        prompt_length: int,
        budget: int,
        width: int,
        taps: tuple[int, ...] = (),
        rule: Rule = WALK,
        probe: Probe | None = None,
    ) -> None:
        self.target = target
        self.sampling = sampling
        self.taps = taps
        self._keep = rule.at(sampling).keep
        self.width = width
        self._probe = probe or NullProbe()
        self.capacity = prompt_length + budget + width + 1
        self.cache = KVCache(target.num_layers, self.capacity)
        # The last round may look beyond the budget, by at most one uniform per drafted token.
        noise = seeded_generator(seed, "verify", torch.device("cpu"))
        self._uniforms = torch.rand(budget + width + 1, generator=noise).to(target.device)
        self._generator = seeded_generator(seed, "reject", target.device)
        self._committed = 0
        self._emitted = 0
        self._anchor = torch.empty(0, dtype=torch.long, device=target.device)

    @torch.inference_mode()
    def prefill(self, prompt: list[int]) -> Commit:
        """Run the prompt, draw the first output token from its last row, and commit both.

        Raises:
            ValueError: logits that are not finite.
        """
        ids = torch.tensor(prompt, device=self.target.device)
        logits, features = self.target.forward(ids, self.cache, self.taps, last_only=True)
        if self.sampling.greedy:
            first = logits[-1].argmax()
        else:
            first = draw(probabilities(logits[-1], self.sampling), self._uniforms[0])
        token, finite = torch.stack([first, logits.max().isfinite().long()]).tolist()
        if not finite:
            raise ValueError("the target's logits are not finite")
        self._committed = len(prompt) + 1
        return self._commit((*prompt, token), features, accepted=0, emitted=1)

    @torch.inference_mode()
    def verify(self, proposal: Proposal) -> Commit:
        """Run one target forward over anchor + proposal, and keep what the rule keeps.

        Raises:
            ValueError: a malformed or too wide proposal, or logits that are not finite.
        """
        if len(proposal) > self.width:
            raise ValueError(f"{len(proposal)} tokens exceed the drafter's width of {self.width}")
        start = self.cache.length
        assert start == self._committed - 1, "the cache must hold all committed tokens but one"
        vocabulary = self.target.vocab_size
        ids = torch.cat([self._anchor, proposal.tokens.clamp(0, vocabulary - 1)])
        logits, features = self.target.forward(ids, self.cache, self.taps, tree=proposal)
        uniforms = self._uniforms[self._emitted :]
        with self._probe.phase("accept"):
            kept = self._keep(proposal, logits, self.sampling, uniforms, self._generator)
            rows = [0, *(node + 1 for node in kept.path)]
            self.cache.compact(start, rows)
        self._committed += len(kept.tokens)
        return self._commit(kept.tokens, _select(features, rows), len(kept.path), len(kept.tokens))

    def _commit(
        self, tokens: tuple[int, ...], features: Tensor | None, accepted: int, emitted: int
    ) -> Commit:
        self._emitted += emitted
        self._anchor = torch.tensor(tokens[-1:], device=self.target.device)
        return Commit(tokens, features, accepted)


def _select(features: Tensor | None, rows: list[int]) -> Tensor | None:
    if features is None:
        return None
    if rows == list(range(len(rows))):
        return features[: len(rows)]
    return features[torch.tensor(rows, device=features.device)]
