"""From cells to rows, and from rows to tables whose cells may be compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from specbench.records.records import Cell, Manifest
from specbench.report.comparable import Unlike, differences, grouped
from specbench.report.labels import row_labels
from specbench.report.runs import Entry, load_entries
from specbench.stats import metrics
from specbench.stats.bootstrap import Estimate, prompts_to_decide, shared
from specbench.stats.metrics import Comparison


@dataclass(frozen=True, eq=False)
class Row:
    """One cell under its label; `figures` says what it holds in numbers.

    Attributes:
        allow_broken: whether the speedup is shown even if an answer is broken.
        rival: the fastest method of the suite; None for itself, the baseline and controls.
        pairs: pairs of methods on the suite, among which the fastest was chosen.
        known: values of figures, kept by `Figure.of`, which computes them on demand.
    """

    label: str
    entry: Entry
    allow_broken: bool = False
    rival: Row | None = None
    pairs: int = 0
    known: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def cell(self) -> Cell:
        """Its settings."""
        return self.entry.cell

    @property
    def planned(self) -> int:
        """Prompts that were chosen, with an answer or without."""
        return len(self.cell.sample_ids)

    @property
    def answers(self) -> int:
        """Answers with status "ok"."""
        return len(self.entry.counted.keys)

    @property
    def failed(self) -> int:
        """Answers that ended in an error."""
        return len(self.entry.samples) - self.answers

    @property
    def withheld(self) -> bool:
        """Whether the speedup is not shown because an answer is broken."""
        return self.entry.lossless == "broken" and not self.allow_broken

    @cached_property
    def comparison(self) -> Comparison | None:
        """The comparison with its rival on the prompts that both answered.

        None without a rival or an answer; the speeds are compared only if one run measured both.
        """
        if self.rival is None or not self.answers:
            return None
        comparison = metrics.compare(self.entry.counted, self.rival.entry.counted)
        if self.entry.folder != self.rival.entry.folder or self.withheld:
            unknown = Estimate(None, None, comparison.speed.n)
            comparison = replace(comparison, speed=unknown)
        return comparison

    @property
    def prompts_to_decide(self) -> int | None:
        """Prompts that would tell it apart from its rival by speed, corrected for all pairs."""
        found = self.comparison
        return prompts_to_decide(shared(found.speed, self.pairs)) if found else None


@dataclass(frozen=True)
class Table:
    """Rows that differ only in drafter and suite, unless unlike runs were joined on demand.

    Attributes:
        lines: by label, the rows by suite; the baseline first.
        suites: the columns, in the order in which they were run.
        manifests: of the runs that the rows come from, by the run's name in this report.
        unlike: settings in which runs differ that were joined on demand.
    """

    lines: dict[str, dict[str, Row]]
    suites: tuple[str, ...]
    manifests: dict[str, Manifest]
    unlike: tuple[str, ...]

    @property
    def rows(self) -> list[Row]:
        """All rows, line by line."""
        lines = self.lines.values()
        return [line[suite] for line in lines for suite in self.suites if suite in line]


@dataclass(frozen=True)
class Summary:
    """All tables of a report."""

    tables: tuple[Table, ...]


def summarise(
    folders: Sequence[Path],
    *,
    allow_broken: bool = False,
    unlike: Unlike = "separate",
    newest: bool = False,
) -> Summary:
    """Read run folders into tables.

    The speed at which a drafter writes another text than the target's means nothing, so the speedup
    of a cell with a broken answer is withheld, unless ``allow_broken``.

    Args:
        unlike: what becomes of runs that differ in more than the drafter: a table each, an error,
            or one table.
        newest: see `load_entries`.

    Raises:
        UserError: a folder cannot be read or is named twice, or runs that differ are refused.
    """
    entries = load_entries(folders, newest=newest)
    return Summary(tuple(_table(group, allow_broken) for group in grouped(entries, unlike)))


def _table(entries: Sequence[Entry], allow_broken: bool) -> Table:
    ordered = sorted(entries, key=lambda e: not e.is_baseline)
    labelled = list(zip(row_labels(ordered), ordered, strict=True))
    suites = tuple(dict.fromkeys(entry.cell.suite for entry in entries))
    lines: dict[str, dict[str, Row]] = {label: {} for label, _ in labelled}
    for suite in suites:
        rows = [Row(label, e, allow_broken) for label, e in labelled if e.cell.suite == suite]
        speeds = {row: _speed(row) for row in rows if row.entry.is_method}
        fastest = max(speeds, key=lambda row: speeds[row]) if any(speeds.values()) else None
        for row in rows:
            rival = fastest if row in speeds and row is not fastest else None
            pairs = math.comb(len(speeds), 2)
            lines[row.label][suite] = replace(row, rival=rival, pairs=pairs, known={})
    return Table(
        lines,
        suites,
        manifests={entry.run: entry.manifest for entry in entries},
        unlike=tuple(differences(entries)),
    )


def _speed(row: Row) -> float:
    if row.withheld:
        return 0.0
    return metrics.speedup(row.entry.baseline or (), row.entry.counted).value or 0.0
