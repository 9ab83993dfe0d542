"""Unlikelihood of repetition."""

import json

import numpy as np
import pytest
import torch

from specbench.stats.metrics import repeated_4grams
from specbench.training.corpus.batches import PackedBatches
from specbench.training.corpus.tokenizer import Encoded
from specbench.training.embedded.repetition import (
    WithAnswers,
    load_answers,
    repeated,
    unlikelihood,
)
from specbench.training.embedded.target import prepare, train_target
from specbench.training.settings import TargetShape, TrainSettings

SHAPE = TargetShape(hidden=16, layers=2, heads=1, kv_heads=1, head_dim=16, intermediate=24)


def test_a_token_is_repeated_when_its_run_was_there_before():
    marks = repeated([1, 2, 3, 9, 1, 2, 3, 4, 2, 3, 4], run=3)
    assert marks.tolist() == [False] * 6 + [True] + [False] * 3 + [True]
    answer = [1, 2, 3, 4, 1, 2, 3, 4, 1]
    assert (repeated(answer).sum(), 6) == repeated_4grams(answer) == (2, 6)
    assert (repeated([1, 2, 3]).sum(), 0) == repeated_4grams([1, 2, 3]) == (0, 0)


def test_unlikelihood_is_large_for_likely_marked_tokens_only():
    logits = torch.zeros(1, 3, 5)
    logits[0, 0, 2] = 20.0
    tokens = torch.tensor([[1, 2, 3, 4]])
    first, last = torch.zeros(1, 4, dtype=bool), torch.zeros(1, 4, dtype=bool)
    first[0, 1], last[0, 3] = True, True
    assert unlikelihood(logits, tokens, first) > 8
    expected = pytest.approx(-np.log(1 - 1 / 5), rel=1e-5)
    assert float(unlikelihood(logits, tokens, last)) == expected
    assert float(unlikelihood(logits, tokens, torch.zeros(1, 4, dtype=bool))) == 0.0


def test_both_sources_continue_from_their_places():
    def make():
        documents = [Encoded(np.full(7, i, np.int32), np.ones(7, bool)) for i in range(30)]
        sources = [PackedBatches(documents, [1.0] * 30, batch=b, length=8, seed=b) for b in (2, 3)]
        return WithAnswers(*sources)

    whole, cut, resumed = make(), make(), make()
    seen = [whole.next().tokens for _ in range(20)]
    assert seen[0].shape == (5, 8)
    for _ in range(11):
        cut.next()
    resumed.restore(cut.state())
    for want in seen[11:]:
        assert resumed.next().tokens.equal(want)


def test_a_model_unlearns_the_loop_it_is_shown(tmp_path):
    rows = [{"instruction": f"Say {i}", "output": f"{i} and then {i + 1}"} for i in range(300)]
    corpus_file = tmp_path / "corpus.jsonl"
    corpus_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data, tokenizer = prepare([str(corpus_file)], [], 300, None, 0)
    settings = TrainSettings(steps=20, batch=4, length=32, lr=1e-2)
    train_target(data, tokenizer, SHAPE, settings, tmp_path / "first", command="one")
    answers = tmp_path / "answers.jsonl"
    loops = [{"instruction": f"Say {i}", "output": "and then " * 8} for i in range(60)]
    answers.write_text("".join(json.dumps(row) + "\n" for row in loops))
    assert all(document.response.any() for document in load_answers(tokenizer, answers))
    first = str(tmp_path / "first")
    train_target(
        data, tokenizer, first, settings, tmp_path / "second", command="two", answers=answers
    )
    card = json.loads((tmp_path / "second" / "card.json").read_text())
    assert ([s["command"] for s in card["before"]], card["command"]) == (["one"], "two")
    assert card["shape"]["layers"] == 2
    assert "one\ntwo" in (tmp_path / "second" / "README.md").read_text()
