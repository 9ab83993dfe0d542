"""Corpora: adapters, split, exclusion, tokenizer, batch order."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from specbench.errors import UserError
from specbench.training.corpus.batches import DocumentBatches, PackedBatches, epoch_order, pad_right
from specbench.training.corpus.data import load_corpus, path_and_weight
from specbench.training.corpus.formats import (
    BOXED_INSTRUCTION,
    FUNCTION_INSTRUCTION,
    chats_of,
    read_chats,
)
from specbench.training.corpus.tokenizer import Encoded, encode_chats, train_tokenizer


def write_rows(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("row", "user", "assistant"),
    [
        (
            {"question": "How many?", "answer": "It is 1+1=<<1+1=2>>2.\n#### 2"},
            f"How many?\n{BOXED_INSTRUCTION}",
            "It is 1+1=2.\nThe answer is \\boxed{2}.",
        ),
        (
            {"problem": "1+1?", "solution": "$\\boxed{2}$", "level": "1"},
            f"1+1?\n{BOXED_INSTRUCTION}",
            "$\\boxed{2}$",
        ),
        (
            {"text": "Add.", "code": "def f(a):\r\n\treturn a \r\n", "task_id": 1},
            "Add.",
            "```python\ndef f(a):\n    return a\n```",
        ),
        (
            {"prompt": 'def f():\n    """One."""\n', "completion": "    return 1\n"},
            f'{FUNCTION_INSTRUCTION}\n\n```python\ndef f():\n    """One."""\n```',
            '```python\ndef f():\n    """One."""\n    return 1\n```',
        ),
        ({"instruction": "Say", "input": "hi", "response": "hi"}, "Say\n\nhi", "hi"),
        ({"instruction": "Say", "input": "", "output": "hi"}, "Say", "hi"),
        ({"instruction": "Say", "instances": [{"input": "a", "output": "b"}]}, "Say\n\na", "b"),
        (
            {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
            "a",
            "b",
        ),
        ({"turns": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
         "a", "b"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
         "a", "b"),
    ],
)  # fmt: skip
def test_every_known_row_becomes_a_chat(row, user, assistant):
    assert chats_of(row) == [
        [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]
    ]


def test_a_message_tree_gives_its_best_ranked_paths():
    def node(text, role, rank=None, replies=()):
        return {"text": text, "role": role, "rank": rank, "replies": list(replies)}

    follow_up = node("more?", "prompter", 0)
    best = node("good", "assistant", 0, [follow_up])
    tree = node("q", "prompter", None, [node("bad", "assistant", 1), best])
    chats = chats_of({"message_tree_id": "x", "prompt": tree})
    assert [[m["content"] for m in chat] for chat in chats] == [["q", "good"], ["q", "bad"]]


def test_empty_answers_are_left_out_and_unknown_rows_are_none():
    assert chats_of({"instruction": "Say", "output": " "}) == []
    assert chats_of({"strange": 1}) is None


@pytest.mark.parametrize(
    ("text", "path", "weight"),
    [("a/b.jsonl", "a/b.jsonl", 1.0), ("a.json:0.2", "a.json", 0.2), ("c:x.json", "c:x.json", 1.0)],
)
def test_corpus_spec(text, path, weight):
    assert path_and_weight(text) == (Path(path), weight)


def test_a_wrong_file_is_named_with_its_row(tmp_path):
    with pytest.raises(UserError, match="no data file"):
        list(read_chats(tmp_path / "none.jsonl"))
    with pytest.raises(UserError, match=r"Row 2 of .*problem"):
        list(read_chats(write_rows(tmp_path / "a.jsonl", [{"text": "fine"}, {"strange": 1}])))
    (tmp_path / "b.jsonl").write_text("{")
    with pytest.raises(UserError, match="Line 1 of"):
        list(read_chats(tmp_path / "b.jsonl"))


def test_split_depends_on_the_text_alone(tmp_path):
    rows = [{"instruction": f"Count to {i}", "output": f"{i}!"} for i in range(2000)]
    one = load_corpus([str(write_rows(tmp_path / "a.jsonl", rows))], [], seed=0)
    other = write_rows(tmp_path / "b.jsonl", rows[::-1])
    two = load_corpus([str(other)], [], seed=0)
    assert {d.text for d in one.held_out} == {d.text for d in two.held_out}
    assert 15 <= len(one.held_out) <= 50
    assert len(one.train) + len(one.held_out) == 2000
    assert not {d.text for d in one.held_out} & {d.text for d in one.train}


def test_rows_that_share_thirteen_words_with_an_evaluation_file_go(tmp_path):
    run = "One two three four five six seven eight nine ten eleven twelve thirteen"
    near = run.replace("seven", "SEVEN,").replace("thirteen", "fourteen")
    rows = [
        {"instruction": f"x {run.lower()} y", "output": "a"},
        {"instruction": near, "output": "b"},
    ]
    evaluation = tmp_path / "test.jsonl.gz"
    with gzip.open(evaluation, "wt") as stream:
        stream.write(json.dumps({"deep": [{"question": run}]}))
    (tmp_path / "MANIFEST.json").write_text(json.dumps({"a.jsonl": {"licence": "MIT"}}))
    file = write_rows(tmp_path / "a.jsonl", rows)
    corpus = load_corpus([str(file)], [evaluation], seed=0)
    assert [d.messages[1]["content"] for d in corpus.train + corpus.held_out] == ["b"]
    assert (corpus.files[0].excluded, corpus.files[0].licence) == (1, "MIT")


@pytest.fixture(scope="module")
def tokenizer():
    texts = [f"def add{i}(a, b):\n    return a + b  # the sum of {i}\n" for i in range(300)]
    return train_tokenizer(texts, 340)


def test_tokenizer_splits_digits_and_keeps_every_byte(tokenizer):
    text = "Zahl 1234 äöü\n    x = 5678\n"
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert len([i for i in tokenizer("1234567")["input_ids"] if i > 3]) == 7
    assert [tokenizer.eos_token, tokenizer.mask_token] == ["<|im_end|>", "<|mask|>"]


def test_encoded_chats_are_the_template_and_mark_the_answers(tokenizer):
    chat = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "first"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "second\n"},
    ]
    encoded, plain = encode_chats(tokenizer, [chat, [{"role": "text", "content": "only"}]])
    assert encoded.tokens.tolist() == tokenizer.apply_chat_template(chat, return_dict=False)
    marked = tokenizer.decode(encoded.tokens[encoded.response])
    assert marked == "first<|im_end|>second\n<|im_end|>"
    assert tokenizer.decode(plain.tokens) == "only<|im_end|>"


def test_saved_tokenizer_names_no_path(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    for path in tmp_path.iterdir():
        assert str(tmp_path) not in path.read_text()


def documents(count: int) -> list[Encoded]:
    return [
        Encoded(np.full(3 + i % 5, i, dtype=np.int32), np.arange(3 + i % 5) > 0)
        for i in range(count)
    ]


def test_weights_are_times_an_epoch():
    order = epoch_order(np.array([3.0, 0.0, 0.5, 1.0] * 1000), seed=0, epoch=0)
    counts = np.bincount(order, minlength=4000).reshape(-1, 4)
    assert (counts[:, 0] == 3).all()
    assert (counts[:, 1] == 0).all()
    assert (counts[:, 3] == 1).all()
    assert 420 < counts[:, 2].sum() < 580


@pytest.mark.parametrize("kind", ["packed", "documents"])
def test_batches_continue_from_a_saved_place(kind):
    def make():
        if kind == "packed":
            return PackedBatches(documents(50), [1.0] * 50, batch=4, length=8, seed=3)
        return DocumentBatches(documents(50), [1.0] * 50, batch=4, length=8, seed=3, pad=99)

    whole = make()
    seen = [whole.next() for _ in range(40)]
    first, second = make(), make()
    for _ in range(17):
        first.next()
    second.restore(first.state())
    for want in seen[17:]:
        got = second.next()
        assert got.tokens.equal(want.tokens)
        assert got.response.equal(want.response)


def test_an_epoch_of_documents_shows_each_once_from_its_start():
    batches = DocumentBatches(documents(50), [1.0] * 50, batch=4, length=6, seed=0, pad=99)
    seen = []
    while batches.state()["epoch"] == 0 and len(seen) < 50:
        batch = batches.next()
        seen += batch.tokens[:, 0].tolist()
        assert not batch.response[:, 0].any()
        assert not batch.response[batch.tokens == 99].any()
    assert sorted(seen) == list(range(50))


def test_padding_is_cut_at_the_length():
    batch = pad_right(documents(5), length=6, pad=99)
    assert batch.tokens.shape == (5, 6)
    assert batch.tokens[0].tolist() == [0, 0, 0, 99, 99, 99]
