"""Run folders as they are read for a report: every cell with its answers and its baseline."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specbench.errors import UserError
from specbench.records import MANIFEST, Cell, Manifest, Sample, load_manifest, load_samples

DRAFTER_SETTINGS = frozenset(
    {"drafter", "options", "draft_model", "width", "rule", "lossless", "details"}
)


@dataclass(frozen=True)
class Entry:
    """One cell of one run.

    Attributes:
        samples: its answers, failed ones too; one for each (sample, turn).
        baseline: the autoregressive answers of the same run under the same settings; None where
            the run has no such cell.
    """

    folder: Path
    manifest: Manifest
    cell_id: str
    cell: Cell
    samples: tuple[Sample, ...]
    baseline: tuple[Sample, ...] | None

    @property
    def is_baseline(self) -> bool:
        """Whether this is the autoregressive cell itself."""
        return is_baseline(self.cell)


def is_baseline(cell: Cell) -> bool:
    """Whether nothing is drafted, and so nothing accepted, in this cell."""
    return cell.rule == "none"


def run_folders(results: Path) -> list[Path]:
    """Every run folder directly below ``results``, in the order of their names.

    Raises:
        UserError: there is none.
    """
    folders = sorted(path.parent for path in results.glob(f"*/{MANIFEST}"))
    if not folders:
        raise UserError(f"{results} holds no run folder: name one, or run `specbench run` first.")
    return folders


def load_entries(folders: Iterable[Path]) -> list[Entry]:
    """All cells of all folders, in the order of the folders and of their manifests.

    Raises:
        UserError: a folder cannot be read, or two hold the same drafter's cell. A baseline may
            come with each run, since a speedup is only ever taken within one run.
    """
    entries: list[Entry] = []
    owner: dict[str, Path] = {}
    for folder in folders:
        for entry in _load(folder):
            if entry.is_baseline:
                entries.append(entry)
                continue
            if entry.cell_id in owner:
                raise UserError(
                    f"{entry.cell.drafter} on {entry.cell.suite} is in both "
                    f"{owner[entry.cell_id]} and {folder} with the same settings: report them one "
                    "at a time."
                )
            owner[entry.cell_id] = folder
            entries.append(entry)
    return entries


def _load(folder: Path) -> list[Entry]:
    if not folder.is_dir():
        raise UserError(f"{folder} is not a run folder: there is no such folder.")
    try:
        manifest = load_manifest(folder)
        samples = _by_cell(folder, manifest)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{folder} cannot be read: {error}.") from error
    arms = {
        _settings(cell): samples[key] for key, cell in manifest.cells.items() if is_baseline(cell)
    }
    return [
        Entry(folder, manifest, key, cell, samples[key], arms.get(_settings(cell)))
        for key, cell in manifest.cells.items()
    ]


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
                f"{sample.cell}, where one is right: make the run anew."
            )
        cells[sample.cell][sample.sample, sample.turn] = sample
    return {key: tuple(group.values()) for key, group in cells.items()}


def _settings(cell: Cell) -> str:
    """What a drafter's cell shares with its baseline, as a key."""
    return settings_key(cell, DRAFTER_SETTINGS)


def settings_key(cell: Cell, without: frozenset[str]) -> str:
    """All settings of a cell but some, as a key; a setting added to `Cell` later is in it."""
    kept: dict[str, Any] = {k: v for k, v in asdict(cell).items() if k not in without}
    return repr(sorted(kept.items()))
