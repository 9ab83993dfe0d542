"""DiffuSpec on the embedded models: no option changes the output, and the scorer fits."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from drafters.diffuspec.draft import DiffuSpec
from drafters.diffuspec.ngram import ScorerFacts
from drafters.diffuspec.options import STOP_RULES, DiffuSpecOptions
from drafters.diffuspec.scorer import load_scorer
from specbench.api import Target
from specbench.core.decode import Output, generate
from specbench.inputs import chat
from specbench.inputs.pairs import find_pair
from specbench.inputs.suite import load_suite, subset
from specbench.testing import plain
from specbench.training.corpus.formats import sha256_of
from specbench.zoo import resolve

TOKENS = 24
SWITCHES: dict[str, dict[str, Any]] = {
    "default": {},
    "no search": {"search": False},
    "fixed length": {"adaptive": False, "tokens": 12},
    "two steps": {"steps": 2},
    "causal prefix": {"cache": "prefix_causal"},
    "causal LM": {"scorer": "tiny-draft-lm", "k_min": 4, "k_max": 8},
    **{rule: {"stop_rule": rule} for rule in STOP_RULES if rule != "first-raw"},
}


@cache
def target() -> Target:
    return Target.load(resolve("tiny-target"))


@cache
def prompts() -> list[list[int]]:
    chosen = subset(load_suite("smoke"), 2).prompts
    messages = ([{"role": "user", "content": prompt.turns[0]}] for prompt in chosen)
    return [chat.encode(target().tokenizer, one, "off") for one in messages]


@cache
def expected() -> list[Output]:
    return [plain(target(), ids, TOKENS, stop_ids=target().stop_ids) for ids in prompts()]


@pytest.mark.parametrize("switch", SWITCHES)
def test_greedy_output_is_autoregressive_output(switch: str) -> None:
    pair = find_pair("diffuspec", "tiny-target")
    assert pair is not None
    drafter = DiffuSpec(DiffuSpecOptions(model=resolve(pair.draft), **SWITCHES[switch]))
    drafter.bind(target().view())
    outputs = [generate(target(), drafter, ids, TOKENS) for ids in prompts()]
    assert [output.tokens for output in outputs] == [output.tokens for output in expected()]
    accepted = sum(r.accepted for output in outputs for r in output.rounds)
    # The literal rule drafts little but stop tokens; it exists to show that.
    assert accepted > 0 or switch == "literal"


def test_the_embedded_scorer_agrees_with_its_card() -> None:
    folder = Path(resolve("tiny-ngram"))
    card = json.loads((folder / "card.json").read_text())
    facts = ScorerFacts.read(folder)
    assert load_scorer(None, target().view()).kind == "3-gram"
    assert card["sha256"] == {
        name: sha256_of(folder / name) for name in (facts.file, "scorer.json")
    }
