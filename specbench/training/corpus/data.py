"""Corpora of chats: reading, held-out split, exclusion of evaluation rows, licences."""

import gzip
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from specbench.errors import UserError
from specbench.training.corpus.formats import ADAPTERS, Chat, chats_of

HELD_OUT_SHARE = 0.015
EXCLUSION_WORDS = 13
"""A training chat that shares this many words in a row with an excluded file is dropped."""


@dataclass(frozen=True)
class CorpusSpec:
    """A data file and how many times each epoch shows it (a fraction: a seeded part)."""

    path: Path
    weight: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``PATH`` or ``PATH:WEIGHT``."""
        path, separator, weight = text.rpartition(":")
        if separator and re.fullmatch(r"\d+(\.\d+)?|\.\d+", weight):
            return cls(Path(path), float(weight))
        return cls(Path(text), 1.0)


@dataclass(frozen=True)
class Document:
    """One chat of a corpus; ``source`` is the index of its file."""

    source: int
    messages: Chat

    @property
    def text(self) -> str:
        """The contents of all messages, joined by line feeds."""
        return "\n".join(message["content"] for message in self.messages)


@dataclass(frozen=True)
class FileFacts:
    """What a model card says about a data file."""

    file: str
    licence: str
    sha256: str
    weight: float
    train: int
    held_out: int
    excluded: int


@dataclass(frozen=True)
class Corpus:
    """Chats for training and for validation, with the facts of their files."""

    train: list[Document]
    held_out: list[Document]
    files: list[FileFacts]

    def weights(self) -> list[float]:
        """How many times each epoch shows each training chat."""
        return [self.files[document.source].weight for document in self.train]


def load_corpus(specs: Sequence[CorpusSpec], exclude: Sequence[Path], seed: int) -> Corpus:
    """Read all files; the split depends on each chat's own text and the seed only.

    Raises:
        UserError: a file is missing or unreadable, or a row has no known fields.
    """
    forbidden: set[int] = set()
    for path in exclude:
        for row in read_rows(path):
            forbidden |= _runs(" ".join(_strings(row)))
    train: list[Document] = []
    held_out: list[Document] = []
    files: list[FileFacts] = []
    for source, spec in enumerate(specs):
        documents = [Document(source, chat) for chat in read_chats(spec.path)]
        kept = [d for d in documents if not (forbidden and forbidden & _runs(d.text))]
        held = [d for d in kept if _is_held_out(d, seed)]
        held_ids = {id(d) for d in held}
        train += [d for d in kept if id(d) not in held_ids]
        held_out += held
        files.append(
            FileFacts(
                file=spec.path.name,
                licence=_licence(spec.path),
                sha256=sha256_of(spec.path),
                weight=spec.weight,
                train=len(kept) - len(held),
                held_out=len(held),
                excluded=len(documents) - len(kept),
            )
        )
    return Corpus(train, held_out, files)


def read_chats(path: Path) -> Iterator[Chat]:
    """Read all chats of a file.

    Raises:
        UserError: there is no such file, or names the row that is not JSON or has no known fields.
    """
    for number, row in enumerate(read_rows(path), start=1):
        chats = chats_of(row) if isinstance(row, dict) else None
        if chats is None:
            known = "; ".join("+".join(sorted(fields)) for fields, _ in ADAPTERS)
            raise UserError(
                f"Row {number} of {path} has no known fields.", f"Known sets of fields: {known}."
            )
        yield from chats


def read_rows(path: Path) -> Iterator[Any]:
    """Read the rows of a JSON array or a JSONL file, gzipped or not.

    Raises:
        UserError: there is no such file, or names the line that is not JSON.
    """
    if not path.is_file():
        raise UserError(f"There is no data file {path}.")
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as stream:
        if path.name.removesuffix(".gz").endswith(".json"):
            yield from json.load(stream)
            return
        for number, line in enumerate(stream, start=1):
            if line.strip():
                try:
                    yield json.loads(line)
                except json.JSONDecodeError as error:
                    raise UserError(f"Line {number} of {path} is not JSON: {error}.") from None


def sha256_of(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _is_held_out(document: Document, seed: int) -> bool:
    digest = hashlib.sha256(f"{seed}\n{document.text}".encode()).digest()
    return int.from_bytes(digest[:8]) < HELD_OUT_SHARE * 2**64


def _runs(text: str) -> set[int]:
    """Hashes of all runs of EXCLUSION_WORDS words, without case and punctuation."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    n = EXCLUSION_WORDS
    return {hash(tuple(words[i : i + n])) for i in range(len(words) - n + 1)}


def _strings(value: Any) -> Iterator[str]:
    """Every string inside a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _licence(path: Path) -> str:
    """The licence that a MANIFEST.json beside the file states for it."""
    manifest = path.parent / "MANIFEST.json"
    if not manifest.is_file():
        return "not stated"
    entry = json.loads(manifest.read_text()).get(path.name, {})
    return str(entry.get("licence", "not stated"))
