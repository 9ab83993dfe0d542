"""Suites: prompts, with a card that says where they come from and a hash that fixes them.

A suite is data: a card ``<name>.toml`` in the top-level package ``suites`` names the rows'
sources, the fields to read and the prompt template. The hash covers the ids and the finished
turns and nothing else, so it is the same whether the rows came from the publisher's file or
from the hub, and changes when a template does.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from specbench.errors import UserError
from specbench.inputs.cards import Card, Fields, Row, find_rows, how_to_get, list_suites, read_rows
from specbench.inputs.options import suggest

PUBLISHED_MAX_NEW_TOKENS = 2048
"""The budget of the DFlash protocol (arXiv 2602.06036); also that of a user's own suite."""

_OWN_ENDINGS = (".jsonl", ".json", ".jsonl.gz")
_SUBSET_SEED = "specbench-subset-1"


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

    @property
    def turns(self) -> int:
        """Turns of all prompts."""
        return sum(len(prompt.turns) for prompt in self.prompts)


_OWN_FIELDS = Fields(
    turns=("turns", "prompt", "question", "text"), id="id", category="category", first=0
)


def load_suite(name_or_path: str, data_dir: Path | None = None) -> Suite:
    """Read a shipped suite by name, or a file of one's own prompts.

    A name ending in .jsonl, .json or .jsonl.gz is a path: its rows have a list ``turns`` or a
    string ``prompt``, ``question`` or ``text``, and may have ``id`` and ``category``; its hash is
    computed, not checked. `cards.find_rows` says where a shipped suite's rows come from.

    Raises:
        UserError: unknown name, missing or unreadable data, empty prompts, repeated ids, or rows
            that are not those of the card.
    """
    if name_or_path.endswith(_OWN_ENDINGS):
        return _own_suite(Path(name_or_path))
    card = _find_card(name_or_path)
    origin, rows = find_rows(card, data_dir)
    prompts = _prompts(rows, card.fields, card.template, origin)
    suite = Suite(card.name, prompts, fingerprint(prompts), card.max_new_tokens)
    if suite.sha256 != card.sha256:
        raise UserError(
            f"The prompts in {origin} are not those of suite {card.name!r}: it has {card.rows} "
            f"rows, {origin} has {len(rows)}; their sha256 is {suite.sha256}, the card says "
            f"{card.sha256}.",
            how_to_get(card),
        )
    return suite


def subset(suite: Suite, limit: int | None) -> Suite:
    """The first ``limit`` prompts of one fixed permutation; all of them where it is None.

    The order is that of sha256 over a seed, the suite's name and the prompt's id: it needs no
    random generator whose algorithm a library could change, so a limit of 32 is the same 32
    prompts on every machine and a prefix of a limit of 64.

    Raises:
        UserError: ``limit`` is below 1.
    """
    if limit is not None and limit < 1:
        raise UserError(f"The limit of prompts per suite must be at least 1, not {limit}.")

    def rank(prompt: Prompt) -> str:
        text = f"{_SUBSET_SEED}\n{suite.name}\n{prompt.id}"
        return hashlib.sha256(text.encode()).hexdigest()

    return replace(suite, prompts=tuple(sorted(suite.prompts, key=rank)[:limit]))


def fingerprint(prompts: Iterable[Prompt]) -> str:
    """Sha256 (hex) over ids and turns in order, one JSON list per prompt, without categories."""
    digest = hashlib.sha256()
    for prompt in prompts:
        line = json.dumps([prompt.id, *prompt.turns], separators=(",", ":"))
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()


def _find_card(name: str) -> Card:
    cards = {card.name: card for card in list_suites()}
    if name in cards:
        return cards[name]
    endings = ", ".join(_OWN_ENDINGS)
    raise UserError(
        f"There is no suite {name!r}, and no path of your own, which ends in {endings}.",
        suggest(name, cards),
    )


def _own_suite(path: Path) -> Suite:
    if not path.is_file():
        raise UserError(f"There is no file {path} to read a suite from.")
    fields = replace(_OWN_FIELDS, prefix=path.name.split(".")[0] + "-")
    prompts = _prompts(read_rows(path.read_bytes(), str(path)), fields, "{prompt}", str(path))
    return Suite(path.name, prompts, fingerprint(prompts), PUBLISHED_MAX_NEW_TOKENS)


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
