"""The checks that every drafter must pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from specbench.api import Drafter, KVCache, Proposal, Request, Sampling, Target
from specbench.core.decode import generate
from specbench.core.verifier import SAME_TEXT, Verifier
from specbench.testing.lossless import assert_counts, assert_lossless, plain
from specbench.testing.models import random_prompts

BUDGETS = (1, 2, 3, 7, 40)


Check = Callable[[Target, Callable[[], Drafter]], None]


def _bound(target: Target, make: Callable[[], Drafter]) -> Drafter:
    drafter = make()
    drafter.bind(target.view())
    return drafter


def lossless_when_greedy(target: Target, make: Callable[[], Drafter]) -> None:
    """Greedy output is the target's own at every budget, also below the draft's length."""
    drafter = _bound(target, make)
    for budget in BUDGETS:
        assert_lossless(target, drafter, random_prompts(target.vocab_size), budget)


def lossless_when_sampling(target: Target, make: Callable[[], Drafter]) -> None:
    """One-hot drafts: the same seed gives the text of plain sampling. Drawn drafts: the rounds
    add up (their law is tested where the rule is)."""
    drafter = _bound(target, make)
    (prompt,) = random_prompts(target.vocab_size, (11,))
    for temperature in (0.6, 1.0):
        sampling = Sampling(temperature, top_k=20, top_p=0.95)
        if drafter.rule not in SAME_TEXT:
            assert_counts(generate(target, drafter, prompt, 24, sampling=sampling), drafter.width)
        else:
            assert_lossless(target, drafter, [prompt], 24, sampling=sampling, seeds=(0, 1))


def stops_inside_a_block(target: Target, make: Callable[[], Drafter]) -> None:
    """A stop token ends the output wherever it falls, as the first token too."""
    drafter = _bound(target, make)
    (prompt,) = random_prompts(target.vocab_size, (9,))
    text = plain(target, prompt, 12).tokens
    for place in (0, 1, 2, 5, 11):
        stops = frozenset({text[place], target.vocab_size - 1})
        (output,) = assert_lossless(target, drafter, [prompt], 24, stop_ids=stops)
        assert output.finish == "stop"
        assert output.tokens[-1] in stops


def stops_at_the_context_limit(target: Target, make: Callable[[], Drafter]) -> None:
    """The output ends where the target's context does."""
    if target.context_limit is None or target.context_limit > 1024:
        return
    drafter = _bound(target, make)
    prompts = random_prompts(target.vocab_size, (target.context_limit - 6,))
    (output,) = assert_lossless(target, drafter, prompts, 40)
    assert len(output.tokens) == 6


class _Drive:
    """One sequence, round by round, for looking at its session in between."""

    def __init__(
        self, target: Target, drafter: Drafter, prompt: list[int], budget: int, seed: int = 0
    ) -> None:
        sampling = Sampling() if drafter.rule == "walk" else Sampling(1.0)
        self.verifier = Verifier(
            target, sampling, seed, len(prompt), budget, drafter.width, drafter.taps, drafter.rule
        )
        self.session = drafter.open(Request(sampling, seed, self.verifier.capacity))
        commit = self.verifier.prefill(prompt)
        self.left = budget - 1
        self.text = list(commit.tokens[-1:])
        self.session.commit(commit)

    def round(self) -> None:
        self.judge(self.propose())

    def propose(self) -> Proposal:
        return self.session.propose(self.left)

    def judge(self, proposal: Proposal) -> None:
        commit = self.verifier.verify(proposal)
        self.text += commit.tokens[: self.left]
        self.left -= len(commit.tokens)
        if self.left > 0:
            self.session.commit(commit)


def proposals_fit(target: Target, make: Callable[[], Drafter]) -> None:
    """Proposals are well-formed, on the target's device, no deeper than the budget and no wider
    than announced."""
    drafter = _bound(target, make)
    (prompt,) = random_prompts(target.vocab_size, (13,))
    for budget in BUDGETS[1:]:
        drive = _Drive(target, drafter, prompt, budget)
        while drive.left > 0:
            left = drive.left
            proposal = drive.propose()
            assert proposal.tokens.dtype == proposal.parents.dtype == torch.long
            assert proposal.tokens.device.type == target.device.type
            assert len(proposal) <= drafter.width, f"{len(proposal)} tokens, {drafter.width=}"
            deepest = int(proposal.depths.max())
            assert deepest <= left, f"{deepest} levels with a budget of {left}"
            assert bool(proposal.is_wellformed(target.vocab_size))
            drive.judge(proposal)


def sessions_are_independent(target: Target, make: Callable[[], Drafter]) -> None:
    """Two sequences in turn, a round each, say what each says alone."""
    drafter = _bound(target, make)
    prompts = random_prompts(target.vocab_size)
    alone = _Drive(target, drafter, prompts[0], 24)
    while alone.left > 0:
        alone.round()
    both = [_Drive(target, drafter, prompt, 24) for prompt in prompts]
    while any(drive.left > 0 for drive in both):
        for drive in both:
            if drive.left > 0:
                drive.round()
    assert both[0].text == alone.text, "a second open sequence changes the first one"


def same_seed_same_rounds(target: Target, make: Callable[[], Drafter]) -> None:
    """Two drafters made alike repeat each other and leave the global generator alone."""
    sampling = Sampling(1.0)
    prompt = random_prompts(target.vocab_size)[0]
    first, second = (
        generate(target, _bound(target, make), prompt, 24, sampling=sampling, seed=7)
        for _ in range(2)
    )
    assert first == second, "the same seed gave other rounds"
    state = torch.random.get_rng_state()
    generate(target, _bound(target, make), prompt, 24, sampling=sampling, seed=8)
    assert torch.equal(state, torch.random.get_rng_state()), "it draws from the global generator"


def caches_stay_in_place(target: Target, make: Callable[[], Drafter]) -> None:
    """A session's caches keep their buffers and hold no more than the request's capacity."""
    drafter = _bound(target, make)
    drive = _Drive(target, drafter, random_prompts(target.vocab_size)[0], 40)
    drive.round()
    places = [_buffers(cache) for cache in _caches(drive.session)]
    while drive.left > 0:
        drive.round()
        for cache in _caches(drive.session):
            assert cache.length <= drive.verifier.capacity
        assert [_buffers(cache) for cache in _caches(drive.session)] == places, "a buffer moved"


def _caches(owner: object) -> Iterator[KVCache]:
    for value in vars(owner).values():
        if isinstance(value, KVCache):
            yield value


def _buffers(cache: KVCache) -> list[int]:
    return [buffer.data_ptr() for layer in cache.layers for buffer in (layer.keys, layer.values)]


CONTRACT: tuple[Check, ...] = (
    lossless_when_greedy,
    lossless_when_sampling,
    stops_inside_a_block,
    stops_at_the_context_limit,
    proposals_fit,
    sessions_are_independent,
    same_seed_same_rounds,
    caches_stay_in_place,
)
