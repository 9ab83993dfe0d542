"""An append-only history of runs, keyed by commit, and where its figures changed.

``history.jsonl`` holds one `Point` per line: a headline figure of a run, its commit and machine.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from specbench.errors import UserError, writing
from specbench.records import jsonl
from specbench.records.machine import machine_id
from specbench.records.records import Cell
from specbench.report.labels import noted, row_labels
from specbench.report.runs import group_by, load_entries, settings_key
from specbench.stats import metrics
from specbench.stats.bootstrap import Array

SCHEMA = 1
FILE = "history.jsonl"
FIGURES = ("AAL", "speedup")
PENALTY = 12.0
"""Squared error, in units of the noise, that a new level must save."""


@dataclass(frozen=True)
class Point:
    """One cell's figure in one run.

    Attributes:
        commit: of the code that ran; None outside a repository.
        created: ISO time of the run.
        machine: the machine that the figure was measured on, as `_machine` names it.
        figure: "AAL" or "speedup".
        value, low, high, n: the estimate.
        settings: six hex digits over the settings of the cell, see `_settings`.
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
        """The series it belongs to; a series of speed is that of one machine."""
        machine = self.machine if self.figure == "speedup" else ""
        return self.target, self.suite, self.figure, self.drafter, machine, self.settings


def read(folder: Path) -> list[Point]:
    """All points in the order in which they were added; [] if there is no history yet.

    Raises:
        UserError: a line that cannot be read; it is named.
    """
    return list(jsonl.read(folder / FILE, SCHEMA, lambda raw: Point(**raw)))


def add(folder: Path, run: Path) -> int:
    """Append the figures of ``run`` and return their number. A run is added only once.

    Raises:
        UserError: the run cannot be read, has no figure or is in the history already, or the
            folder cannot be written.
    """
    points = list(_points(run))
    if not points:
        raise UserError(f"{run} has no drafter with an answer, so there is no figure to add.")
    known = {(p.commit, p.created, p.run) for p in read(folder)}
    if any((p.commit, p.created, p.run) in known for p in points):
        raise UserError(f"{run} is in {folder / FILE} already: a run is added once.")
    path = folder / FILE
    with writing(path):
        folder.mkdir(parents=True, exist_ok=True)
        jsonl.cut_torn_line(path)
        with path.open("ab", buffering=0) as file:
            jsonl.append(file, "".join(map(jsonl.to_line, points)))
    return len(points)


def series(points: Iterable[Point]) -> dict[tuple[str, ...], list[Point]]:
    """Points grouped by series, oldest run first."""
    return group_by(sorted(points, key=lambda p: p.created), lambda p: p.series)


def several_settings(points: Iterable[Point], one: Point) -> bool:
    """Whether the drafter of ``one`` was run on its suite under different settings."""
    name = one.target, one.suite, one.drafter
    return len({p.settings for p in points if (p.target, p.suite, p.drafter) == name}) > 1


def lines(points: list[Point]) -> list[str]:
    """One line per series: its newest figure, its length, and where new levels begin."""
    found = []
    for group in series(points).values():
        newest = group[-1]
        several = several_settings(points, newest)
        name = noted(newest.drafter, f"settings {newest.settings or 'unknown'}" if several else "")
        text = f"{newest.target}, {newest.suite}, {name}: {newest.figure} {newest.value:.3f}"
        changes = [f"{group[i].commit or group[i].run}"[:10] for i in change_points(group)]
        levels = f", new level at {', '.join(changes)}" if changes else ""
        found.append(f"{text}, {len(group)} runs{levels}")
    return found


def change_points(points: list[Point]) -> list[int]:
    """Indices at which a new level begins.

    The piecewise constant fit with the least squared error plus a penalty per change (optimal
    partitioning, Jackson et al. 2005), both in units of the noise. The noise is the larger of two
    estimates: one from the intervals, one from the differences of neighbours. The fit is to medians
    of three neighbours, so that a single slow run does not make a level: a level has at least two
    runs. In simulation, a series of 5 to 50 points that does not change shows a change in at most
    6 % of cases, for Gaussian noise, for heavy tails (Student's t with 3 degrees of freedom) and
    for one outlier in 20. Noise that drifts shows more.
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
    """Median standard error of the points, from their 95 % intervals."""
    halves = [(p.high - p.low) / 2 for p in points if p.high is not None and p.low is not None]
    return float(np.median(halves)) / 1.96 if halves else 0.0


def _neighbour_noise(values: Array) -> float:
    """Standard deviation from the median step between neighbours, which few changes do not move."""
    return float(np.median(abs(np.diff(values)))) / (0.6745 * 2**0.5)


def _points(run: Path) -> Iterator[Point]:
    entries = load_entries([run])
    for label, entry in zip(row_labels(entries), entries, strict=True):
        if entry.is_baseline:
            continue
        aal = metrics.pooled_aal(entry.counted)
        speedup = metrics.speedup(entry.baseline or (), entry.counted)
        for figure, estimate in zip(FIGURES, (aal, speedup), strict=True):
            if estimate.value is None:
                continue
            low, high = estimate.interval or (None, None)
            yield Point(
                commit=entry.manifest.environment.get("commit"),
                created=entry.manifest.created,
                run=entry.manifest.run,
                machine=_machine(entry.manifest.environment),
                target=entry.cell.target.name,
                drafter=label,
                suite=entry.cell.suite,
                figure=figure,
                value=estimate.value,
                low=low,
                high=high,
                n=estimate.n,
                settings=_settings(entry.cell),
            )


def _settings(cell: Cell) -> str:
    """Six hex digits over a cell's settings, those that follow from others excepted.

    The weights of the draft are excluded, so that a retrained draft continues its series.
    """
    derived = frozenset({"width", "lossless", "details"})
    kept = settings_key(replace(cell, draft_model=None), derived)
    return hashlib.sha256(kept.encode()).hexdigest()[:6]


def _machine(environment: dict[str, Any]) -> str:
    """The processor and the id of the machine: equal for the same machine only."""
    device = environment.get("gpu") or environment.get("cpu")
    return f"{device or 'machine'} {machine_id(environment)}"
