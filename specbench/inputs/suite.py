"""Suites: prompts with a card that says where they come from, and a hash that holds them still.

A suite is data: a card ``<name>.toml`` in the top-level package ``suites`` names the rows'
sources, the fields to read and the prompt template. The hash covers the ids and the finished
turns and nothing else, so it is the same whether the rows came from the publisher's file or
from the hub, and changes when a template does.
"""

from __future__ import annotations

import difflib
import gzip
import hashlib
import json
import os
import tomllib
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from specbench.errors import UserError

DATA_ENV = "SPECBENCH_DATA"
"""Environment variable: the folder with the data files, where no ``data_dir`` is given."""

PUBLISHED_MAX_NEW_TOKENS = 2048
"""The budget of the DFlash protocol (arXiv 2602.06036); also that of a user's own suite."""

_PACKAGE = "suites"
_OWN_ENDINGS = (".jsonl", ".json", ".jsonl.gz")
_SUBSET_SEED = "specbench-subset-1"

Row = dict[str, Any]


@dataclass(frozen=True)
class Prompt:
    """One sample: an id unique in its suite, the user's turns in order, a category or None."""

    id: str
    turns: tuple[str, ...]
    category: str | None


@dataclass(frozen=True)
class Suite:
    """Prompts, ready to be asked.

    Attributes:
        sha256: over ids and turns of the *whole* suite; a subset keeps it.
        max_new_tokens: budget of one answer in tokens.
    """

    name: str
    prompts: tuple[Prompt, ...]
    sha256: str
    max_new_tokens: int
    description: str
    licence: str
    source: str


@dataclass(frozen=True)
class Hub:
    """A data set on the hub; without a revision the newest one is taken and the hash decides."""

    id: str
    split: str
    config: str | None = None
    revision: str | None = None


@dataclass(frozen=True)
class Fields:
    """How a row becomes a prompt.

    Attributes:
        turns: field names, the first that a row has is read: a string is one turn, a list several.
        id: field of the sample's id.
        first: where a row has no id, it gets ``prefix`` and its position counted from here.
    """

    turns: tuple[str, ...]
    id: str | None = None
    category: str | None = None
    prefix: str = ""
    first: int | None = None


@dataclass(frozen=True)
class Card:
    """What is known of a suite without its rows; the file is ``suites/<name>.toml``.

    Attributes:
        template: a turn's text, with ``{prompt}`` in the place of the row's.
        rows: how many rows the suite has; others are refused.
        sha256: over the ids and turns of all of them.
        files: names under which a data folder may hold the rows.
        embedded: file beside the card that holds the rows.
    """

    name: str
    description: str
    licence: str
    source: str
    citation: str
    template: str
    max_new_tokens: int
    rows: int
    sha256: str
    fields: Fields
    files: tuple[str, ...] = ()
    embedded: str | None = None
    hub: Hub | None = None


_OWN_FIELDS = Fields(
    turns=("turns", "prompt", "question", "text"), id="id", category="category", first=0
)


def list_suites() -> list[Card]:
    """All shipped cards, by name."""
    entries = (entry for entry in files(_PACKAGE).iterdir() if entry.name.endswith(".toml"))
    cards = [_card(tomllib.loads(entry.read_text(encoding="utf-8"))) for entry in entries]
    return sorted(cards, key=lambda card: card.name)


def load_suite(name_or_path: str, data_dir: Path | None = None) -> Suite:
    """Read a shipped suite by name, or a file of one's own prompts.

    A name ending in .jsonl, .json or .jsonl.gz is a path: its rows have a list ``turns`` or a
    string ``prompt``, ``question`` or ``text``, and may have ``id`` and ``category``; its hash is
    computed, not checked. A shipped suite's rows come from ``data_dir`` (or the folder that
    `DATA_ENV` names), else from the local hub cache, else from the hub at the card's revision.

    Raises:
        UserError: unknown name, missing or unreadable data, empty prompts, repeated ids, or rows
            that are not those of the card.
    """
    if name_or_path.endswith(_OWN_ENDINGS):
        return _own_suite(Path(name_or_path))
    card = _find_card(name_or_path)
    origin, rows = _rows(card, data_dir)
    if len(rows) != card.rows:
        raise UserError(
            f"Suite {card.name!r} has {card.rows} rows, {origin} has {len(rows)}.",
            _how_to_get(card),
        )
    prompts = _prompts(rows, card.fields, card.template, origin)
    found = fingerprint(prompts)
    if found != card.sha256:
        raise UserError(
            f"The prompts in {origin} are not those of suite {card.name!r}: "
            f"their sha256 is {found}, the card says {card.sha256}.",
            _how_to_get(card),
        )
    return Suite(
        card.name, prompts, found, card.max_new_tokens, card.description, card.licence, card.source
    )


def subset(suite: Suite, limit: int | None) -> Suite:
    """The first ``limit`` prompts of one fixed permutation; all of them where it is None.

    The order is that of sha256 over a seed, the suite's name and the prompt's id: it needs no
    random generator whose algorithm a library could change, so a limit of 32 is the same 32
    prompts on every machine and a prefix of a limit of 64.

    Raises:
        UserError: ``limit`` is below 1.
    """
    if limit is not None and limit < 1:
        raise UserError(f"The limit of prompts a suite must be at least 1, not {limit}.")

    def rank(prompt: Prompt) -> str:
        text = f"{_SUBSET_SEED}\n{suite.name}\n{prompt.id}"
        return hashlib.sha256(text.encode()).hexdigest()

    return replace(suite, prompts=tuple(sorted(suite.prompts, key=rank)[:limit]))


def fingerprint(prompts: Iterable[Prompt]) -> str:
    """Sha256 (hex) over ids and turns in order, one JSON list a prompt; categories do not count."""
    digest = hashlib.sha256()
    for prompt in prompts:
        line = json.dumps([prompt.id, *prompt.turns], separators=(",", ":"))
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()


def _card(raw: dict[str, Any]) -> Card:
    fields = raw.pop("fields")
    hub = raw.pop("hub", None)
    return Card(
        **{**raw, "files": tuple(raw.get("files", ()))},
        fields=Fields(**{**fields, "turns": tuple(fields["turns"])}),
        hub=Hub(**hub) if hub else None,
    )


def _find_card(name: str) -> Card:
    cards = {card.name: card for card in list_suites()}
    if name in cards:
        return cards[name]
    near = difflib.get_close_matches(name, cards, n=3)
    meant = f"did you mean {' or '.join(near)}? Known are" if near else "known are"
    raise UserError(
        f"There is no suite {name!r}; {meant} {', '.join(cards)}, "
        f"and a path ending in {', '.join(_OWN_ENDINGS)} is a suite of your own."
    )


def _own_suite(path: Path) -> Suite:
    if not path.is_file():
        raise UserError(f"There is no file {path} to read a suite from.")
    fields = replace(_OWN_FIELDS, prefix=path.name.split(".")[0] + "-")
    prompts = _prompts(_read(path.read_bytes(), str(path)), fields, "{prompt}", str(path))
    return Suite(
        name=path.name,
        prompts=prompts,
        sha256=fingerprint(prompts),
        max_new_tokens=PUBLISHED_MAX_NEW_TOKENS,
        description=f"{len(prompts)} prompts of your own",
        licence="unknown",
        source=str(path),
    )


def _rows(card: Card, data_dir: Path | None) -> tuple[str, list[Row]]:
    """The card's rows and, for messages, where they are from."""
    if card.embedded is not None:
        data = files(_PACKAGE).joinpath(card.embedded).read_bytes()
        return card.embedded, _read(data, card.embedded)
    folder = _data_folder(data_dir)
    for path in (folder / name for name in card.files) if folder else ():
        if path.is_file():
            return str(path), _read(path.read_bytes(), str(path))
    return f"the hub's {card.hub.id if card.hub else None}", _hub_rows(card, folder)


def _data_folder(data_dir: Path | None) -> Path | None:
    named = data_dir or os.environ.get(DATA_ENV)
    if not named:
        return None
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise UserError(f"The data folder {folder} (--data-dir or {DATA_ENV}) does not exist.")
    return folder


def _hub_rows(card: Card, folder: Path | None) -> list[Row]:
    """Rows from the local hub cache, or else from the hub itself."""
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    assert card.hub is not None
    hub = card.hub
    cached = _cached_snapshot(hub)
    if cached is not None:
        try:
            return list(load_dataset(cached, hub.config, split=hub.split))
        except (OSError, ValueError, DatasetsError):
            pass  # only a part of the data set is in the cache
    try:
        return list(load_dataset(hub.id, hub.config, split=hub.split, revision=hub.revision))
    except (OSError, ValueError, DatasetsError) as error:
        looked = f"{' or '.join(card.files)} is not in {folder}" if folder else "no data folder"
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UserError(
            f"Suite {card.name!r} has no data here: {looked}, {hub.id} is not in the hub cache "
            f"and could not be fetched ({reason}).",
            _how_to_get(card),
        ) from error


def _cached_snapshot(hub: Hub) -> str | None:
    """Folder of the data set in the local hub cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return snapshot_download(
            hub.id, repo_type="dataset", revision=hub.revision, local_files_only=True
        )
    except LocalEntryNotFoundError:
        return None


def _how_to_get(card: Card) -> str:
    """How a person comes by the right rows."""
    if card.hub is None:
        return "Install specbench anew: the file comes with it."
    revision = f" --revision {card.hub.revision}" if card.hub.revision else ""
    return (
        f"Put {card.files[0]} ({card.source}) into a folder and name it with --data-dir or "
        f"{DATA_ENV}, or where there is a network run "
        f"`hf download {card.hub.id} --repo-type dataset{revision}`."
    )


def _read(data: bytes, origin: str) -> list[Row]:
    """Rows of a JSONL file or of one JSON list, gzip or plain."""
    try:
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UserError(f"{origin} is not UTF-8 text or a whole gzip of it: {error}.") from error
    if text.lstrip().startswith("["):
        rows = _parse(text, origin)
        named = [(f"{origin}, row {number},", row) for number, row in enumerate(rows, 1)]
    else:
        places = ((f"{origin}, line {n},", line) for n, line in enumerate(text.split("\n"), 1))
        named = [(place, _parse(line, place)) for place, line in places if line.strip()]
    for place, row in named:
        if not isinstance(row, dict):
            raise UserError(f"{place} is not a JSON object.")
    return [row for _, row in named]


def _parse(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{place} is not valid JSON: {error}.") from error


def _prompts(rows: list[Row], fields: Fields, template: str, origin: str) -> tuple[Prompt, ...]:
    if not rows:
        raise UserError(f"{origin} holds no prompts.")
    prompts = []
    for index, row in enumerate(rows):
        place = f"{origin}, row {index + 1},"
        turns = tuple(template.replace("{prompt}", turn) for turn in _turns(row, fields, place))
        category = row.get(fields.category) if fields.category else None
        name = _id(row, fields, index, place)
        prompts.append(Prompt(name, turns, None if category is None else str(category)))
    repeated = [name for name, count in Counter(p.id for p in prompts).items() if count > 1]
    if repeated:
        shown = ", ".join(map(repr, repeated[:5]))
        raise UserError(f"{origin} has ids that occur more than once: {shown}.")
    return tuple(prompts)


def _turns(row: Row, fields: Fields, place: str) -> list[str]:
    name = next((name for name in fields.turns if name in row), None)
    if name is None:
        raise UserError(
            f"{place} has none of the fields {', '.join(fields.turns)}; it has {', '.join(row)}."
        )
    value = row[name]
    turns = [value] if isinstance(value, str) else value
    if not isinstance(turns, list) or not all(isinstance(turn, str) for turn in turns):
        raise UserError(f"{place} field {name!r}, must be a text or a list of texts.")
    if not turns or not all(turn.strip() for turn in turns):
        raise UserError(f"{place} field {name!r}, has an empty prompt.")
    return turns


def _id(row: Row, fields: Fields, index: int, place: str) -> str:
    if fields.id is not None and fields.id in row:
        value = row[fields.id]
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            raise UserError(f"{place} field {fields.id!r}, must be a text or a whole number.")
        return str(value)
    if fields.first is None:
        raise UserError(f"{place} has no field {fields.id!r}; it has {', '.join(row)}.")
    return f"{fields.prefix}{fields.first + index}"
