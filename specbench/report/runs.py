"""Run folders, read for a report: every cell with its answers and its baseline."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from specbench.errors import UserError
from specbench.records.machine import machine_id
from specbench.records.records import MANIFEST, Cell, Manifest, Sample, load_manifest, load_samples
from specbench.records.traces import Split, load_traces, split
from specbench.stats.metrics import Answers, ok

DRAFTER_SETTINGS = frozenset(
    {"drafter", "role", "options", "draft_model", "width", "rule", "lossless", "details"}
)
WORST_FIRST = ("broken", "lossy", "untested", "near-tie", "identical")
Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Entry:
    """One cell of one run.

    Attributes:
        run: the run's name in this report: its folder's name, or its path if two share a name.
        samples: its answers, failed ones included; one per (sample, turn).
        counted: the answers with status "ok", counted.
        baseline: the autoregressive answers of the same run under the same settings; None if the
            run has no such cell.
        traced: the time of a round by phase; None if no answer of the cell was traced.
    """

    folder: Path
    run: str
    manifest: Manifest
    cell_id: str
    cell: Cell
    samples: tuple[Sample, ...]
    counted: Answers
    baseline: Answers | None
    traced: Split | None

    @property
    def is_baseline(self) -> bool:
        """Whether this is the autoregressive cell."""
        return self.cell.role == "baseline"

    @property
    def is_method(self) -> bool:
        """Whether it may be ranked: neither the baseline nor a control (self-test, oracle)."""
        return self.cell.role == "method"

    @cached_property
    def verdicts(self) -> dict[str, list[Sample]]:
        """The ok answers by kind of verdict, worst first; the baseline's have none."""
        answers = [] if self.is_baseline else ok(self.samples)
        found = group_by(answers, lambda s: s.verdict.kind if s.verdict else "untested")
        return {kind: found[kind] for kind in WORST_FIRST if kind in found}

    @cached_property
    def lossless(self) -> str:
        """The worst verdict. A rule that changes the distribution is lossy whatever it shows."""
        if self.is_baseline:
            return "identical"
        kinds = {*(self.verdicts or ["untested"]), *([] if self.cell.lossless else ["lossy"])}
        return next(kind for kind in WORST_FIRST if kind in kinds)


def run_folders(results: Path) -> list[Path]:
    """Every run folder directly below ``results``, in the order of their names.

    Raises:
        UserError: there is none.
    """
    folders = sorted(path.parent for path in results.glob(f"*/{MANIFEST}"))
    if not folders:
        raise UserError(f"{results} holds no run folder: name one, or run `specbench run` first.")
    return folders


def load_entries(folders: Sequence[Path], *, newest: bool = False) -> list[Entry]:
    """All cells of all folders, in the order of the folders and of their manifests.

    Two runs may hold the same cell. With ``newest``, of several measurements of a cell on the same
    machine only the last is kept; each drafter keeps the baseline of its own run.

    Raises:
        UserError: a folder cannot be read, or is named twice.
    """
    named = [folder.resolve() for folder in folders]
    for folder in folders:
        if named.count(folder.resolve()) > 1:
            raise UserError(f"{folder} is named twice: name each run folder once.")
    names = [folder.name for folder in named]
    entries = [
        replace(entry, run=name if names.count(name) == 1 else str(folder))
        for folder, name in zip(folders, names, strict=True)
        for entry in _load(folder)
    ]
    return _newest(entries) if newest else entries


def _newest(entries: Sequence[Entry]) -> list[Entry]:
    oldest_first = sorted(entries, key=lambda e: e.manifest.created)
    last = {(e.cell_id, machine_id(e.manifest.environment)): e for e in oldest_first}
    kept = set(map(id, last.values()))
    return [entry for entry in entries if id(entry) in kept]


def _load(folder: Path) -> list[Entry]:
    if not folder.is_dir():
        raise UserError(f"{folder} is not a run folder: there is no such folder.")
    try:
        manifest = load_manifest(folder)
        samples = _by_cell(folder, manifest)
        traces = list(load_traces(folder))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{folder} cannot be read: {error}.") from error
    counted = {key: Answers.of(group) for key, group in samples.items()}
    shared = {key: settings_key(cell, DRAFTER_SETTINGS) for key, cell in manifest.cells.items()}
    arms = {shared[k]: counted[k] for k, cell in manifest.cells.items() if cell.role == "baseline"}
    return [
        Entry(
            folder, folder.name, manifest, key, cell, samples[key], counted[key],
            arms.get(shared[key]), split(trace for trace in traces if trace.cell == key),
        )
        for key, cell in manifest.cells.items()
    ]  # fmt: skip


def _by_cell(folder: Path, manifest: Manifest) -> dict[str, tuple[Sample, ...]]:
    cells: dict[str, dict[tuple[str, int], Sample]] = {key: {} for key in manifest.cells}
    for sample in load_samples(folder):
        if sample.cell not in cells:
            raise UserError(
                f"{folder} has a sample of cell {sample.cell}, which its {MANIFEST} does not name."
            )
        if (sample.sample, sample.turn) in cells[sample.cell]:
            raise UserError(
                f"{folder} has two lines for sample {sample.sample}, turn {sample.turn}, of cell "
                f"{sample.cell}; one is allowed. Run it again into a new folder."
            )
        cells[sample.cell][sample.sample, sample.turn] = sample
    return {key: tuple(group.values()) for key, group in cells.items()}


def settings_key(cell: Cell, without: frozenset[str]) -> str:
    """All settings of a cell but some, as a key; a setting added to `Cell` later is in it."""
    return repr(sorted((k, v) for k, v in asdict(cell).items() if k not in without))


def group_by(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """The items of each key, in their order."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
