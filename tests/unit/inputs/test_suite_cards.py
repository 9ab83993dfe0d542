"""The shipped cards against the rows they describe."""

import json
from collections import Counter
from typing import Any

import pytest

from specbench import hub
from specbench.inputs.cards import Card, list_suites
from specbench.inputs.suite import PUBLISHED_MAX_NEW_TOKENS, Suite, load_suite
from tests.helpers.data import DATA, require_rows

CARDS = {card.name: card for card in list_suites()}
BOXED = "\nPlease reason step by step, and put your final answer within \\boxed{}."
CODE = (
    "Complete the following Python function so that it passes its tests. "
    "Answer with the whole function in one Python code block.\n```python\n"
)


def rows_of(card: Card) -> Suite:
    return load_suite(card.name, require_rows(card))


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS.keys())
def test_rows_and_hash_agree_with_the_card(card: Card) -> None:
    suite = rows_of(card)
    assert len(suite.prompts) == card.rows
    assert suite.sha256 == card.sha256


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS.keys())
def test_a_card_is_complete(card: Card) -> None:
    assert "{prompt}" in card.template
    assert len(card.sha256) == 64
    assert (card.embedded is None) == (card.hub is not None) == bool(card.files)
    assert card.max_new_tokens == PUBLISHED_MAX_NEW_TOKENS or card.embedded is not None
    assert (card.fields.id is None) == (card.fields.first is not None)


@pytest.mark.parametrize("name", ["gsm8k", "math-500", "humaneval"])
def test_the_chat_templates(name: str) -> None:
    text = CARDS[name].template
    assert text == (CODE + "{prompt}\n```" if name == "humaneval" else "{prompt}" + BOXED)


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("mt-bench", "81", "160"),
        ("gsm8k", "gsm8k-0", "gsm8k-1318"),
        ("math-500", "test/precalculus/807.json", None),
        ("humaneval", "HumanEval/0", "HumanEval/163"),
    ],
)
def test_sample_ids(name: str, first: str, last: str | None) -> None:
    prompts = rows_of(CARDS[name]).prompts
    assert prompts[0].id == first
    assert last is None or prompts[-1].id == last


def test_mt_bench_has_two_turns_and_its_ids_are_the_publisher_s() -> None:
    suite = rows_of(CARDS["mt-bench"])
    lines = (DATA / "mt_bench_question.jsonl").read_text(encoding="utf-8").splitlines()
    published = [json.loads(line) for line in lines]
    assert [p.id for p in suite.prompts] == [str(row["question_id"]) for row in published]
    assert {len(p.turns) for p in suite.prompts} == {2}
    assert set(Counter(p.category for p in suite.prompts).values()) == {10}


def test_mt_bench_rows_from_the_hub_are_the_same_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's copy says prompt for turns, has an id of its own, and fills in references."""
    import datasets
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    local = rows_of(CARDS["mt-bench"])
    lines = (DATA / "mt_bench_question.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [
        {
            "prompt": row["turns"],
            "prompt_id": 99 - number,
            "category": row["category"],
            "reference": row.get("reference", []),
        }
        for number, row in enumerate(map(json.loads, lines))
    ]

    def not_cached(*args: Any, **options: Any) -> str:
        raise LocalEntryNotFoundError("not cached")

    monkeypatch.delenv("SPECBENCH_DATA", raising=False)
    monkeypatch.setattr(hub, "outage", lambda: None)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", not_cached)
    monkeypatch.setattr(
        datasets, "load_dataset", lambda *args, **options: datasets.Dataset.from_list(rows)
    )
    assert load_suite("mt-bench") == local


def test_smoke_has_six_prompts_of_each_kind() -> None:
    suite = load_suite("smoke")
    kinds = Counter(prompt.category for prompt in suite.prompts)
    assert kinds == {"chat": 6, "word-problem": 6, "maths": 6, "code": 6}
    for prompt in suite.prompts:
        assert len(prompt.turns) == (2 if prompt.category == "chat" else 1)
        text = prompt.turns[0]
        if prompt.category == "code":
            assert text.startswith(CODE)
            compile(text.removeprefix(CODE).removesuffix("\n```"), prompt.id, "exec")
        elif prompt.category != "chat":
            assert text.endswith(BOXED)
