"""The loop: draft, verify, commit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from specbench.core.drafter import Commit, Drafter, Request
from specbench.core.sampling import Sampling
from specbench.core.target import Target
from specbench.core.verifier import Verifier


@dataclass(frozen=True, slots=True)
class Round:
    """One round as it happened.

    Attributes:
        drafted: tokens proposed.
        accepted: tokens of the kept path, before any cut.
        tokens: the emitted tokens: accepted and bonus, cut at a stop token and at the budget.
        finish: why the sequence ends here ("stop" or "length"), or None.
    """

    drafted: int
    accepted: int
    tokens: tuple[int, ...]
    finish: str | None


def cut(
    tokens: tuple[int, ...], budget: int, stop_ids: frozenset[int]
) -> tuple[tuple[int, ...], str | None]:
    """Tokens up to and including the first stop token, at most ``budget``; and the reason."""
    tokens = tokens[:budget]
    for index, token in enumerate(tokens):
        if token in stop_ids:
            return tokens[: index + 1], "stop"
    return tokens, "length" if len(tokens) == budget else None


def rounds(
    verifier: Verifier,
    drafter: Drafter,
    prompt: Commit,
    max_new_tokens: int,
    stop_ids: frozenset[int],
    request: Request,
) -> Iterator[Round]:
    """Everything after the prefill, one round at a time.

    ``prompt`` is the prefill's commit; its last token is the first output token, which belongs
    to no round: the emitted tokens of all rounds and that one are the output. Nothing is
    yielded when the first token already ends the sequence.

    Raises:
        ValueError: a malformed proposal, or distributions from a drafter that announces none.
    """
    probe = request.probe
    left = max_new_tokens - 1
    if cut(prompt.tokens[-1:], max_new_tokens, stop_ids)[1]:
        return
    with probe.phase("draft"):
        session = drafter.open(request)
        session.commit(prompt)
    finish = None
    while finish is None:
        with probe.phase("draft"):
            proposal = session.propose(left)
        if proposal.probs is not None and drafter.rule == "walk":
            raise ValueError(f"{drafter.name} hands over distributions, which `walk` ignores")
        with probe.phase("verify"):
            commit = verifier.verify(proposal)
        tokens, finish = cut(commit.tokens, left, stop_ids)
        left -= len(tokens)
        if finish is None:
            with probe.phase("update"):
                session.commit(commit)
        yield Round(len(proposal), commit.accepted, tokens, finish)


@dataclass(frozen=True, slots=True)
class Output:
    """A finished sequence: output tokens, its rounds, and why it ended."""

    tokens: tuple[int, ...]
    rounds: tuple[Round, ...]
    finish: str


def generate(
    target: Target,
    drafter: Drafter,
    prompt: list[int],
    max_new_tokens: int,
    *,
    stop_ids: frozenset[int] | None = None,
    sampling: Sampling | None = None,
    seed: int = 0,
) -> Output:
    """Decode one sequence with a bound drafter, without any measuring.

    Raises:
        UserError: the prompt leaves no room for a token in the target's context.
    """
    sampling = sampling or Sampling()
    stops = target.stop_ids if stop_ids is None else stop_ids
    budget = target.budget(len(prompt), max_new_tokens)
    verifier = Verifier(
        target, sampling, seed, len(prompt), budget, drafter.width, drafter.taps, drafter.rule
    )
    first = verifier.prefill(prompt)
    request = Request(sampling, seed, verifier.capacity)
    done = tuple(rounds(verifier, drafter, first, budget, stops, request))
    opening, finish = cut(first.tokens[-1:], budget, stops)
    if done:
        finish = done[-1].finish
    tokens = opening + tuple(token for r in done for token in r.tokens)
    return Output(tokens, done, finish or "length")
