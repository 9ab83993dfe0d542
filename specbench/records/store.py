"""The folder of a run: its lock, what it already holds, and how a line is written."""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Collection
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
    """The open folder of one run, locked against a second writer until `close`.

    A sample that is measured before its baseline cannot be judged yet. It is held in a file of
    its own, so that a kill does not lose it, and moves to the samples together with its verdict.

    Attributes:
        fresh: whether the folder held no run before.
        interrupted: whether an earlier process did not reach `finish`.
        done: the stored samples by key.
        held: samples that wait for their baseline, by key.
        traced: keys of the answers that were traced.

    Raises:
        UserError: another process writes to the folder, it holds another run, or it cannot be
            written. Any method raises this if the disk is full; the stored samples are kept.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._samples = _open_locked(folder / SAMPLES)
        except OSError as error:
            raise UserError(
                f"{folder} cannot be created or written ({error.strerror}): give another --out."
            ) from error
        self.fresh = not (folder / MANIFEST).exists()
        if self.fresh:
            if (folder / SAMPLES).stat().st_size:
                raise UserError(
                    f"{folder} holds {SAMPLES} but no {MANIFEST}, so the cells of the samples are "
                    "unknown: give another --out."
                )
            _write_atomically(folder / MANIFEST, manifest_to_json(manifest))
        self.manifest = load_manifest(folder)
        change = _first_change(self.manifest, manifest)
        if change is not None:
            raise UserError(
                f"{folder} holds another run ({change}): give another --out, or repeat the command "
                f"that began it: {self.manifest.command}"
            )
        self.interrupted = (folder / HELD).exists()
        for name in (SAMPLES, HELD, TRACES):
            jsonl.cut_torn_line(folder / name)
        self.done: dict[Key, Sample] = {sample.key: sample for sample in load_samples(folder)}
        _refuse_unknown_cells(folder, self.manifest, self.done)
        waiting = (sample for sample in load_samples(folder, HELD) if sample.key not in self.done)
        self.held: dict[Key, Sample] = {sample.key: sample for sample in waiting}
        self.traced = {(t.cell, t.sample, t.turn) for t in load_traces(folder)}

    def begin(self, asked: Manifest) -> None:
        """Mark the run as interrupted until `finish`.

        Raises:
            UserError: hardware, threads or versions differ from those at the start of the run.
                Samples from two machines must not be mixed in one run.
        """
        changes = differences(self.manifest.environment, asked.environment)
        if changes:
            raise UserError(
                f"The run in {self.folder} began in another environment ({'; '.join(changes)}):",
                "continue it there, or start a new run with another --out.",
            )
        (self.folder / HELD).touch()

    def append(self, sample: Sample) -> None:
        """Put a finished sample on disk before returning."""
        _append(self._samples, jsonl.to_line(sample))
        self.done[sample.key] = sample
        if self.held.pop(sample.key, None) and not self.held:
            os.truncate(self.folder / HELD, 0)

    def hold(self, sample: Sample) -> None:
        """Put a sample that waits for its baseline on disk."""
        self._add(HELD, jsonl.to_line(sample))
        self.held[sample.key] = sample

    def trace(self, trace: Trace) -> None:
        """Put the trace of an answer on disk."""
        self._add(TRACES, jsonl.to_line(trace))
        self.traced.add((trace.cell, trace.sample, trace.turn))

    def _add(self, name: str, line: str) -> None:
        with (self.folder / name).open("ab", buffering=0) as file:
            _append(file, line)

    def forget(self, keys: Collection[Key]) -> None:
        """Drop stored samples, so that they are measured again."""
        if not keys:
            return
        kept = {key: sample for key, sample in self.done.items() if key not in keys}
        path = self.folder / SAMPLES
        temporary = path.with_suffix(".new")
        temporary.unlink(missing_ok=True)
        # Locked before it replaces the old file, so that no other process can lock it in between.
        file = _open_locked(temporary)
        for sample in kept.values():
            _append(file, jsonl.to_line(sample))
        temporary.replace(path)
        self._samples.close()
        self._samples, self.done = file, kept

    def cell(self, asked: Cell) -> Cell:
        """Return this run's cell for the requested one, whether or not either could be bound."""
        if asked.id in self.manifest.cells:
            return asked
        return _by_asked(self.manifest)[asked.asked.id]

    def adopt(self, asked: Manifest) -> None:
        """Replace cells that could not be bound by those of ``asked``, and drop their failures."""
        fresh = _by_asked(asked)
        cells = [
            cell if cell.bound else fresh[cell.asked.id] for cell in self.manifest.cells.values()
        ]
        manifest = replace(self.manifest, cells={cell.id: cell for cell in cells})
        gone = self.manifest.cells.keys() - manifest.cells.keys()
        if gone:
            # This order matters: after a kill in between, the run just lacks those samples.
            self.forget({key for key in self.done if key[0] in gone})
            _write_atomically(self.folder / MANIFEST, manifest_to_json(manifest))
            self.manifest = manifest

    def finish(self) -> None:
        """Mark the run as finished: only the manifest, the samples and the traces remain."""
        (self.folder / HELD).unlink()

    def close(self) -> None:
        """Release the lock."""
        self._samples.close()


def _open_locked(path: Path) -> FileIO:
    # Unbuffered, because closing a buffered file would write the rest after a failure.
    file = path.open("a+b", buffering=0)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise UserError(
            f"Another process is writing to {path.parent}: wait for it, or give another --out."
        ) from None
    return file


def _append(file: FileIO, text: str) -> None:
    try:
        jsonl.append(file, text)
    except OSError as error:
        raise _unwritable(Path(str(file.name)).parent, error) from error


def _unwritable(folder: Path, error: OSError) -> UserError:
    return UserError(
        f"{folder} cannot be written ({error.strerror}): the samples measured before are kept;",
        "free some space and repeat the command to continue.",
    )


def _write_atomically(path: Path, text: str) -> None:
    """Write the whole file or nothing, even if the process is killed."""
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


def _refuse_unknown_cells(folder: Path, manifest: Manifest, keys: Collection[Key]) -> None:
    for cell, name, _ in keys:
        if cell not in manifest.cells:
            raise UserError(
                f"{folder} has sample {name} of cell {cell}, which its {MANIFEST} does not name: "
                "give another --out."
            )


def _by_asked(manifest: Manifest) -> dict[str, Cell]:
    """Return cells by the id of the requested cell, which binding does not change."""
    return {cell.asked.id: cell for cell in manifest.cells.values()}


def _first_change(stored: Manifest, asked: Manifest) -> str | None:
    """Describe the first setting in which two runs differ, apart from what only binding can tell.

    Without any the result is None.
    """
    # Samples refer to cells by id, so the ids must be those that this version computes.
    if any(key != cell.id for key, cell in stored.cells.items()):
        return "its cells have other ids"
    before, after = _by_configuration(stored), _by_configuration(asked)
    for key in before.keys() | after.keys():
        if key not in before or key not in after:
            where = "stored" if key in before else "requested"
            return f"{key[0]} on {key[1]} is only {where}"
        cells = before[key], after[key]
        if not all(cell.bound for cell in cells):
            cells = cells[0].asked, cells[1].asked
        if cells[0].id != cells[1].id:
            old, new = map(_facts, cells)
            name = next(name for name in old if old[name] != new[name])
            return f"{name} of {key[0]} on {key[1]}: {old[name]} stored, {new[name]} requested"
    return None


def _by_configuration(manifest: Manifest) -> dict[tuple[str, str, int], Cell]:
    """Return cells by drafter, suite, and number of the configuration of this drafter."""
    numbered: dict[tuple[str, str, int], Cell] = {}
    counts: Counter[tuple[str, str]] = Counter()
    # The order in which configurations are requested makes no other run.
    for cell in sorted(manifest.cells.values(), key=lambda cell: cell.asked.id):
        pair = cell.drafter, cell.suite
        numbered[(*pair, counts[pair])] = cell
        counts[pair] += 1
    return numbered


def _facts(cell: Cell) -> dict[str, str]:
    facts = asdict(cell) | {"sample_ids": ", ".join(cell.sample_ids)}
    return {name: str(fact) for name, fact in facts.items()}
