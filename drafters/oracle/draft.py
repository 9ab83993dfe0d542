"""A drafter that knows the answer and errs on purpose: what an acceptance rate is worth.

It is a control, not a method: it decodes the answer with a second copy of the target. Each drafted
token is right with probability r, independently, so a round of k drafted tokens emits
(1 - r^(k + 1)) / (1 - r) tokens on average (arXiv 2211.17192, Eq. 1).
"""

from __future__ import annotations

import random

import torch

from drafters.oracle.options import OracleOptions
from specbench.api import (
    Commit,
    Drafter,
    DraftSession,
    KVCache,
    Proposal,
    Request,
    Target,
    TargetView,
    draw,
    probabilities,
    seeded_generator,
)


class Oracle(Drafter):
    """Proposes the target's own continuation with errors at a set rate.

    The answer to a prompt is decoded before the clock runs, and kept. So the measured time holds
    next to no drafting: its speedup is the ceiling of any drafter that is accepted at this rate.
    """

    name = "oracle"
    Options = OracleOptions
    role = "control"

    def bind(self, target: TargetView) -> None:
        """Load the target once more, by its name and at its revision.

        Raises:
            UserError: it cannot be loaded from there.
        """
        self.width = self.options.tokens * self.options.branches
        self.copy = self._load(target)
        self._answers: dict[tuple[object, ...], list[int]] = {}

    def _load(self, target: TargetView) -> Target:
        return Target.load(
            target.name,
            device=target.device,
            dtype=target.dtype,
            revision=target.revision,
        )

    def prepare(self, prompt: list[int], request: Request) -> None:
        """Decode the answer that a session of this request will read."""
        first, *rest = self._decode(tuple(prompt), 0, request)
        self._answers[_key((*prompt, first), 1, request)] = rest

    def open(self, request: Request) -> DraftSession:
        return _Foresight(self, request)

    def answer(self, text: tuple[int, ...], said: int, request: Request) -> list[int]:
        """Return the target's continuation of ``text``, whose last ``said`` tokens are output.

        It ends at a stop token, at the request's capacity or at the end of the context.
        """
        key = _key(text, said, request)
        if key not in self._answers:
            self._answers[key] = self._decode(text, said, request)
        return self._answers[key]

    @torch.inference_mode()
    def _decode(self, text: tuple[int, ...], said: int, request: Request) -> list[int]:
        copy, sampling = self.copy, request.sampling
        room = min(request.capacity, copy.context_limit or request.capacity) - len(text)
        cache = KVCache(copy.num_layers, len(text) + room + 1)
        # The verifier draws output token t with number t of this stream.
        noise = seeded_generator(request.seed, "verify", torch.device("cpu"))
        uniforms = torch.rand(said + room + 1, generator=noise).to(copy.device)[said:]
        ids = torch.tensor(text, device=copy.device)
        answer: list[int] = []
        while len(answer) < room and not copy.stop_ids.intersection(answer[-1:]):
            alone = Proposal.chain(ids[:0]) if answer else None
            logits = copy.forward(ids, cache, tree=alone, last_only=True)[0][-1]
            if sampling.greedy:
                ids = logits.argmax(-1, keepdim=True)
            else:
                ids = draw(probabilities(logits, sampling), uniforms[len(answer)])[None]
            answer.append(int(ids))
        return answer


def _key(text: tuple[int, ...], said: int, request: Request) -> tuple[object, ...]:
    return text, said, request.sampling, request.seed, request.capacity


class _Foresight(DraftSession):
    def __init__(self, oracle: Oracle, request: Request) -> None:
        self._oracle = oracle
        self._options: OracleOptions = oracle.options
        self._request = request
        self._chance = random.Random(f"{self._options.seed} {request.seed}")
        self._text: tuple[int, ...] = ()
        self._said = 0
        self._ahead: list[int] = []

    def commit(self, commit: Commit) -> None:
        new = commit.tokens
        foreseen = bool(self._text) and tuple(self._ahead[: len(new)]) == new
        self._said += len(new) if self._text else 1
        self._text += new
        # After a near tie the verifier may take the other token; then decode the rest again.
        self._ahead = (
            self._ahead[len(new) :]
            if foreseen
            else self._oracle.answer(self._text, self._said, self._request)
        )

    def propose(self, budget: int) -> Proposal:
        tokens: list[int] = []
        parents: list[int] = []
        parent = -1
        for right in self._ahead[: min(budget, self._options.tokens)]:
            start = len(tokens)
            candidates = self._candidates(right)
            tokens += candidates
            parents += [parent] * len(candidates)
            parent = start + (candidates.index(right) if right in candidates else 0)
        device = self._oracle.copy.device
        return Proposal(
            torch.tensor(tokens, dtype=torch.long, device=device),
            torch.tensor(parents, dtype=torch.long, device=device),
            is_chain=self._options.branches == 1,
        )

    def _candidates(self, right: int) -> list[int]:
        """Pick different tokens, with the right one among them at the set rate."""
        vocabulary = self._oracle.copy.vocab_size
        count = min(self._options.branches, vocabulary - 1)
        others = self._chance.sample(range(1, vocabulary), count)
        candidates = [(right + other) % vocabulary for other in others]
        if self._chance.random() < self._options.rate:
            candidates[self._chance.randrange(count)] = right
        return candidates
