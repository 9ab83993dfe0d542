"""Names for rows and tables: no longer than needed to distinguish them."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from specbench.inputs.options import as_typed
from specbench.records.records import Cell
from specbench.report.runs import DRAFTER_SETTINGS, Entry, settings_key


def short(value: object) -> str:
    """The first ten digits of a hash; anything else as text."""
    text = str(value)
    return text[:10] if re.fullmatch(r"[0-9a-f]{40,}", text) else text


def distinguish(names: Sequence[str], settings: Sequence[dict[str, str]]) -> list[str]:
    """For each name, the settings in which it differs from its namesakes: ``a=1, b=2``."""
    named = list(zip(names, settings, strict=True))
    notes = []
    for name, own in named:
        same = [other for known, other in named if known == name]
        keys = dict.fromkeys(key for other in same for key in other)
        differing = [key for key in keys if len({other.get(key) for other in same}) > 1]
        notes.append(", ".join(f"{key}={own[key]}" for key in differing if key in own))
    return notes


def noted(name: str, *notes: str) -> str:
    """A name with its notes in brackets, empty ones left out."""
    text = "; ".join(note for note in notes if note)
    return f"{name} ({text})" if text else name


def configuration_labels(configurations: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    """For each (drafter, options), the drafter with the options that distinguish its namesakes."""
    names = [name for name, _ in configurations]
    options = [{k: as_typed(v) for k, v in given.items()} for _, given in configurations]
    return list(map(noted, names, distinguish(names, options)))


def cell_labels(cells: Sequence[Cell]) -> dict[str, str]:
    """By id, the label of each cell's drafter."""
    labels = configuration_labels([(cell.drafter, cell.options) for cell in cells])
    return {cell.id: label for cell, label in zip(cells, labels, strict=True)}


def row_labels(entries: Sequence[Entry]) -> list[str]:
    """One label per entry, the same for all cells of one drafter configuration.

    It is the drafter's name, followed by the settings in which configurations of one drafter
    differ, and by the run if two runs have the same cell (a baseline, for example).
    """
    keys = [settings_key(e.cell, frozenset(vars(e.cell)) - DRAFTER_SETTINGS) for e in entries]
    cells = [entry.cell for entry in entries]
    configurations = dict(zip(keys, cells, strict=True)).values()
    alike = Counter((cell.drafter, repr(_chosen(cell))) for cell in configurations)
    unclear = {drafter for (drafter, _), count in alike.items() if count > 1}
    settings = [_chosen(c) | (_derived(c) if c.drafter in unclear else {}) for c in cells]
    notes = distinguish([cell.drafter for cell in cells], settings)
    places = Counter((key, cell.suite) for key, cell in zip(keys, cells, strict=True))
    repeated = {key for (key, _), count in places.items() if count > 1}
    return [
        noted(
            entry.cell.drafter,
            note,
            "" if entry.cell.lossless else "lossy rule",
            f"run {entry.run}" if key in repeated else "",
        )
        for entry, key, note in zip(entries, keys, notes, strict=True)
    ]


def _chosen(cell: Cell) -> dict[str, str]:
    chosen = {key: as_typed(value) for key, value in sorted(cell.options.items())}
    if cell.draft_model is not None and cell.draft_model.name not in chosen.values():
        chosen["draft"] = cell.draft_model.name
    return chosen


def _derived(cell: Cell) -> dict[str, str]:
    """What follows from the options; it is shown only where they do not distinguish drafters."""
    draft = cell.draft_model
    return {
        "width": str(cell.width),
        "rule": cell.rule,
        "revision": str(draft and draft.revision),
        "weights": short(draft and draft.sha256),
    }
