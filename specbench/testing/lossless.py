"""Plain decoding, and the comparison of a drafter's output with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specbench.api import Autoregressive, Drafter, Sampling, Target
from specbench.core.decode import Output, generate

NO_STOPS: frozenset[int] = frozenset()


def plain(
    target: Target,
    prompt: list[int],
    max_new_tokens: int,
    sampling: Sampling | None = None,
    seed: int = 0,
    stop_ids: frozenset[int] = NO_STOPS,
) -> Output:
    """Decode one prompt autoregressively."""
    drafter = Autoregressive()
    drafter.bind(target.view())
    return generate(
        target, drafter, prompt, max_new_tokens, stop_ids=stop_ids, sampling=sampling, seed=seed
    )


def assert_lossless(
    target: Target,
    drafter: Drafter,
    prompts: Sequence[list[int]],
    max_new_tokens: int = 40,
    *,
    sampling: Sampling | None = None,
    seeds: Sequence[int] = (0,),
    stop_ids: frozenset[int] = NO_STOPS,
) -> list[Output]:
    """Assert that a bound drafter's output equals plain decoding with the same seed.

    Returns:
        The drafter's outputs, ordered by prompt and then by seed.

    Raises:
        AssertionError: an output differs in a token or in its finish, or its rounds do not add up.
        ValueError: the drafter's rule keeps the distribution, but not the text.
    """
    if not drafter.rule.same_text and sampling is not None and not sampling.greedy:
        raise ValueError(
            f"the rule of {drafter.name} does not keep the text: test its distribution"
        )
    outputs = []
    for prompt in prompts:
        for seed in seeds:
            settings: dict[str, Any] = {"sampling": sampling, "seed": seed, "stop_ids": stop_ids}
            want = plain(target, prompt, max_new_tokens, **settings)
            got = generate(target, drafter, prompt, max_new_tokens, **settings)
            assert_counts(got, drafter.width)
            where = f"{drafter.name}, prompt of {len(prompt)}, {max_new_tokens} new, seed {seed}"
            assert got.tokens == want.tokens, f"{where}: {_first_difference(want, got)}"
            assert got.finish == want.finish, f"{where}: finish is {got.finish}, not {want.finish}"
            outputs.append(got)
    return outputs


def assert_counts(output: Output, width: int) -> None:
    """Assert that emitted tokens + 1 are the output, and that no round is empty or too wide."""
    emitted = [len(r.tokens) for r in output.rounds]
    assert sum(emitted) + 1 == len(output.tokens), f"{emitted} + 1 != {len(output.tokens)} tokens"
    for index, r in enumerate(output.rounds):
        assert 1 <= len(r.tokens) <= r.accepted + 1, f"round {index} emitted {len(r.tokens)}"
        assert r.accepted <= r.drafted <= width, f"round {index} drafted {r.drafted} of {width}"


def _first_difference(want: Output, got: Output) -> str:
    pairs = zip(want.tokens, got.tokens, strict=False)
    position = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if position is None:
        return f"{len(got.tokens)} tokens instead of {len(want.tokens)}"
    return f"token {position} is {got.tokens[position]} instead of {want.tokens[position]}"
