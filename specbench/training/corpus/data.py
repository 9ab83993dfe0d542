"""Corpora of chats: held-out split, exclusion of evaluation rows, licences."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.training.corpus.evaluation import without_evaluation
from specbench.training.corpus.formats import Chat, read_chats, read_rows, sha256_of

HELD_OUT_SHARE = 0.015
EXCLUSION_WORDS = 13
"""A training chat that shares this many words in a row with an excluded file is dropped."""


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

    @property
    def stem(self) -> str:
        """The file's name up to its first dot."""
        return self.file.partition(".")[0]


@dataclass(frozen=True)
class Corpus:
    """Chats for training and for validation, with the facts of their files."""

    train: list[Document]
    held_out: list[Document]
    files: list[FileFacts]

    def weights(self) -> list[float]:
        """How many times each epoch shows each training chat."""
        return [self.files[document.source].weight for document in self.train]


def path_and_weight(text: str) -> tuple[Path, float]:
    """Parse ``PATH`` or ``PATH:WEIGHT``: a data file, and how many times each epoch shows it.

    A fraction shows a seeded part.
    """
    path, separator, weight = text.rpartition(":")
    if separator and re.fullmatch(r"\d+(\.\d+)?|\.\d+", weight):
        return Path(path), float(weight)
    return Path(text), 1.0


def load_corpus(texts: Sequence[str], exclude: Sequence[Path], seed: int) -> Corpus:
    """Read the files ``PATH`` or ``PATH:WEIGHT`` without the chats that must not be learned.

    Those share a run of words with an excluded file, or quote an evaluation prompt. The split
    depends on each chat's own text and the seed only.

    Raises:
        UserError: a file is missing or unreadable, a row has no known fields, or as
            `without_evaluation`.
    """
    rows = (row for excluded in exclude for row in read_rows(excluded))
    forbidden = {run for row in rows for run in _runs(" ".join(_strings(row)))}
    corpus = Corpus([], [], [])
    for source, (path, weight) in enumerate(map(path_and_weight, texts)):
        documents = [Document(source, chat) for chat in read_chats(path)]
        allowed = [d for d in documents if not (forbidden and forbidden & _runs(d.text))]
        clean = without_evaluation(path.name, [d.messages for d in allowed])
        kept = [Document(source, chat) for chat in clean]
        held_out = [d for d in kept if _is_held_out(d, seed)]
        corpus.train.extend(d for d in kept if not _is_held_out(d, seed))
        corpus.held_out.extend(held_out)
        corpus.files.append(
            FileFacts(
                file=path.name,
                licence=_licence(path),
                sha256=sha256_of(path),
                weight=weight,
                train=len(kept) - len(held_out),
                held_out=len(held_out),
                excluded=len(documents) - len(kept),
            )
        )
    return corpus


def _is_held_out(document: Document, seed: int) -> bool:
    digest = hashlib.sha256(f"{seed}\n{document.text}".encode()).digest()
    return int.from_bytes(digest[:8]) < HELD_OUT_SHARE * 2**64


def _runs(text: str) -> set[int]:
    """Hashes of all runs of EXCLUSION_WORDS words, without case and punctuation."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    n = EXCLUSION_WORDS
    return {hash(tuple(words[i : i + n])) for i in range(len(words) - n + 1)}


def _strings(value: Any) -> list[str]:
    """Every string inside a JSON value."""
    if isinstance(value, str):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [text for item in items for text in _strings(item)]


def _licence(path: Path) -> str:
    """The licence that a MANIFEST.json beside the file states for it."""
    manifest = path.parent / "MANIFEST.json"
    entries = json.loads(manifest.read_text()) if manifest.is_file() else {}
    return str(entries.get(path.name, {}).get("licence", "not stated"))
