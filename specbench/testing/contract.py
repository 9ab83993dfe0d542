"""The checks that every drafter must pass."""

from __future__ import annotations

from collections.abc import Callable

import torch

from specbench.api import WALK, Drafter, DraftSession, Sampling, Target
from specbench.core.decode import Decoding, generate
from specbench.drafting.options import ModelOptions
from specbench.testing.lossless import NO_STOPS, assert_counts, assert_lossless, plain
from specbench.testing.models import random_prompts

BUDGETS = (1, 2, 3, 7, 40)


Check = Callable[[Target, Callable[[], Drafter]], None]


def _bound(target: Target, make: Callable[[], Drafter]) -> Drafter:
    drafter = make()
    drafter.bind(target.view())
    return drafter


def lossless_when_greedy(target: Target, make: Callable[[], Drafter]) -> None:
    """Check that greedy output is the target's own, also at budgets below the draft length."""
    drafter = _bound(target, make)
    for budget in BUDGETS:
        assert_lossless(target, drafter, random_prompts(target.vocab_size), budget)


def lossless_when_sampling(target: Target, make: Callable[[], Drafter]) -> None:
    """Check that sampled output equals plain sampling with the same seed.

    For a rule that keeps the distribution but not the text, check only that the rounds add up.
    """
    drafter = _bound(target, make)
    (prompt,) = random_prompts(target.vocab_size, (11,))
    for temperature in (0.6, 1.0):
        sampling = Sampling(temperature, top_k=20, top_p=0.95)
        if not drafter.rule.same_text:
            assert_counts(generate(target, drafter, prompt, 24, sampling=sampling), drafter.width)
        else:
            assert_lossless(target, drafter, [prompt], 24, sampling=sampling, seeds=(0, 1))


def stops_inside_a_block(target: Target, make: Callable[[], Drafter]) -> None:
    """Check that a stop token ends the output at any position, the first included."""
    drafter = _bound(target, make)
    (prompt,) = random_prompts(target.vocab_size, (9,))
    text = plain(target, prompt, 12).tokens
    for position in (0, 1, 2, 5, 11):
        stops = frozenset({text[position], target.vocab_size - 1})
        (output,) = assert_lossless(target, drafter, [prompt], 24, stop_ids=stops)
        assert output.finish == "stop"
        assert output.tokens[-1] in stops


def stops_at_the_context_limit(target: Target, make: Callable[[], Drafter]) -> None:
    """Check that the output ends at the target's context limit."""
    if target.context_limit is None or target.context_limit > 1024:
        return
    drafter = _bound(target, make)
    prompts = random_prompts(target.vocab_size, (target.context_limit - 6,))
    (output,) = assert_lossless(target, drafter, prompts, 40)
    assert len(output.tokens) == 6


def _open(
    target: Target, drafter: Drafter, prompt: list[int], budget: int
) -> tuple[Decoding, DraftSession]:
    """Return a decoding after its prefill, with its open session."""
    sampling = Sampling() if drafter.rule is WALK else Sampling(1.0)
    decoding = Decoding(target, drafter, prompt, budget, sampling=sampling, stop_ids=NO_STOPS)
    decoding.prefill()
    return decoding, decoding.open()


def _round(decoding: Decoding) -> None:
    decoding.judge(decoding.propose())


def proposals_fit(target: Target, make: Callable[[], Drafter]) -> None:
    """Check that proposals are well-formed and on the target's device.

    They must be no deeper than the budget and no wider than the drafter's ``width``.
    """
    drafter = _bound(target, make)
    (prompt,) = random_prompts(target.vocab_size, (13,))
    for budget in BUDGETS[1:]:
        decoding, _ = _open(target, drafter, prompt, budget)
        while decoding.finish is None:
            proposal = decoding.propose()
            assert proposal.tokens.dtype == proposal.parents.dtype == torch.long
            assert proposal.tokens.device.type == target.device.type
            assert len(proposal) <= drafter.width, f"{len(proposal)} tokens, {drafter.width=}"
            deepest = int(proposal.depths.max())
            assert deepest <= decoding.left, f"{deepest} levels with a budget of {decoding.left}"
            assert bool(proposal.is_wellformed(target.vocab_size))
            decoding.judge(proposal)


def sessions_are_independent(target: Target, make: Callable[[], Drafter]) -> None:
    """Check that two sequences with alternating rounds give what each gives alone."""
    drafter = _bound(target, make)
    prompts = random_prompts(target.vocab_size)
    alone, _ = _open(target, drafter, prompts[0], 24)
    while alone.finish is None:
        _round(alone)
    both = [_open(target, drafter, prompt, 24)[0] for prompt in prompts]
    while any(decoding.finish is None for decoding in both):
        for decoding in both:
            if decoding.finish is None:
                _round(decoding)
    assert both[0].output() == alone.output(), "a second open sequence changes the first one"


def same_seed_same_rounds(target: Target, make: Callable[[], Drafter]) -> None:
    """Check that equal seeds give equal rounds, and that the global generator is not used."""
    sampling = Sampling(1.0)
    prompt = random_prompts(target.vocab_size)[0]
    first, second = (
        generate(target, _bound(target, make), prompt, 24, sampling=sampling, seed=7)
        for _ in range(2)
    )
    assert first == second, "the same seed gives different rounds"
    state = torch.random.get_rng_state()
    generate(target, _bound(target, make), prompt, 24, sampling=sampling, seed=8)
    assert torch.equal(state, torch.random.get_rng_state()), "it draws from the global generator"


def buffers_stay_in_place(target: Target, make: Callable[[], Drafter]) -> None:
    """Check that a session's buffers stay in place, so that no round copies the history.

    A drafter that loads a model must name at least one buffer.
    """
    drafter = _bound(target, make)
    decoding, session = _open(target, drafter, random_prompts(target.vocab_size)[0], 40)
    _round(decoding)
    addresses = [buffer.data_ptr() for buffer in session.buffers()]
    assert addresses or not isinstance(drafter.options, ModelOptions), (
        f"{drafter.name} loads a model, but its session names no buffers"
    )
    while decoding.finish is None:
        _round(decoding)
        now = [buffer.data_ptr() for buffer in session.buffers()]
        assert now == addresses, "a buffer moved or was added"


CONTRACT: tuple[Check, ...] = (
    lossless_when_greedy,
    lossless_when_sampling,
    stops_inside_a_block,
    stops_at_the_context_limit,
    proposals_fit,
    sessions_are_independent,
    same_seed_same_rounds,
    buffers_stay_in_place,
)
