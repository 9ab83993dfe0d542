"""From cells to rows of figures, and from rows to tables whose cells may be compared."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from specbench import metrics
from specbench.metrics import Estimate
from specbench.records import Cell, Manifest, Sample
from specbench.report.labels import row_labels
from specbench.report.runs import DRAFTER_SETTINGS, Entry, load_entries, settings_key

SUITE_SETTINGS = frozenset({"suite", "suite_hash", "sample_ids", "max_new_tokens"})
TABLE_SETTINGS = frozenset(f.name for f in fields(Cell)) - DRAFTER_SETTINGS - SUITE_SETTINGS
WORST_FIRST = ("broken", "lossy", "untested", "near-tie", "identical")


@dataclass(frozen=True)
class Row:
    """One cell in figures; the baseline's own speedup is 1 by definition and has no interval.

    Attributes:
        planned: prompts the cell has; ``aal_pooled.n`` of them have an answer.
        answers: answers with status "ok".
        failed: answers that ended in an error.
        acceptance: share of rounds that reached depth 1, 2, ...; ``conditional`` the same given
            that the depth before was reached.
        emitted: rounds by the number of tokens they emitted.
        speedup, speedup_end_to_end: None where the output is broken, unless that was allowed.
        lossless: the worst verdict; ``verdicts`` counts them all.
    """

    entry: Entry
    planned: int
    answers: int
    failed: int
    aal_pooled: Estimate
    aal_macro: Estimate
    acceptance: tuple[Estimate, ...]
    conditional: tuple[Estimate, ...]
    emitted: dict[int, int]
    tokens_per_second: Estimate
    speedup: Estimate
    speedup_end_to_end: Estimate
    repeated_4grams: Estimate
    cut_at_budget: Estimate
    lossless: str
    verdicts: dict[str, int]

    @property
    def cell(self) -> Cell:
        """Its settings."""
        return self.entry.cell

    @property
    def is_baseline(self) -> bool:
        """Whether it is the autoregressive one."""
        return self.entry.is_baseline


@dataclass(frozen=True)
class Table:
    """Rows that differ in nothing but the drafter and the suite.

    Attributes:
        lines: label and rows by suite, the baseline first.
        suites: the columns, in the order they were run.
        manifests: of the runs that the rows come from.
    """

    lines: tuple[tuple[str, dict[str, Row]], ...]
    suites: tuple[str, ...]
    manifests: tuple[Manifest, ...]

    @property
    def rows(self) -> list[tuple[str, Row]]:
        """All rows with their labels, line by line."""
        return [
            (label, line[suite]) for label, line in self.lines for suite in self.suites
            if suite in line
        ]  # fmt: skip

    @property
    def any_cell(self) -> Cell:
        """A cell to read the settings from that all cells of the table share."""
        return self.rows[0][1].cell


@dataclass(frozen=True)
class Summary:
    """All tables of a report."""

    tables: tuple[Table, ...]


def summarise(folders: Sequence[Path], *, allow_broken: bool = False) -> Summary:
    """Read run folders and compute every figure.

    How fast a drafter writes another text than the target's says nothing, so the speedup of a cell
    with a broken answer is withheld, unless ``allow_broken``.

    Raises:
        UserError: a folder cannot be read, or two hold the same cell.
    """
    groups: dict[tuple[str, int], list[Entry]] = {}
    for key, entry in _comparable(load_entries(folders)):
        groups.setdefault(key, []).append(entry)
    return Summary(tuple(_table(group, allow_broken) for group in groups.values()))


def _comparable(entries: Iterable[Entry]) -> list[tuple[tuple[str, int], Entry]]:
    """Each entry with the key of its table.

    Cells of one table share all settings and the environment. Cells in one column also share
    the suite's settings: each further choice of those goes to a further table.
    """
    keyed: list[tuple[tuple[str, int], Entry]] = []
    variants: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        shared = settings_key(entry.cell, DRAFTER_SETTINGS | SUITE_SETTINGS)
        shared += json.dumps(entry.manifest.environment, sort_keys=True)
        choices = variants.setdefault((shared, entry.cell.suite), [])
        choice = settings_key(entry.cell, DRAFTER_SETTINGS | TABLE_SETTINGS)
        if choice not in choices:
            choices.append(choice)
        keyed.append(((shared, choices.index(choice)), entry))
    return keyed


def _table(entries: Sequence[Entry], allow_broken: bool) -> Table:
    lines: dict[str, dict[str, Row]] = {}
    ordered = sorted(entries, key=lambda e: not e.is_baseline)
    for label, entry in zip(row_labels(ordered), ordered, strict=True):
        lines.setdefault(label, {})[entry.cell.suite] = _row(entry, allow_broken)
    manifests = {entry.folder: entry.manifest for entry in entries}
    return Table(
        tuple(lines.items()),
        tuple(dict.fromkeys(entry.cell.suite for entry in entries)),
        tuple(manifests.values()),
    )


def _row(entry: Entry, allow_broken: bool) -> Row:
    samples = entry.samples
    pooled = metrics.estimate_pooled_aal(samples)
    lossless, verdicts = _verdicts(entry)
    speedup, end_to_end = _speedups(entry)
    if lossless == "broken" and not allow_broken:
        speedup, end_to_end = (Estimate(None, None, one.n) for one in (speedup, end_to_end))
    return Row(
        entry=entry,
        planned=len(entry.cell.sample_ids),
        answers=len(metrics.ok(samples)),
        failed=sum(s.status != "ok" for s in samples),
        aal_pooled=pooled,
        aal_macro=metrics.estimate_macro_aal(samples),
        acceptance=tuple(metrics.estimate_acceptance(samples)),
        conditional=tuple(metrics.estimate_conditional_acceptance(samples)),
        emitted=metrics.emitted_histogram(samples),
        tokens_per_second=metrics.estimate_tokens_per_second(samples),
        speedup=speedup,
        speedup_end_to_end=end_to_end,
        repeated_4grams=metrics.estimate_repeated_4grams(samples),
        cut_at_budget=metrics.estimate_cut_at_budget(samples),
        lossless=lossless,
        verdicts=verdicts,
    )


def _speedups(entry: Entry) -> tuple[Estimate, Estimate]:
    arm: Sequence[Sample] = entry.baseline or ()
    decode = metrics.estimate_speedup(arm, entry.samples)
    end_to_end = metrics.estimate_end_to_end_speedup(arm, entry.samples)
    return (
        (_exactly_one(decode), _exactly_one(end_to_end))
        if entry.is_baseline
        else (decode, end_to_end)
    )


def _exactly_one(estimate: Estimate) -> Estimate:
    return Estimate(None if estimate.value is None else 1.0, None, estimate.n)


def _verdicts(entry: Entry) -> tuple[str, dict[str, int]]:
    """The worst verdict and how many answers have which.

    The baseline is what the others are compared with. A rule that does not keep the target's
    distribution is lossy even where no answer happens to show it.
    """
    if entry.is_baseline:
        return "identical", {}
    counts = Counter(s.verdict.kind if s.verdict else "untested" for s in metrics.ok(entry.samples))
    kinds = set(counts) or {"untested"}
    if not entry.cell.lossless:
        kinds.add("lossy")
    worst = next(kind for kind in WORST_FIRST if kind in kinds)
    return worst, {kind: counts[kind] for kind in WORST_FIRST if counts[kind]}
