"""Evaluation prompts are known by hash, so that no training run learns from them unseen.

The table `evaluation.json` holds, for every prompt of the known evaluation sets, hashes of its
words and no text, so the check needs neither network nor data files. The table is written with
``python -m specbench.training.corpus.evaluation FOLDER`` (the folder of the evaluation files).
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from specbench.errors import UserError
from specbench.inputs.suite import list_suites, load_suite
from specbench.training.corpus.data import Corpus, Document, read_rows
from specbench.training.corpus.formats import Chat

TABLE = Path(__file__).with_name("evaluation.json")
HEAD = 13
"""A prompt of so many words is found wherever a text quotes it whole; a shorter one, which may be
a common phrase, only where it is the whole message."""
STRAYS = 0.02
"""Share of a file's chats up to which quoted evaluation prompts are dropped, not refused."""

OTHER_SETS: dict[str, tuple[str, tuple[str, ...]]] = {
    "arena-hard": ("arena_hard_v0.1_question.jsonl", ("prompt",)),
    "ifeval": ("ifeval_input_data.jsonl", ("prompt",)),
    "mbpp": ("mbpp.jsonl", ("text",)),
    "spec-bench": ("spec_bench_question.jsonl", ("turns",)),
    "vicuna-bench": ("vicuna_bench_question.jsonl", ("turns",)),
}
"""Evaluation sets without a card: file and the fields that hold prompts."""
MBPP_TEST = range(11, 511)
"""The `task_id` of MBPP's test split; its file holds the others too."""


@dataclass(frozen=True)
class Print:
    """What is kept of a prompt: a hash of its first words, how many it has, a hash of all."""

    head: int
    words: int
    whole: str


def refuse_evaluation_rows(corpus: Corpus) -> Corpus:
    """The corpus without the chats that quote a known evaluation prompt.

    Those chats are counted with the excluded ones of their files.

    Raises:
        UserError: as `without_evaluation`.
    """
    train: list[Document] = []
    held_out: list[Document] = []
    files = []
    for source, facts in enumerate(corpus.files):
        documents = [d for d in [*corpus.train, *corpus.held_out] if d.source == source]
        clean = without_evaluation(facts.file, [d.messages for d in documents])
        kept = {id(chat) for chat in clean}
        shown = [d for d in corpus.train if id(d.messages) in kept]
        held = [d for d in corpus.held_out if id(d.messages) in kept]
        lost = len(documents) - len(clean)
        train += shown
        held_out += held
        files.append(
            replace(facts, train=len(shown), held_out=len(held), excluded=facts.excluded + lost)
        )
    return Corpus(train, held_out, files)


def without_evaluation(file: str, chats: Sequence[Chat]) -> list[Chat]:
    """The chats of a file that quote no known evaluation prompt.

    Public training sets repeat a few test prompts; those chats are dropped. A file where they
    are more than strays is (or was made from) an evaluation set.

    Raises:
        UserError: more than `STRAYS` of the chats quote one; names the file and the sets.
    """
    names = [asked_by(chat) for chat in chats]
    found = Counter(name for name in names if name)
    if found.total() > STRAYS * len(chats):
        sets = ", ".join(f"{count} of {name}" for name, count in found.most_common())
        raise UserError(
            f"{file} holds prompts of evaluation sets ({sets}, in {len(chats)} chats).",
            "Train on other text, or the figures of those sets mean nothing.",
        )
    return [chat for chat, name in zip(chats, names, strict=True) if name is None]


def asked_by(chat: Chat) -> str | None:
    """The evaluation set whose prompt a message of the chat quotes, or None."""
    messages = (words_of(message["content"]) for message in chat)
    return next((name for words in messages if (name := _quoted(words))), None)


def words_of(text: str) -> list[str]:
    """The words of a text, without case and punctuation."""
    return re.findall(r"\w+", text.casefold())


def print_of(words: Sequence[str]) -> Print:
    """The print of a prompt's words."""
    return Print(_heads(words[:HEAD])[0], len(words), _whole(words))


def _quoted(words: list[str]) -> str | None:
    """The evaluation set of a prompt that these words quote, or None."""
    if len(words) < HEAD:
        return _table()[0].get(print_of(words)) if words else None
    table, lengths = _table()
    for at, head in enumerate(_heads(words)):
        for length in lengths.get(head, ()):
            part = words[at : at + length]
            name = table.get(Print(head, len(part), _whole(part)))
            if name is not None:
                return name
    return None


def _heads(words: Sequence[str]) -> list[int]:
    """A 32-bit hash of each run of `HEAD` words; of all words where there are fewer."""
    ids = np.array([_word(word) for word in words], dtype=np.uint64)
    size = min(HEAD, len(words))
    weights = _WEIGHTS[-size:]
    hashes = np.convolve(ids, weights[::-1], "valid") >> np.uint64(32)
    heads: list[int] = hashes.tolist()
    return heads


# A polynomial modulo 2^64, of which the upper half is kept, since the lower bits mix less.
_WEIGHTS = np.array([pow(0x9E3779B97F4A7C15, n, 2**64) for n in range(HEAD)], np.uint64)[::-1]


@cache
def _word(word: str) -> int:
    return int.from_bytes(blake2b(word.encode(), digest_size=8).digest())


def _whole(words: Sequence[str]) -> str:
    return blake2b(" ".join(words).encode(), digest_size=6).hexdigest()


@cache
def _table() -> tuple[dict[Print, str], dict[int, set[int]]]:
    """Set name by print, and the lengths of the prompts that begin with a head."""
    sets: dict[str, str] = json.loads(TABLE.read_text())
    names: dict[Print, str] = {}
    lengths: dict[int, set[int]] = {}
    for name, lines in sets.items():
        for line in lines.split():
            head, words, whole = line.split(":")
            one = Print(int(head, 16), int(words), whole)
            names[one] = name
            lengths.setdefault(one.head, set()).add(one.words)
    return names, lengths


def write_table(prompts: Mapping[str, Iterable[str]], path: Path = TABLE) -> None:
    """Write the prints of every set's prompts, sorted, so that nothing says whose is whose."""
    table = {}
    for name, texts in sorted(prompts.items()):
        prints = {print_of(words) for text in texts if (words := words_of(text))}
        lines = sorted(f"{one.head:08x}:{one.words}:{one.whole}" for one in prints)
        table[name] = " ".join(lines)
    path.write_text(json.dumps(table, indent=1) + "\n")


def known_prompts(folder: Path) -> dict[str, list[str]]:
    """The prompts of all evaluation sets: of a suite both as it asks and as the row has it."""
    found: dict[str, list[str]] = {}
    for card in list_suites():
        prefix, _, suffix = card.template.partition("{prompt}")
        asked = [t for p in load_suite(card.name, folder).prompts for t in p.turns]
        bare = [turn.removeprefix(prefix).removesuffix(suffix) for turn in asked]
        found[card.name] = asked + bare
    for name, (file, fields) in OTHER_SETS.items():
        rows = (row for row in read_rows(folder / file) if _evaluated(name, row))
        found[name] = [text for row in rows for text in _texts(row, fields)]
    return found


def _evaluated(name: str, row: Mapping[str, Any]) -> bool:
    return name != "mbpp" or row["task_id"] in MBPP_TEST


def _texts(row: Mapping[str, Any], fields: Sequence[str]) -> Iterator[str]:
    for field in fields:
        value = row[field]
        yield from [value] if isinstance(value, str) else value


if __name__ == "__main__":
    write_table(known_prompts(Path(sys.argv[1])))
