"""Make runs that differ by a known amount, and findings about them, for tests of the check."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from specbench.records.records import Cell, ModelId, Sample, Verdict
from specbench.regression.check import Finding
from specbench.stats.bootstrap import Array, estimates
from specbench.stats.exact import MOST_PROMPTS, swap_test
from tests.helpers.run_records import BASELINE, write

PROMPTS = tuple(f"p{i}" for i in range(64))
AR = replace(
    BASELINE, target=ModelId("tiny", sha256="1" * 64), sample_ids=PROMPTS, max_new_tokens=128
)
DRAFT = replace(
    AR, drafter="dflash", role="method", options={"block_size": 8}, width=7, rule="walk"
)
MACHINE = {"cpu": "one", "threads": 1}


def make_run(
    folder: Path,
    *,
    draft: Cell = DRAFT,
    rate: float = 0.7,
    cost: float = 1.0,
    seed: int = 0,
    noise: float = 0.02,
    kind: str = "identical",
    machine: dict[str, Any] = MACHINE,
    prompts: int = 64,
) -> Path:
    """Write a run whose rounds accept each of 7 tokens with ``rate`` times the prompt's ease.

    The ease of a prompt is the same in every run. The clock has relative ``noise``, which differs
    between runs.
    """
    ease = np.random.default_rng(7).uniform(0.85, 1.1, 64)
    luck = np.random.default_rng(11).random((64, 20, 7))
    clock = np.random.default_rng(seed)
    samples = []
    for index, prompt in enumerate(PROMPTS[:prompts]):
        accepted = (luck[index] < rate * ease[index]).cumprod(1).sum(1)
        rounds = tuple((7, int(a), int(a) + 1) for a in accepted)
        emitted = sum(r[2] for r in rounds)
        output = tuple(range(emitted + 1))
        for cell, seconds, r in (
            (AR, 0.01 * emitted, ((0, 0, 1),) * emitted),
            (draft, 0.015 * cost * len(rounds), rounds),
        ):
            jitter = float(np.exp(noise * clock.standard_normal()))
            verdict = None if cell is AR else Verdict(kind)
            samples.append(
                Sample(cell.id, prompt, 1, "ok", 9, output, "length", r, 0.1, seconds * jitter,
                       verdict=verdict)
            )  # fmt: skip
    return write(folder, (AR, draft), samples, **machine)


TRUE, WORSE = 0.7, 0.678
"""Probability that a drafted token is right; AAL is 5 % lower with WORSE."""


def compared(rng: np.random.Generator, rate: float, prompts: int = 64) -> Finding:
    """Compare the AAL of two drafts on prompts of 40 rounds; one has the acceptance ``rate``.

    The ease of a prompt is common to both drafts; one fifth of their tokens is independent.
    """
    ease = rng.uniform(0.85, 1.1, prompts)[:, None, None]
    luck = rng.random((prompts, 40, 7))
    fresh = np.where(rng.random(luck.shape) < 0.2, rng.random(luck.shape), luck)
    rounds = np.full(prompts, 40.0)
    base, worse = (
        (drawn < chance * ease).cumprod(2).sum((1, 2)) + rounds
        for drawn, chance in ((luck, TRUE), (fresh, rate))
    )
    return finding(np.column_stack([worse, rounds]), np.column_stack([base, rounds]))


def timed(rng: np.random.Generator, slower: float, prompts: int, noise: float = 0.08) -> Finding:
    """Compare the speed of two runs with a noisy clock; one is ``slower`` by a factor."""
    tokens = np.exp(rng.normal(5, 0.7, prompts)).round()
    after, before = (
        np.column_stack([tokens, factor * tokens * np.exp(rng.normal(0, noise, prompts))])
        for factor in (slower, 1.0)
    )
    return finding(after, before)


def finding(after: Array, before: Array) -> Finding:
    """Make the finding about the ratio of two columns in two runs, without a verdict."""

    def figure(sums: Array) -> Array:
        return sums[..., :1] / sums[..., 1:]

    [ratio] = estimates(
        np.hstack([after, before]), lambda sums: figure(sums[..., :2]) / figure(sums[..., 2:])
    )
    exact = swap_test(after, before, figure) if len(after) <= MOST_PROMPTS else None
    return Finding("AAL", "dflash", "smoke", "fine", "", ratio=ratio, exact=exact, tolerance=0.0)
