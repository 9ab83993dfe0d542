"""An append-only history of runs, keyed by commit, and where its figures changed.

``history.jsonl`` holds one `Point` a line: a run's headline figures, its commit and its machine.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specbench.errors import UserError
from specbench.records.records import Cell
from specbench.report.labels import row_labels
from specbench.report.runs import load_entries, settings_key
from specbench.stats import metrics

SCHEMA = 1
FILE = "history.jsonl"
FIGURES = ("AAL", "speedup")
PENALTY = 12.0
"""Squared error, in units of the noise, that a new level must save."""
MACHINE = ("cpu", "gpu", "threads")
"""Facts that make two machines one for a trend of speed."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Point:
    """One cell's figure in one run.

    Attributes:
        commit: of the code that ran, None outside a repository.
        created: ISO time of the run.
        machine: what the figure was measured on; a trend of speed is one machine's.
        figure: "AAL" or "speedup".
        value, low, high, n: the estimate.
        settings: six hex digits over all settings of the cell but the draft's weights; figures
            under different ones are of different series.
    """

    commit: str | None
    created: str
    run: str
    machine: str
    target: str
    drafter: str
    suite: str
    figure: str
    value: float
    low: float | None
    high: float | None
    n: int
    schema: int = SCHEMA
    settings: str = ""

    @property
    def series(self) -> tuple[str, ...]:
        """What it is a point of; the machine matters to speed only."""
        machine = self.machine if self.figure == "speedup" else ""
        return self.target, self.suite, self.figure, self.drafter, machine, self.settings


def read(folder: Path) -> list[Point]:
    """All points in the order they were added; none where there is no history yet.

    Raises:
        UserError: a line that cannot be read; it is named.
    """
    path = folder / FILE
    if not path.exists():
        return []
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    points = []
    for number, line in enumerate(lines, 1):
        try:
            point = Point(**json.loads(line))
            if point.schema != SCHEMA:
                raise ValueError(f"it has schema {point.schema}, this version reads {SCHEMA}")
            points.append(point)
        except (ValueError, TypeError) as error:
            raise UserError(
                f"{path}, line {number}, cannot be read ({error}): take that line out."
            ) from error
    return points


def add(folder: Path, run: Path) -> int:
    """Append the figures of ``run``; how many there were. A run is added once.

    Raises:
        UserError: the run cannot be read, has no figure or is in the history already, or the
            folder cannot be written.
    """
    points = list(_points(run))
    if not points:
        raise UserError(f"{run} has no drafter with an answer, so there is no figure to add.")
    known = {(p.commit, p.created, p.run) for p in read(folder)}
    if any((p.commit, p.created, p.run) in known for p in points):
        raise UserError(f"{run} is in {folder / FILE} already: a history is only added to.")
    lines = "".join(json.dumps(asdict(point)) + "\n" for point in points)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / FILE).open("a", encoding="utf-8") as file:
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise UserError(f"{folder / FILE} cannot be written: {error.strerror}.") from error
    return len(points)


def series(points: Iterable[Point]) -> dict[tuple[str, ...], list[Point]]:
    """Points by what they are of, in the order in which the runs were made."""
    found: dict[tuple[str, ...], list[Point]] = {}
    for point in sorted(points, key=lambda point: point.created):
        found.setdefault(point.series, []).append(point)
    return found


def several_settings(points: Iterable[Point], one: Point) -> bool:
    """Whether what has the name of ``one`` was run under different settings."""
    name = one.target, one.suite, one.drafter
    return len({p.settings for p in points if (p.target, p.suite, p.drafter) == name}) > 1


def change_points(points: list[Point]) -> list[int]:
    """Indices at which a new level begins.

    The piecewise constant fit with the least squared error plus a penalty for each change
    (optimal partitioning, Jackson et al. 2005), both in units of the noise: the larger of what
    the intervals say and of what neighbours differ by. It is fitted to medians of three
    neighbours, so that one slow run is no level: a level has at least two. In simulation an
    unchanging series of 5 to 50 points shows a change in at most 6 % of cases, with Gaussian
    noise, heavy tails (Student's t with 3 degrees) or an outlier in 20 alike; noise that drifts
    shows more.
    """
    values = np.array([point.value for point in points])
    if len(values) < 3:
        return []
    noise = max(_interval_noise(points), _neighbour_noise(values), 1e-6 * float(abs(values).max()))
    middles = np.median(np.stack([values[:-2], values[1:-1], values[2:]]), axis=0)
    return _partition(np.pad(middles, 1, mode="edge") / noise, PENALTY)


def _partition(values: Array, penalty: float) -> list[int]:
    n = len(values)
    sums = np.concatenate([[0.0], values.cumsum()])
    squares = np.concatenate([[0.0], (values**2).cumsum()])
    best, last = np.zeros(n + 1), np.zeros(n + 1, dtype=int)
    best[0] = -penalty
    for end in range(1, n + 1):
        starts = np.arange(end)
        lengths = end - starts
        cost = squares[end] - squares[:end] - (sums[end] - sums[:end]) ** 2 / lengths
        total = best[:end] + cost + penalty
        last[end] = int(total.argmin())
        best[end] = total[last[end]]
    changes, end = [], n
    while last[end] > 0:
        end = int(last[end])
        changes.append(end)
    return changes[::-1]


def _interval_noise(points: list[Point]) -> float:
    """Median standard error of the points, by their 95 % intervals."""
    halves = [(p.high - p.low) / 2 for p in points if p.high is not None and p.low is not None]
    return float(np.median(halves)) / 1.96 if halves else 0.0


def _neighbour_noise(values: Array) -> float:
    """Standard deviation by the median step between neighbours, which a level change leaves be."""
    return float(np.median(abs(np.diff(values)))) / (0.6745 * 2**0.5)


def _points(run: Path) -> Iterable[Point]:
    entries = load_entries([run])
    for label, entry in zip(row_labels(entries), entries, strict=True):
        if entry.is_baseline:
            continue
        figures = {
            "AAL": metrics.estimate_pooled_aal(entry.samples),
            "speedup": metrics.estimate_speedup(entry.baseline or (), entry.samples),
        }
        facts = entry.manifest.environment
        for figure, estimate in figures.items():
            if estimate.value is None:
                continue
            yield Point(
                commit=facts.get("commit"),
                created=entry.manifest.created,
                run=entry.manifest.run,
                machine=_machine(facts),
                target=entry.cell.target.name,
                drafter=label,
                suite=entry.cell.suite,
                figure=figure,
                value=estimate.value,
                low=None if estimate.interval is None else estimate.interval[0],
                high=None if estimate.interval is None else estimate.interval[1],
                n=estimate.n,
                settings=_settings(entry.cell),
            )


def _settings(cell: Cell) -> str:
    """Another draft's weights are what a trend is for, and no other settings."""
    kept = settings_key(
        replace(cell, draft_model=None), frozenset({"width", "lossless", "details"})
    )
    return hashlib.sha256(kept.encode()).hexdigest()[:6]


def _machine(facts: dict[str, Any]) -> str:
    return ", ".join(f"{key} {facts[key]}" for key in MACHINE if facts.get(key) is not None)
