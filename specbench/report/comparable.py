"""Which cells may stand in one table, and what is said if they may not."""

import hashlib
import json
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import fields
from functools import partial
from itertools import combinations
from typing import Literal

from specbench.errors import UserError
from specbench.records.machine import machine_id
from specbench.records.records import Cell
from specbench.report.labels import short
from specbench.report.runs import DRAFTER_SETTINGS, Entry, group_by, settings_key

SUITE_SETTINGS = frozenset({"suite", "suite_hash", "sample_ids", "max_new_tokens"})
TABLE_SETTINGS = frozenset(f.name for f in fields(Cell)) - DRAFTER_SETTINGS - SUITE_SETTINGS
SEPARATING = frozenset({"target", "device"})
"""Settings whose difference makes another table but no error: target and device."""
Unlike = Literal["separate", "refuse", "together"]


def grouped(entries: Sequence[Entry], unlike: Unlike) -> list[list[Entry]]:
    """The entries of each table.

    The cells of a table share their environment and all settings except those of the drafter; the
    settings of the suite are shared within a column. With "together", cells of different runs only
    share the target.

    Raises:
        UserError: with "refuse", runs on one target differ in settings; the settings are named.
    """
    if unlike == "refuse":
        _refuse_unlike(entries)
    key = _by_run if unlike == "together" else _by_settings
    groups: dict[tuple[str, int], list[Entry]] = {}
    variants: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        table, column, choice = key(entry)
        choices = variants.setdefault((table, column), [])
        if choice not in choices:
            choices.append(choice)
        groups.setdefault((table, choices.index(choice)), []).append(entry)
    return list(groups.values())


def differences(entries: Sequence[Entry]) -> list[str]:
    """The settings in which the runs of one table differ, one text per setting."""
    found = _differing(entries, TABLE_SETTINGS)
    for suite, column in group_by(entries, lambda e: e.cell.suite).items():
        found |= _differing(column, SUITE_SETTINGS, f" on {suite}")
    machines = _runs(entries, lambda e: machine_id(e.manifest.environment))
    if len(machines) > 1:
        found["machine"] = machines
    return [f"{name}: {_listed(values)}" for name, values in found.items()]


def chosen(cell: Cell) -> str:
    """Six hex digits over the ids of the chosen prompts."""
    return hashlib.sha256("\n".join(cell.sample_ids).encode()).hexdigest()[:6]


def _by_settings(entry: Entry) -> tuple[str, str, str]:
    """(table, column, suite settings) of an entry.

    Entries of one column whose suite settings differ go to separate tables.
    """
    table = settings_key(entry.cell, DRAFTER_SETTINGS | SUITE_SETTINGS)
    table += json.dumps(entry.manifest.environment, sort_keys=True)
    return table, entry.cell.suite, settings_key(entry.cell, DRAFTER_SETTINGS | TABLE_SETTINGS)


def _by_run(entry: Entry) -> tuple[str, str, str]:
    """The key under --force: only the target separates tables.

    The cells of one run never share a column.
    """
    column = f"{entry.folder} {entry.cell.suite}"
    return repr(entry.cell.target), column, settings_key(entry.cell, DRAFTER_SETTINGS)


def _refuse_unlike(entries: Sequence[Entry]) -> None:
    runs = group_by(entries, lambda e: e.run)
    for (first, one), (second, other) in combinations(runs.items(), 2):
        unlike = _unlike(one, other)
        if unlike:
            raise UserError(
                f"{first} and {second} differ in {', '.join(unlike)}: report them one at a "
                "time, or put them side by side with --force."
            )


def _unlike(one: Sequence[Entry], other: Sequence[Entry]) -> list[str]:
    """Settings, with their values, that keep cells of two runs from standing side by side."""
    for first, second in _shared(one, other, lambda e: e.cell.target):
        found = _apart(first, second, TABLE_SETTINGS - SEPARATING)
        for column, beside in _shared(first, second, lambda e: e.cell.suite):
            found |= _apart(column, beside, SUITE_SETTINGS, f" on {column[0].cell.suite}")
        if found:
            return [f"{name} ({' and '.join(values)})" for name, values in found.items()]
    return []


def _shared(
    one: Sequence[Entry], other: Sequence[Entry], key: Callable[[Entry], Hashable]
) -> list[tuple[list[Entry], list[Entry]]]:
    """The entries of both runs under each key that both have."""
    ours, theirs = group_by(one, key), group_by(other, key)
    return [(found, theirs[value]) for value, found in ours.items() if value in theirs]


def _apart(
    one: Sequence[Entry], other: Sequence[Entry], names: frozenset[str], where: str = ""
) -> dict[str, dict[str, list[str]]]:
    """The settings in which two runs differ; none if some cells of both agree in all of them."""
    rest = frozenset(f.name for f in fields(Cell)) - names
    ours, theirs = ({settings_key(e.cell, rest) for e in run} for run in (one, other))
    return {} if ours & theirs else _differing([*one, *other], names, where)


def _differing(
    entries: Sequence[Entry], names: frozenset[str], where: str = ""
) -> dict[str, dict[str, list[str]]]:
    """By setting with several values, the runs by value."""
    values = {name: _runs(entries, partial(_text, name)) for name in sorted(names)}
    return {f"{name}{where}": runs for name, runs in values.items() if len(runs) > 1}


def _runs(entries: Iterable[Entry], text: Callable[[Entry], str]) -> dict[str, list[str]]:
    """By value of a setting, the runs that have it."""
    found = group_by(entries, text)
    return {value: list(dict.fromkeys(e.run for e in same)) for value, same in found.items()}


def _listed(values: dict[str, list[str]]) -> str:
    return ", ".join(f"{value} in {' and '.join(runs)}" for value, runs in values.items())


def _text(name: str, entry: Entry) -> str:
    cell = entry.cell
    if name == "sample_ids":
        return f"{len(cell.sample_ids)} prompts, choice {chosen(cell)}"
    return short(getattr(cell, name))
