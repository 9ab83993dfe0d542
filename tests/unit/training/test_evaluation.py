"""Evaluation prompts are refused as training text, by hashes alone."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from specbench.errors import UserError
from specbench.inputs.suite import load_suite
from specbench.training.corpus.data import load_corpus
from specbench.training.corpus.evaluation import (
    HEAD,
    REGENERATE,
    TABLE,
    EvaluationCard,
    asked_by,
    card_hashes,
    fingerprint_of,
    known_prompts,
    training_chats,
    without_evaluation,
    words_of,
    write_table,
)
from specbench.training.corpus.formats import Chat, read_chats, sha256_of
from specbench.training.corpus.tokenizer import tokenizer_of
from specbench.training.embedded.repetition import load_answers
from specbench.training.embedded.responses import select_prompts
from specbench.training.embedded.target import prepare
from specbench.training.settings import ResponseSettings
from tests.helpers.data import DATA

SMOKE = [turn for prompt in load_suite("smoke").prompts for turn in prompt.turns]
LONG = next(turn for turn in SMOKE if len(words_of(turn)) >= HEAD)
SHORT = next(turn for turn in SMOKE if len(words_of(turn)) < HEAD)
MINE = [f"Question {number} of mine?" for number in range(99)]


def chat(question: str, answer: str = "An answer.") -> Chat:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def written(path: Path, questions: list[str]) -> Path:
    rows = ({"messages": chat(question, f"answer {i}")} for i, question in enumerate(questions))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("prompt", SMOKE)
def test_every_prompt_of_an_embedded_suite_is_known(prompt: str) -> None:
    assert asked_by(chat(prompt)) == "smoke"


def test_a_quoted_prompt_is_found_in_other_dress() -> None:
    dressed = f"Here is a task.\n\n{LONG.upper().replace(' ', '   ')}\n\nThink it over!"
    assert asked_by(chat(dressed)) == "smoke"
    assert asked_by(chat("Write me a task.", dressed)) == "smoke"


def test_a_short_prompt_counts_as_a_whole_message_only() -> None:
    assert asked_by(chat(f"{SHORT.upper()}!!")) == "smoke"
    assert asked_by(chat(f"My cousin asked: {SHORT}")) is None


def test_a_changed_prompt_is_another_one() -> None:
    words = LONG.split()
    assert asked_by(chat(" ".join(words[:-1]))) is None
    assert asked_by(chat(" ".join([*words[:5], "purple", *words[5:]]))) is None
    assert asked_by(chat("")) is None


def test_the_table_holds_no_text(tmp_path: Path) -> None:
    write_table({"one": ["Say purple monkeys."]}, {"one": "12ab"}, tmp_path / "table.json")
    one = fingerprint_of(["say", "purple", "monkeys"])
    assert re.fullmatch("[0-9a-f]{8}:3:[0-9a-f]{12}", one)
    want = {"one": {"card": "12ab", "prompts": one}}
    assert json.loads((tmp_path / "table.json").read_text()) == want


def test_strays_are_dropped_and_counted(tmp_path: Path) -> None:
    file = written(tmp_path / "mine.jsonl", [*MINE, LONG])
    clean = load_corpus([str(file)], [], seed=0)
    assert len(clean.train) + len(clean.held_out) == 99
    assert LONG not in "".join(document.text for document in clean.train + clean.held_out)
    (facts,) = clean.files
    assert (facts.train, facts.held_out) == (len(clean.train), len(clean.held_out))
    assert facts.excluded == 1
    chats = training_chats(file)
    assert chats == list(read_chats(file))[:-1]
    assert without_evaluation("mine", chats) == chats


def test_an_evaluation_set_is_refused_by_name(tmp_path: Path) -> None:
    mine = written(tmp_path / "mine.jsonl", [f"Question {number}?" for number in range(2000)])
    suite = written(tmp_path / "suite.jsonl", [*SMOKE[:5], "Another one of mine?"])
    with pytest.raises(UserError, match=r"suite\.jsonl .*5 of smoke, in 6 chats"):
        load_corpus([str(mine), str(suite)], [], seed=0)


def test_a_target_learns_from_no_evaluation_prompt(tmp_path: Path) -> None:
    tokenizer = "tiny-target"
    file = written(tmp_path / "mine.jsonl", [*MINE, LONG])
    corpus, _ = prepare([str(file)], [], 300, tokenizer, seed=0)
    assert [facts.excluded for facts in corpus.files] == [1]
    assert LONG not in "".join(document.text for document in corpus.train + corpus.held_out)
    suite = written(tmp_path / "suite.jsonl", [*SMOKE[:5], "Another one of mine?"])
    with pytest.raises(UserError, match=r"suite\.jsonl .*5 of smoke, in 6 chats"):
        prepare([str(file), str(suite)], [], 300, tokenizer, seed=0)


def test_no_answer_is_written_to_an_evaluation_prompt(tmp_path: Path) -> None:
    file = written(tmp_path / "mine.jsonl", [*MINE, LONG])
    prompts = select_prompts([str(file)], ResponseSettings())
    assert sorted(prompt[-1]["content"] for prompt in prompts) == sorted(MINE)
    suite = written(tmp_path / "suite.jsonl", [*SMOKE[:5], "Another one of mine?"])
    with pytest.raises(UserError, match=r"suite\.jsonl .*5 of smoke, in 6 chats"):
        select_prompts([str(suite)], ResponseSettings())


def test_answers_to_an_evaluation_prompt_are_not_unlearned_either(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("tiny-target")
    file = written(tmp_path / "answers.jsonl", [*MINE, LONG])
    assert len(load_answers(tokenizer, file)) == 99
    suite = written(tmp_path / "suite.jsonl", [*SMOKE[:5], "Another one of mine?"])
    with pytest.raises(UserError, match=r"suite\.jsonl .*5 of smoke, in 6 chats"):
        load_answers(tokenizer, suite)


def test_the_table_knows_every_card_as_it_is() -> None:
    table = json.loads(TABLE.read_text())
    known = {name: entry["card"] for name, entry in table.items()}
    assert known == card_hashes(), f"the cards have changed: run `{REGENERATE}`"
    assert {"smoke", "mbpp"} < known.keys()
    assert all(entry["prompts"] for entry in table.values())


def test_a_set_s_rows_outside_its_test_split_may_be_learned(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text("".join(f'{{"id": {i}, "text": "task {i}"}}\n' for i in range(6)))
    only = {"field": "id", "first": 2, "last": 3}
    card = EvaluationCard("mine", "", "", file.name, sha256_of(file), "text", only)
    assert card.prompts(tmp_path) == ["task 2", "task 3"]
    with pytest.raises(UserError, match="not the file that the card of 'mine' describes"):
        replace(card, sha256="0").prompts(tmp_path)


@pytest.mark.skipif(not (DATA / "gsm8k_test.jsonl").is_file(), reason="no evaluation files")
def test_the_table_is_made_of_the_evaluation_files(tmp_path: Path) -> None:
    prompts = known_prompts(DATA)
    write_table(prompts, card_hashes(), tmp_path / "table.json")
    assert (tmp_path / "table.json").read_text() == TABLE.read_text()
    texts = [text for texts in prompts.values() for text in texts if words_of(text)]
    assert [text for text in texts[::20] if asked_by(chat(text)) is None] == []
