"""The shipped suites' cards: what is known of a suite without its rows."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

PACKAGE = "suites"
"""The top-level package with the cards, and with the rows of embedded suites."""


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


def list_suites() -> list[Card]:
    """All shipped cards, by name."""
    entries = (entry for entry in files(PACKAGE).iterdir() if entry.name.endswith(".toml"))
    cards = [_card(tomllib.loads(entry.read_text(encoding="utf-8"))) for entry in entries]
    return sorted(cards, key=lambda card: card.name)


def _card(raw: dict[str, Any]) -> Card:
    fields = raw.pop("fields")
    hub = raw.pop("hub", None)
    return Card(
        **{**raw, "files": tuple(raw.get("files", ()))},
        fields=Fields(**{**fields, "turns": tuple(fields["turns"])}),
        hub=Hub(**hub) if hub else None,
    )
