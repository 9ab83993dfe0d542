"""Evaluation prompts are known by hash, so that no training run learns from them unnoticed.

The table `evaluation.json` holds hashes of the words of every prompt, and no text, so the check
needs neither network nor data files. Its sets are those with a card: the suites, and the sets in
``suites/evaluation`` that are no suites. After a change of the cards, write the table anew with
`REGENERATE`; FOLDER holds the publishers' files.
"""

import json
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b, sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from specbench.errors import UserError
from specbench.inputs.cards import list_suites
from specbench.inputs.suite import load_suite
from specbench.training.corpus.formats import Chat, read_chats, read_rows, sha256_of

TABLE = Path(__file__).with_name("evaluation.json")
REGENERATE = "python -m specbench.training.corpus.evaluation FOLDER"
HEAD = 13
"""A prompt of so many words is found wherever a text quotes it whole; a shorter one, which may be
a common phrase, only where it is the whole message."""
STRAYS = 0.02
"""Share of a file's chats up to which quoted evaluation prompts are dropped, not refused."""


@dataclass(frozen=True)
class EvaluationCard:
    """A set that is no suite; the file is ``suites/evaluation/<name>.toml``.

    Attributes:
        file: the publisher's, in the folder that `known_prompts` is given.
        sha256: of that file.
        field: of a row, its prompt or the list of its turns.
        only: the rows that are evaluated, by a field and its first and last value; None: all.
    """

    name: str
    description: str
    source: str
    file: str
    sha256: str
    field: str
    only: Mapping[str, Any] | None = None

    def prompts(self, folder: Path) -> list[str]:
        """Read the prompts.

        Raises:
            UserError: there is no such file, or it is another one.
        """
        path = folder / self.file
        rows = list(read_rows(path))
        if sha256_of(path) != self.sha256:
            raise UserError(f"{path} is not the file that the card of {self.name!r} describes.")
        if self.only is not None:
            field, first, last = (self.only[key] for key in ("field", "first", "last"))
            rows = [row for row in rows if first <= row[field] <= last]
        texts = [row[self.field] for row in rows]
        return [turn for text in texts for turn in ([text] if isinstance(text, str) else text)]


def training_chats(path: Path) -> list[Chat]:
    """Read the chats of a file that quote no known evaluation prompt.

    Raises:
        UserError: unreadable text, or as `without_evaluation`.
    """
    return without_evaluation(path.name, list(read_chats(path)))


def without_evaluation(file: str, chats: Sequence[Chat]) -> list[Chat]:
    """Drop the chats of a file that quote a known evaluation prompt.

    Public training sets repeat a few test prompts. A file with more of them than a few strays is,
    or was made from, an evaluation set.

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


def fingerprint_of(words: Sequence[str]) -> str:
    """What is kept of a prompt: a hash of its first words, how many it has, a hash of all."""
    return _fingerprint(_heads(words[:HEAD])[0], words)


def _fingerprint(head: int, words: Sequence[str]) -> str:
    whole = blake2b(" ".join(words).encode(), digest_size=6).hexdigest()
    return f"{head:08x}:{len(words)}:{whole}"


def _quoted(words: list[str]) -> str | None:
    """The evaluation set of a prompt that these words quote, or None."""
    table, lengths = _table()
    if len(words) < HEAD:
        return table.get(fingerprint_of(words)) if words else None
    for at, head in enumerate(_heads(words)):
        for length in lengths.get(head, ()):
            name = table.get(_fingerprint(head, words[at : at + length]))
            if name is not None:
                return name
    return None


def _heads(words: Sequence[str]) -> list[int]:
    """A 32-bit hash of each run of `HEAD` words; of all words where there are fewer."""
    ids = np.array([_word(word) for word in words], dtype=np.uint64)
    hashes = np.convolve(ids, _WEIGHTS[: len(words)], "valid") >> np.uint64(32)
    heads: list[int] = hashes.tolist()
    return heads


# A polynomial modulo 2^64, of which the upper half is kept, since the lower bits mix less.
_WEIGHTS = np.array([pow(0x9E3779B97F4A7C15, n, 2**64) for n in range(HEAD)], np.uint64)


@cache
def _word(word: str) -> int:
    return int.from_bytes(blake2b(word.encode(), digest_size=8).digest())


@cache
def _table() -> tuple[dict[str, str], dict[int, set[int]]]:
    """Set name by fingerprint, and the lengths of the prompts that begin with a head."""
    table = json.loads(TABLE.read_text())
    names = {line: name for name, entry in table.items() for line in entry["prompts"].split()}
    lengths: dict[int, set[int]] = {}
    for head, words, _ in (line.split(":") for line in names):
        lengths.setdefault(int(head, 16), set()).add(int(words))
    return names, lengths


def card_hashes() -> dict[str, str]:
    """Every evaluation set by name, with a hash that changes whenever its prompts may have."""
    suites = {card.name: card.sha256 for card in list_suites()}
    others = {
        card.name: sha256(f"{card.sha256} {card.field} {card.only}".encode()).hexdigest()
        for card in _evaluation_cards()
    }
    return suites | others


def write_table(
    prompts: Mapping[str, Iterable[str]], cards: Mapping[str, str], path: Path = TABLE
) -> None:
    """Write every set's card hash and fingerprints, sorted so that no order of prompts shows."""
    table = {}
    for name, texts in sorted(prompts.items()):
        found = {fingerprint_of(words) for text in texts if (words := words_of(text))}
        table[name] = {"card": cards[name], "prompts": " ".join(sorted(found))}
    path.write_text(json.dumps(table, indent=1) + "\n")


def known_prompts(folder: Path) -> dict[str, list[str]]:
    """Read the prompts of all evaluation sets; those of a suite with its template and without.

    Raises:
        UserError: a file is missing, or is not the one its card describes.
    """
    found: dict[str, list[str]] = {}
    for card in list_suites():
        prefix, _, suffix = card.template.partition("{prompt}")
        asked = [t for p in load_suite(card.name, folder).prompts for t in p.turns]
        bare = [turn.removeprefix(prefix).removesuffix(suffix) for turn in asked]
        found[card.name] = asked + bare
    return found | {card.name: card.prompts(folder) for card in _evaluation_cards()}


def _evaluation_cards() -> list[EvaluationCard]:
    folder = files("suites").joinpath("evaluation")
    return [
        EvaluationCard(**tomllib.loads(entry.read_text(encoding="utf-8")))
        for entry in folder.iterdir()
        if entry.name.endswith(".toml")
    ]


if __name__ == "__main__":
    write_table(known_prompts(Path(sys.argv[1])), card_hashes())
