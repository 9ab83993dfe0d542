"""From cells to rows of figures, and from rows to tables whose cells may be compared."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specbench.records.records import Cell, Manifest
from specbench.report.comparable import Unlike, differences, grouped
from specbench.report.labels import row_labels
from specbench.report.runs import Entry, load_entries
from specbench.stats import metrics
from specbench.stats.bootstrap import Estimate, prompts_to_decide, shared
from specbench.stats.metrics import Comparison

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
        aal_without_loops: pooled AAL over the answers that do not loop; ``looping`` is the share
            of those that do, ``mostly_loops`` whether most of the emitted tokens are theirs.
        withheld: whether the speedup is not shown because an answer is broken.
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
    looping: Estimate
    aal_without_loops: Estimate
    mostly_loops: bool
    cut_at_budget: Estimate
    withheld: bool
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

    @property
    def is_method(self) -> bool:
        """Whether it can be chosen: no baseline, under whatever name, and no foreknowledge."""
        controls = self.cell.role == "control"
        return not (self.is_baseline or controls)


@dataclass(frozen=True)
class Versus:
    """A drafter against the fastest one of the table on a suite, on the prompts both have.

    Its ``comparison.speed`` has a value only where one run measured both.

    Attributes:
        pairs: of drafters on the suite, among which this one was picked by its speeds.
    """

    suite: str
    label: str
    fastest: str
    comparison: Comparison
    pairs: int

    @property
    def prompts_to_decide(self) -> int | None:
        """Prompts that would tell the two apart by speed, as one pair of so many."""
        return prompts_to_decide(shared(self.comparison.speed, self.pairs))


@dataclass(frozen=True)
class Table:
    """Rows that differ in nothing but the drafter and the suite, unless that was asked for.

    Attributes:
        lines: label and rows by suite, the baseline first.
        suites: the columns, in the order they were run.
        manifests: of the runs that the rows come from, by what the run is called here.
        versus: every drafter but the fastest against that one, suite by suite.
        unlike: the settings in which runs differ that were put side by side all the same.
    """

    lines: tuple[tuple[str, dict[str, Row]], ...]
    suites: tuple[str, ...]
    manifests: dict[str, Manifest]
    versus: tuple[Versus, ...]
    unlike: tuple[str, ...]

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


def summarise(
    folders: Sequence[Path],
    *,
    allow_broken: bool = False,
    unlike: Unlike = "separate",
    newest: bool = False,
) -> Summary:
    """Read run folders and compute every figure.

    How fast a drafter writes another text than the target's says nothing, so the speedup of a cell
    with a broken answer is withheld, unless ``allow_broken``. Runs that differ in more than the
    drafter are put into tables of their own, refused, or put side by side, as ``unlike`` says;
    ``newest``: see `load_entries`.

    Raises:
        UserError: a folder cannot be read or is named twice, or runs that differ are refused.
    """
    entries = load_entries(folders, newest=newest)
    return Summary(tuple(_table(group, allow_broken) for group in grouped(entries, unlike)))


def _table(entries: Sequence[Entry], allow_broken: bool) -> Table:
    lines: dict[str, dict[str, Row]] = {}
    ordered = sorted(entries, key=lambda e: not e.is_baseline)
    for label, entry in zip(row_labels(ordered), ordered, strict=True):
        lines.setdefault(label, {})[entry.cell.suite] = _row(entry, allow_broken)
    suites = tuple(dict.fromkeys(entry.cell.suite for entry in entries))
    return Table(
        tuple(lines.items()),
        suites,
        manifests={entry.run: entry.manifest for entry in entries},
        versus=tuple(v for suite in suites for v in _versus(suite, lines)),
        unlike=tuple(differences(entries)),
    )


def _versus(suite: str, lines: dict[str, dict[str, Row]]) -> list[Versus]:
    rows = {label: line[suite] for label, line in lines.items() if suite in line}
    speeds = {label: row.speedup.value or 0 for label, row in rows.items() if row.is_method}
    if not any(speeds.values()):
        return []
    fastest = max(speeds, key=lambda label: speeds[label])
    pairs = math.comb(len(speeds), 2)
    return [
        Versus(suite, label, fastest, _compare(rows[label], rows[fastest]), pairs)
        for label in speeds
        if label != fastest and rows[label].answers
    ]


def _compare(row: Row, fastest: Row) -> Comparison:
    comparison = metrics.compare(row.entry.counted, fastest.entry.counted)
    if row.entry.folder == fastest.entry.folder and not row.withheld:
        return comparison
    return replace(comparison, speed=_withheld(comparison.speed))


def _row(entry: Entry, allow_broken: bool) -> Row:
    samples = entry.counted
    pooled = metrics.estimate_pooled_aal(samples)
    lossless, verdicts = _verdicts(entry)
    speedup, end_to_end = _speedups(entry)
    withheld = lossless == "broken" and not allow_broken
    if withheld:
        speedup, end_to_end = _withheld(speedup), _withheld(end_to_end)
    return Row(
        entry=entry,
        planned=len(entry.cell.sample_ids),
        answers=len(samples.keys),
        failed=len(entry.samples) - len(samples.keys),
        aal_pooled=pooled,
        aal_macro=metrics.estimate_macro_aal(samples),
        acceptance=tuple(metrics.estimate_acceptance(samples)),
        conditional=tuple(metrics.estimate_conditional_acceptance(samples)),
        emitted=metrics.emitted_histogram(samples),
        tokens_per_second=metrics.estimate_tokens_per_second(samples),
        speedup=speedup,
        speedup_end_to_end=end_to_end,
        repeated_4grams=metrics.estimate_repeated_4grams(samples),
        looping=metrics.estimate_looping(samples),
        aal_without_loops=metrics.estimate_aal_without_loops(samples),
        mostly_loops=metrics.dominated_by_loops(samples),
        cut_at_budget=metrics.estimate_cut_at_budget(samples),
        withheld=withheld,
        lossless=lossless,
        verdicts=verdicts,
    )


def _speedups(entry: Entry) -> tuple[Estimate, Estimate]:
    arm = entry.baseline or ()
    decode = metrics.estimate_speedup(arm, entry.counted)
    end_to_end = metrics.estimate_end_to_end_speedup(arm, entry.counted)
    return (
        (_exactly_one(decode), _exactly_one(end_to_end))
        if entry.is_baseline
        else (decode, end_to_end)
    )


def _withheld(estimate: Estimate) -> Estimate:
    return Estimate(None, None, estimate.n)


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
