"""Names for rows and tables: no longer than needed to distinguish them."""

from collections.abc import Iterable, Sequence
from typing import Any

from specbench.inputs.options import as_typed
from specbench.records.records import Cell
from specbench.report.runs import DRAFTER_SETTINGS, Entry, settings_key


def distinguish(items: Sequence[dict[str, str]]) -> list[str]:
    """For each item, the settings in which the items differ: ``a=1, b=2``."""
    keys = dict.fromkeys(key for item in items for key in item)
    differing = [key for key in keys if len({item.get(key) for item in items}) > 1]
    return [", ".join(f"{k}={item[k]}" for k in differing if k in item) for item in items]


def configuration_labels(configurations: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    """For each (drafter, options), the drafter with the options that distinguish its namesakes."""
    labels = []
    for name, options in configurations:
        same = [other for known, other in configurations if known == name]
        texts = distinguish([{k: as_typed(v) for k, v in one.items()} for one in same])
        text = texts[same.index(options)]
        labels.append(f"{name} ({text})" if text else name)
    return labels


def cell_labels(cells: Sequence[Cell]) -> dict[str, str]:
    """By id, the label of each cell's drafter."""
    labels = configuration_labels([(cell.drafter, cell.options) for cell in cells])
    return {cell.id: label for cell, label in zip(cells, labels, strict=True)}


def row_labels(entries: Sequence[Entry]) -> list[str]:
    """One label per entry, the same for all cells of one drafter configuration.

    It is the drafter's name, followed by the settings in which configurations of one drafter
    differ, and by the run if two runs have the same cell (a baseline, for example).
    """
    by_drafter: dict[str, dict[str, Entry]] = {}
    for entry in entries:
        by_drafter.setdefault(entry.cell.drafter, {}).setdefault(_configuration(entry), entry)
    notes = {
        key: note
        for group in by_drafter.values()
        for key, note in zip(group, distinguish(_shown(group.values())), strict=True)
    }
    repeated = _repeated(entries)
    return [_label(e, notes[_configuration(e)], _configuration(e) in repeated) for e in entries]


def _label(entry: Entry, note: str, name_run: bool) -> str:
    notes = [
        note,
        "" if entry.cell.lossless else "lossy rule",
        f"run {entry.run}" if name_run else "",
    ]
    text = "; ".join(n for n in notes if n)
    return f"{entry.cell.drafter} ({text})" if text else entry.cell.drafter


def _shown(configurations: Iterable[Entry]) -> list[dict[str, str]]:
    """The options; width and rule, which follow from them, only if nothing else differs."""
    entries = list(configurations)
    chosen = [_chosen(entry) for entry in entries]
    if len({repr(c) for c in chosen}) == len(chosen):
        return chosen
    return [{**c, **_derived(entry)} for c, entry in zip(chosen, entries, strict=True)]


def _chosen(entry: Entry) -> dict[str, str]:
    chosen = {key: as_typed(value) for key, value in sorted(entry.cell.options.items())}
    draft = entry.cell.draft_model
    if draft is not None and draft.name not in chosen.values():
        chosen["draft"] = draft.name
    return chosen


def _derived(entry: Entry) -> dict[str, str]:
    draft = entry.cell.draft_model
    return {
        "width": str(entry.cell.width),
        "rule": entry.cell.rule,
        "revision": str(draft and draft.revision),
        "weights": str(draft and draft.sha256)[:10],
    }


def _configuration(entry: Entry) -> str:
    return settings_key(entry.cell, frozenset(vars(entry.cell)) - DRAFTER_SETTINGS)


def _repeated(entries: Sequence[Entry]) -> set[str]:
    seen: set[tuple[str, str]] = set()
    repeated: set[str] = set()
    for entry in entries:
        place = (_configuration(entry), entry.cell.suite)
        if place in seen:
            repeated.add(place[0])
        seen.add(place)
    return repeated
