"""A run's folder: who may write into it, what is already there, and how a line gets to disk."""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import asdict, replace
from io import FileIO
from pathlib import Path

from specbench.errors import UserError
from specbench.records import jsonl
from specbench.records.machine import differences
from specbench.records.records import (
    MANIFEST,
    SAMPLES,
    Cell,
    Manifest,
    Sample,
    load_manifest,
    load_samples,
    manifest_to_json,
)
from specbench.records.traces import TRACES, Trace, load_traces

HELD = "held.jsonl"
Key = tuple[str, str, int]


class Store:
    """The open folder of one run, locked against a second writer until `close` or the end.

    A speculative sample that comes before its baseline cannot be judged yet. It is held in a
    file of its own, so that a kill does not lose it, and moves to the samples with its verdict.

    Attributes:
        fresh: whether the run begins here.
        interrupted: whether an earlier process did not come to `finish`.
        done: the stored samples by key.
        held: samples that wait for their baseline, by key.
        traced: keys of the answers that were decoded under the probe.

    Raises:
        UserError: another process writes there, the folder holds another run, or it cannot be
            written. Any method raises it when the disk is full: what was stored before stays.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._samples = _open_locked(folder / SAMPLES)
        except OSError as error:
            raise UserError(
                f"{folder} cannot be made or written ({error.strerror}): give another --out."
            ) from error
        self.fresh = not (folder / MANIFEST).exists()
        if self.fresh:
            _refuse_samples_without_manifest(folder)
            _write_atomically(folder / MANIFEST, manifest_to_json(manifest))
        self.manifest = load_manifest(folder)
        _refuse_another_run(folder, self.manifest, manifest)
        self.interrupted = (folder / HELD).exists()
        for name in (SAMPLES, HELD, TRACES):
            jsonl.cut_torn_line(folder / name)
        self.done: dict[Key, Sample] = {sample.key: sample for sample in load_samples(folder)}
        _refuse_unknown_cells(folder, self.manifest, self.done)
        waiting = (sample for sample in load_samples(folder, HELD) if sample.key not in self.done)
        self.held: dict[Key, Sample] = {sample.key: sample for sample in waiting}
        self.traced = {(t.cell, t.sample, t.turn) for t in load_traces(folder)}

    def begin(self, asked: Manifest) -> None:
        """From here to `finish` the run counts as interrupted.

        Raises:
            UserError: hardware, threads or versions are not those of the run's beginning. Half a
                run from one machine and half from another is no measurement.
        """
        changes = differences(self.manifest.environment, asked.environment)
        if changes:
            raise UserError(
                f"The run in {self.folder} began somewhere else ({'; '.join(changes)}):",
                "continue it there, or start anew with another --out.",
            )
        (self.folder / HELD).touch()

    def append(self, sample: Sample) -> None:
        """Put a finished sample on disk before returning."""
        _append(self._samples, jsonl.to_line(sample))
        self.done[sample.key] = sample
        if self.held.pop(sample.key, None) and not self.held:
            os.truncate(self.folder / HELD, 0)

    def hold(self, sample: Sample) -> None:
        """Put a sample on disk that waits for its baseline."""
        self._add(HELD, jsonl.to_line(sample))
        self.held[sample.key] = sample

    def trace(self, trace: Trace) -> None:
        """Put on disk what the traced pass saw of an answer."""
        self._add(TRACES, jsonl.to_line(trace))
        self.traced.add((trace.cell, trace.sample, trace.turn))

    def _add(self, name: str, line: str) -> None:
        with (self.folder / name).open("ab", buffering=0) as file:
            _append(file, line)

    def forget(self, keys: Collection[Key]) -> None:
        """Drop stored samples, so that they are measured once more."""
        if not keys:
            return
        kept = {key: sample for key, sample in self.done.items() if key not in keys}
        path = self.folder / SAMPLES
        temporary = path.with_suffix(".new")
        temporary.unlink(missing_ok=True)
        # Locked before it takes the place of the old file, so that nobody comes in between.
        file = _open_locked(temporary)
        for sample in kept.values():
            _append(file, jsonl.to_line(sample))
        temporary.replace(path)
        self._samples.close()
        self._samples, self.done = file, kept

    def cell(self, asked: Cell) -> Cell:
        """The cell of this run that ``asked`` is, whichever of them was bound."""
        if asked.id in self.manifest.cells:
            return asked
        return _by_asked(self.manifest)[asked.asked.id]

    def adopt(self, asked: Manifest) -> None:
        """Take from ``asked`` the cells that could not be bound here, and drop their failures."""
        fresh = _by_asked(asked)
        cells = [
            cell if cell.bound else fresh[cell.asked.id] for cell in self.manifest.cells.values()
        ]
        manifest = replace(self.manifest, cells={cell.id: cell for cell in cells})
        gone = self.manifest.cells.keys() - manifest.cells.keys()
        if gone:
            # In this order: killed in between, it is a run that lacks those samples.
            self.forget({key for key in self.done if key[0] in gone})
            _write_atomically(self.folder / MANIFEST, manifest_to_json(manifest))
            self.manifest = manifest

    def finish(self) -> None:
        """Leave only the manifest, the samples and the traces."""
        (self.folder / HELD).unlink()

    def close(self) -> None:
        """Give up the lock."""
        self._samples.close()


def _open_locked(path: Path) -> FileIO:
    # Unbuffered: after a failed write nothing is left that closing would write again.
    file = path.open("a+b", buffering=0)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise UserError(
            f"Another process is writing to {path.parent}: wait for it, or give --out DIR."
        ) from None
    return file


def _append(file: FileIO, text: str) -> None:
    try:
        jsonl.append(file, text)
    except OSError as error:
        raise _unwritable(Path(str(file.name)).parent, error) from error


def _unwritable(folder: Path, error: OSError) -> UserError:
    return UserError(
        f"{folder} cannot be written ({error.strerror}): what was measured before is kept;",
        "make room, and the same command goes on.",
    )


def _write_atomically(path: Path, text: str) -> None:
    """The whole file or none of it, whenever the process is killed."""
    temporary = path.with_suffix(".new")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise _unwritable(path.parent, error) from error


def _refuse_samples_without_manifest(folder: Path) -> None:
    if (folder / SAMPLES).stat().st_size:
        raise UserError(
            f"{folder} holds {SAMPLES} but no {MANIFEST}, so nobody knows what they belong to: "
            "take another --out."
        )


def _refuse_unknown_cells(folder: Path, manifest: Manifest, keys: Collection[Key]) -> None:
    for cell, name, _ in keys:
        if cell not in manifest.cells:
            raise UserError(
                f"{folder} has sample {name} of a cell {cell} that its {MANIFEST} does not name: "
                "take another --out."
            )


def _refuse_another_run(folder: Path, stored: Manifest, asked: Manifest) -> None:
    if not _is_same_run(stored, asked):
        raise UserError(
            f"{folder} holds another run ({_first_change(stored, asked)}):",
            "take another --out, or the command that began it: " + stored.command,
        )


def _is_same_run(stored: Manifest, asked: Manifest) -> bool:
    """Whether their cells differ in nothing but what a drafter tells that only one could bind."""
    before, after = _by_asked(stored), _by_asked(asked)
    # Samples are found by ids, so those of a manifest with other fields do not do.
    return (
        all(key == cell.id for key, cell in stored.cells.items())
        and before.keys() == after.keys()
        and all(
            cell.id == after[key].id or not (cell.bound and after[key].bound)
            for key, cell in before.items()
        )
    )


def _by_asked(manifest: Manifest) -> dict[str, Cell]:
    """Cells by the id of what was asked for, which binding does not change."""
    return {cell.asked.id: cell for cell in manifest.cells.values()}


def _first_change(stored: Manifest, asked: Manifest) -> str:
    """The first setting in which two runs differ."""
    before, after = (_by_place(manifest.cells.values()) for manifest in (stored, asked))
    for key in before.keys() | after.keys():
        if key not in before or key not in after:
            where = "there" if key in before else "asked for"
            return f"{key[0]} on {key[1]} is only {where}"
        cells = before[key], after[key]
        if not all(cell.bound for cell in cells):
            cells = cells[0].asked, cells[1].asked
        others = _facts(cells[1])
        for name, value in _facts(cells[0]).items():
            other = others[name]
            if value != other:
                return f"{name} of {key[0]} on {key[1]}: {value} there, {other} asked for"
    return "other cells"


def _by_place(cells: Iterable[Cell]) -> dict[tuple[str, str, int], Cell]:
    """Cells by drafter, suite, and which of this drafter's configurations it is."""
    found: dict[tuple[str, str, int], Cell] = {}
    seen: Counter[tuple[str, str]] = Counter()
    for cell in cells:
        place = cell.drafter, cell.suite
        found[(*place, seen[place])] = cell
        seen[place] += 1
    return found


def _facts(cell: Cell) -> dict[str, object]:
    ids = ", ".join(cell.sample_ids)
    return asdict(replace(cell, sample_ids=())) | {"sample_ids": ids}
