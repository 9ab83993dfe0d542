"""The shipped suites: their cards, and where the rows of one come from."""

from __future__ import annotations

import gzip
import json
import os
import tomllib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from specbench import hub
from specbench.errors import UserError

PACKAGE = "suites"
"""The top-level package with the cards, and with the rows of embedded suites."""

DATA_ENV = "SPECBENCH_DATA"
"""Environment variable: the folder with the data files, where no ``data_dir`` is given."""

Row = dict[str, Any]


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

    turns: Sequence[str]
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
    files: Sequence[str] = ()
    embedded: str | None = None
    hub: Hub | None = None


def list_suites() -> list[Card]:
    """All shipped cards, by name."""
    entries = (entry for entry in files(PACKAGE).iterdir() if entry.name.endswith(".toml"))
    cards = [_card(tomllib.loads(entry.read_text(encoding="utf-8"))) for entry in entries]
    return sorted(cards, key=lambda card: card.name)


def _card(raw: dict[str, Any]) -> Card:
    place = Hub(**raw.pop("hub")) if "hub" in raw else None
    return Card(**{**raw, "fields": Fields(**raw["fields"])}, hub=place)


def find_rows(card: Card, data_dir: Path | None) -> tuple[str, list[Row]]:
    """The card's rows and, for messages, where they come from.

    They come from the package, else from ``data_dir`` (or the folder that `DATA_ENV` names), else
    from the hub's local cache, else from the hub at the card's revision.

    Raises:
        UserError: they are nowhere, or cannot be read.
    """
    if card.embedded is not None:
        data = files(PACKAGE).joinpath(card.embedded).read_bytes()
        return card.embedded, read_rows(data, card.embedded)
    folder = _data_folder(data_dir)
    for path in (folder / name for name in card.files) if folder else ():
        if path.is_file():
            return str(path), read_rows(path.read_bytes(), str(path))
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
    """Rows from the hub's local cache, or else from the hub itself."""
    unreachable = hub.outage()  # Asked before `datasets` is imported, which takes it over.
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    assert card.hub is not None
    place = card.hub
    sources: list[tuple[str, dict[str, Any]]] = [(place.id, {"revision": place.revision})]
    cached = hub.cached(place.id, place.revision, "dataset")
    if cached is not None:  # Perhaps with a part of the data set only.
        sources.insert(0, (cached, {}))
    for source, version in sources:
        try:
            return list(load_dataset(source, place.config, split=place.split, **version))
        except (OSError, ValueError, DatasetsError) as error:
            failure = error
    first_line = f"{type(failure).__name__}: {failure}".splitlines()[0]
    looked = f"{' or '.join(card.files)} is not in {folder}" if folder else "no data folder"
    raise UserError(
        f"Suite {card.name!r} has no data here: {looked}, {place.id} is not in the hub cache, "
        f"and {unreachable or f'it cannot be fetched ({first_line})'}.",
        how_to_get(card),
    ) from failure


def how_to_get(card: Card) -> str:
    """The sentence that says how to get the right rows."""
    if card.hub is None:
        return "Install specbench again: the file comes with it."
    revision = f" --revision {card.hub.revision}" if card.hub.revision else ""
    return (
        f"Put {card.files[0]} ({card.source}) into a folder and name it with --data-dir or "
        f"{DATA_ENV}, or where there is a network run "
        f"`hf download {card.hub.id} --repo-type dataset{revision}`."
    )


def read_rows(data: bytes, origin: str) -> list[Row]:
    """Rows of a JSONL file or of one JSON list, gzip or plain.

    Raises:
        UserError: it is neither; the line or row is named.
    """
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
