"""Every drafter on the embedded models and real suites: greedy output is the target's own."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import pytest

from specbench.api import Drafter, Sampling, Target
from specbench.core.decode import Output, generate
from specbench.errors import UserError
from specbench.inputs import chat
from specbench.inputs.cards import list_suites
from specbench.inputs.plan import TINY_TARGET, plan_arms
from specbench.inputs.registry import make_drafter, make_options, registered
from specbench.inputs.suite import load_suite, subset
from specbench.testing import assert_counts, plain
from tests.helpers.data import require_rows
from tests.helpers.eagle1_head import write_eagle1_head

SUITES = {card.name: card for card in list_suites()}
PROMPTS, TOKENS = 6, 32
# No head for these drafters is embedded, so one is made from the target.
MADE_HERE = ("eagle1", "eagle2")
OURS = [r.name for r in registered() if r.package.startswith("drafters.")]


@cache
def target() -> Target:
    return Target.load(TINY_TARGET)


@cache
def drafter(name: str) -> Drafter:
    if name in MADE_HERE:
        return with_a_head_made_here(name)
    try:
        made = plan_arms((name,), TINY_TARGET, None, ())[0].make()
    except UserError as error:
        pytest.skip(f"no embedded draft: {error}")
    made.bind(target().view())
    return made


def with_a_head_made_here(name: str) -> Drafter:
    texts = [
        [*ids, *answer.tokens]
        for ids, answer in zip(prompts("smoke"), expected("smoke", 0.0), strict=True)
    ]
    with tempfile.TemporaryDirectory() as folder:
        write_eagle1_head(target(), texts, Path(folder))
        made = make_drafter(name, make_options(name, {"model": folder}))
        made.bind(target().view())
    return made


@cache
def prompts(suite: str) -> list[list[int]]:
    """Encode the first turns of the suite's first prompts, in its fixed order."""
    data_dir = require_rows(SUITES[suite])
    chosen = subset(load_suite(suite, data_dir), PROMPTS).prompts
    return [
        chat.encode(target().tokenizer, [{"role": "user", "content": p.turns[0]}], "off")
        for p in chosen
    ]


@cache
def expected(suite: str, temperature: float) -> list[Output]:
    sampling = Sampling(temperature)
    return [
        plain(target(), ids, TOKENS, sampling, seed, target().stop_ids)
        for seed, ids in enumerate(prompts(suite))
    ]


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("name", OURS)
def test_greedy_output_is_autoregressive_output(name: str, suite: str) -> None:
    for ids, want in zip(prompts(suite), expected(suite, 0.0), strict=True):
        got = generate(target(), drafter(name), ids, TOKENS)
        assert_counts(got, drafter(name).width)
        assert (got.tokens, got.finish) == (want.tokens, want.finish)


@pytest.mark.parametrize("name", MADE_HERE)
def test_drafts_of_heads_made_here_are_sometimes_accepted(name: str) -> None:
    """Otherwise the tests of their output would prove nothing."""
    runs = [generate(target(), drafter(name), ids, TOKENS) for ids in prompts("smoke")]
    assert sum(r.accepted for run in runs for r in run.rounds) > 0


@pytest.mark.parametrize("temperature", [0.6, 1.0])
@pytest.mark.parametrize("name", OURS)
def test_one_hot_drafts_give_the_text_of_plain_sampling(name: str, temperature: float) -> None:
    if not drafter(name).rule.same_text:
        pytest.skip(f"{name} draws its drafts: its distribution is tested, not its text")
    for seed, (ids, want) in enumerate(
        zip(prompts("smoke"), expected("smoke", temperature), strict=True)
    ):
        got = generate(
            target(), drafter(name), ids, TOKENS, sampling=Sampling(temperature), seed=seed
        )
        assert got.tokens == want.tokens
