"""The loop: draft, verify, commit. Only here do target, verifier and drafter meet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from specbench.core.drafter import Drafter, DraftSession, NullProbe, Probe, Request
from specbench.core.proposal import Proposal
from specbench.core.rules import Rule
from specbench.core.sampling import Sampling
from specbench.core.target import Target
from specbench.core.verifier import Verifier


@dataclass(frozen=True, slots=True)
class Round:
    """What one round did.

    Attributes:
        drafted: number of tokens proposed.
        accepted: number of tokens on the kept path, before any cut.
        tokens: the emitted tokens: accepted and bonus, cut at a stop token and at the budget.
    """

    drafted: int
    accepted: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Output:
    """The output tokens of a sequence, its rounds, and why it ended ("stop" or "length")."""

    tokens: tuple[int, ...]
    rounds: tuple[Round, ...]
    finish: str


def cut(
    tokens: tuple[int, ...], budget: int, stop_ids: frozenset[int]
) -> tuple[tuple[int, ...], str | None]:
    """Cut ``tokens`` after the first stop token and at ``budget`` tokens.

    Returns:
        The tokens left, and why the sequence ends with them ("stop", "length") or None.
    """
    tokens = tokens[:budget]
    for index, token in enumerate(tokens):
        if token in stop_ids:
            return tokens[: index + 1], "stop"
    return tokens, "length" if len(tokens) == budget else None


class Decoding:
    """Decodes one sequence: `prefill`, then `rounds` until it ends, then `output`.

    The prefill gives the first output token, which belongs to no round. This token and the
    emitted tokens of all rounds are the output. If it ends the sequence, there are no rounds.

    Args:
        target: the model; ``drafter`` is bound to it.
        prompt: token ids.
        max_new_tokens: the most output tokens; fewer if the target's context is too short.
        sampling: sampling of the output; None is greedy.
        seed: random seed.
        stop_ids: tokens that end the output; None means the target's own.
        rule: acceptance rule; None means the drafter's own.
        depth: the most levels of a proposal; None means no limit but the budget.
        probe: observes the phases "draft", "verify", "accept" and "update".

    Attributes:
        left: number of tokens that may still be emitted.
        finish: why the sequence has ended, or None.

    Raises:
        UserError: the prompt leaves no room for a token in the target's context.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        prompt: list[int],
        max_new_tokens: int,
        *,
        sampling: Sampling | None = None,
        seed: int = 0,
        stop_ids: frozenset[int] | None = None,
        rule: Rule | None = None,
        depth: int | None = None,
        probe: Probe | None = None,
    ) -> None:
        sampling, probe = sampling or Sampling(), probe or NullProbe()
        self._prompt, self._drafter, self._depth, self._probe = prompt, drafter, depth, probe
        self._stop_ids = target.stop_ids if stop_ids is None else stop_ids
        self.left = target.budget(len(prompt), max_new_tokens)
        self.verifier = Verifier(
            target,
            sampling,
            seed,
            len(prompt),
            self.left,
            drafter.width,
            drafter.taps,
            rule or drafter.rule,
            probe,
        )
        self.request = Request(sampling, seed, self.verifier.capacity, probe)
        self.finish: str | None = None
        self._tokens: list[int] = []
        self._rounds: list[Round] = []

    def prefill(self) -> None:
        """Run the prompt and draw the first output token."""
        self._prefilled = self.verifier.prefill(self._prompt)
        self._emit(self._prefilled.tokens[-1:])

    def rounds(self) -> Iterator[Round]:
        """Decode all that follows the prefill, one round per step.

        Raises:
            ValueError: a malformed proposal, or distributions that the drafter's rule ignores.
        """
        if self.finish is None:
            self.open()
        while self.finish is None:
            yield self.judge(self.propose())

    def open(self) -> DraftSession:
        """Open the draft session and tell it the prompt."""
        with self._probe.phase("draft"):
            self._session = self._drafter.open(self.request)
            self._session.commit(self._prefilled)
        return self._session

    def propose(self) -> Proposal:
        """Ask the session for the next proposal."""
        levels = self.left if self._depth is None else min(self.left, self._depth)
        with self._probe.phase("draft"):
            proposal = self._session.propose(levels)
        own = self._drafter.rule
        if proposal.probs is not None and own.same_text:
            raise ValueError(
                f"{self._drafter.name} proposes distributions, which its rule `{own.name}` ignores"
            )
        return proposal

    def judge(self, proposal: Proposal) -> Round:
        """Verify a proposal, emit what is kept, and tell the session."""
        with self._probe.phase("verify"):
            commit = self.verifier.verify(proposal)
        emitted = self._emit(commit.tokens)
        if self.finish is None:
            with self._probe.phase("update"):
                self._session.commit(commit)
        self._rounds.append(Round(len(proposal), commit.accepted, emitted))
        return self._rounds[-1]

    def output(self) -> Output:
        """Return what has been decoded so far."""
        return Output(tuple(self._tokens), tuple(self._rounds), self.finish or "length")

    def run(self) -> Output:
        """Decode the whole sequence."""
        self.prefill()
        for _ in self.rounds():
            pass
        return self.output()

    def _emit(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        emitted, self.finish = cut(tokens, self.left, self._stop_ids)
        self.left -= len(emitted)
        self._tokens += emitted
        return emitted


def generate(
    target: Target, drafter: Drafter, prompt: list[int], max_new_tokens: int, **settings: Any
) -> Output:
    """Decode one sequence with a bound drafter, without measuring; see `Decoding`."""
    return Decoding(target, drafter, prompt, max_new_tokens, **settings).run()
