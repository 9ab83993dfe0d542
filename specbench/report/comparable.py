"""Which cells may stand in one table, and what is said if they may not."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import combinations
from typing import Literal

from specbench.errors import UserError
from specbench.records.machine import machine_id
from specbench.records.records import Cell
from specbench.report.runs import DRAFTER_SETTINGS, Entry, settings_key

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
    texts = []
    for name in sorted(TABLE_SETTINGS):
        texts += _difference(name, entries)
    for suite in dict.fromkeys(e.cell.suite for e in entries):
        for name in sorted(SUITE_SETTINGS - {"suite"}):
            texts += _difference(name, [e for e in entries if e.cell.suite == suite], suite)
    machines = _values((e.run, machine_id(e.manifest.environment)) for e in entries)
    return texts + ([f"machine: {_listed(machines)}"] if len(machines) > 1 else [])


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
    runs: dict[str, list[Entry]] = {}
    for entry in entries:
        runs.setdefault(entry.run, []).append(entry)
    for (first, one), (second, other) in combinations(runs.items(), 2):
        unlike = _unlike(one, other)
        if unlike:
            raise UserError(
                f"{first} and {second} differ in {', '.join(unlike)}: report them one at a "
                "time, or put them side by side with --force."
            )


def _unlike(one: Sequence[Entry], other: Sequence[Entry]) -> list[str]:
    """Settings, with both values, that keep cells of two runs from standing side by side."""
    for target in {e.cell.target for e in one} & {e.cell.target for e in other}:
        first, second = ([e for e in run if e.cell.target == target] for run in (one, other))
        found = _apart(first, second, TABLE_SETTINGS - SEPARATING)
        for suite in {e.cell.suite for e in first} & {e.cell.suite for e in second}:
            column, beside = ([e for e in r if e.cell.suite == suite] for r in (first, second))
            found += _apart(column, beside, SUITE_SETTINGS, f" on {suite}")
        if found:
            return found
    return []


def _apart(
    one: Sequence[Entry], other: Sequence[Entry], names: frozenset[str], where: str = ""
) -> list[str]:
    rest = frozenset(f.name for f in fields(Cell)) - names
    if {settings_key(e.cell, rest) for e in one} & {settings_key(e.cell, rest) for e in other}:
        return []
    first, second = one[0].cell, other[0].cell
    return [
        f"{name}{where} ({_text(first, name)} and {_text(second, name)})"
        for name in sorted(names)
        if getattr(first, name) != getattr(second, name)
    ]


def _difference(name: str, entries: Iterable[Entry], where: str = "") -> list[str]:
    values = _values((e.run, _text(e.cell, name)) for e in entries)
    return [f"{name}{where and f' on {where}'}: {_listed(values)}"] if len(values) > 1 else []


def _values(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for run, value in dict.fromkeys(pairs):
        values.setdefault(value, []).append(run)
    return values


def _listed(values: dict[str, list[str]]) -> str:
    return ", ".join(f"{value} in {' and '.join(runs)}" for value, runs in values.items())


def _text(cell: Cell, name: str) -> str:
    if name == "sample_ids":
        return f"{len(cell.sample_ids)} prompts, choice {chosen(cell)}"
    value = str(getattr(cell, name))
    return value[:10] if name in {"suite_hash", "template"} else value
