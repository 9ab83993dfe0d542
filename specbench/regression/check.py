"""A candidate run against a baseline run: is everything there, still lossless, and as good?

The order is that of trust: a missing answer makes every later figure doubtful, a broken output
makes speed meaningless. A figure has got worse only where its change is beyond the tolerance and
the interval of the change, paired over the prompts both runs answered, leaves "no change".

That interval is wider than the printed one of 95 %: all figures of a stage share the 5 % by which
an interval errs (Bonferroni). Of 30 figures that did not change, some 95 % interval leaves "no
change" more often than not; of the wider ones, one in about 5 % of checks, and half of those are
gains. Few prompts (below about 16) make it more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from specbench.errors import UserError
from specbench.records.environment import differences
from specbench.records.records import Cell, Sample, load_manifest
from specbench.report.labels import cell_labels
from specbench.report.runs import Entry, load_entries
from specbench.stats import metrics
from specbench.stats.bootstrap import shared
from specbench.stats.metrics import Estimate

STAGES = ("completeness", "losslessness", "AAL", "speedup")
TOLERANCE = {"AAL": 0.02, "speedup": 0.10}
"""Relative loss that is let pass."""
REGRESSION, SKIPPED, FINE, IMPROVED = "regression", "skipped", "fine", "improved"
DERIVED = frozenset({"drafter", "suite", "width", "lossless", "details", "sample_ids"})
"""Settings of a cell that follow from others, or are judged as completeness and losslessness."""


@dataclass(frozen=True)
class Finding:
    """One judgement about one cell.

    Attributes:
        stage: one of `STAGES`.
        drafter: label of the drafter's configuration.
        verdict: "regression", "skipped", "fine" or "improved".
        text: what was seen.
        base, candidate: the figure in both runs, where the stage has one.
        ratio: candidate over baseline, paired, where it was judged; its interval is of 95 %.
        tolerance: the relative loss let pass.
        among: judged figures of the stage, which share the 5 %.
    """

    stage: str
    drafter: str
    suite: str
    verdict: str
    text: str
    base: Estimate | None = None
    candidate: Estimate | None = None
    ratio: Estimate | None = None
    tolerance: float | None = None
    among: int | None = None


@dataclass(frozen=True)
class Check:
    """All that was found, and what kept cells from being compared.

    Attributes:
        differences: settings in which the two runs differ, as sentences; not empty means that
            nothing was judged, unless it was forced.
        machine: in what the two machines differ; speed is then not judged.
    """

    candidate: Path
    baseline: Path
    findings: tuple[Finding, ...]
    differences: tuple[str, ...]
    machine: tuple[str, ...]
    forced: bool

    @property
    def regressions(self) -> list[Finding]:
        """The findings that fail the check."""
        return [finding for finding in self.findings if finding.verdict == REGRESSION]

    @property
    def exit_code(self) -> int:
        """0 fine, 1 regression, 3 not comparable."""
        if self.differences and not self.forced:
            return 3
        return 1 if self.regressions else 0


def check(
    candidate: Path,
    baseline: Path,
    tolerance: dict[str, float] | None = None,
    *,
    force: bool = False,
) -> Check:
    """Judge ``candidate``, a run folder, by ``baseline``.

    Args:
        tolerance: relative loss let pass, by stage; `TOLERANCE` where absent. That of speed is at
            least what a self-test on the same suite leaves open in either run, or the worst one
            of the other suites where that suite has none.
        force: judge also what differs in its settings.

    Raises:
        UserError: a folder that cannot be read, or a baseline without a single answer.
    """
    ours, theirs = load_entries([candidate]), load_entries([baseline])
    if not any(entry.counted.keys for entry in theirs):
        raise UserError(f"{baseline} holds no answer to judge by: take a run that has some.")
    before, after = (load_manifest(run).environment for run in (baseline, candidate))
    machine = tuple(differences(before, after))
    labels = cell_labels([entry.cell for entry in theirs])
    tests = [entry for entry in (*theirs, *ours) if entry.cell.is_self_test]
    theirs, ours = (
        [entry for entry in entries if not entry.cell.is_self_test] for entries in (theirs, ours)
    )
    pairs, alone = _match(theirs, ours)
    unlike = tuple(
        f"{labels[base.cell_id]} on {base.cell.suite}: {text}"
        for base, entry in pairs
        for text in _unlike(base.cell, entry.cell)
    )
    findings = [_missing(labels[entry.cell_id], entry) for entry in alone]
    if force or not unlike:
        limits = TOLERANCE | (tolerance or {})
        for base, entry in pairs:
            speed = max(limits["speedup"], _unseen(tests, base.cell.suite))
            allowed = limits | {"speedup": speed}
            findings += _judge(labels[base.cell_id], base, entry, allowed, bool(machine))
    findings = settled(findings)
    findings.sort(key=lambda f: (STAGES.index(f.stage), f.verdict != REGRESSION))
    return Check(candidate, baseline, tuple(findings), unlike, machine, force)


def settled(findings: Iterable[Finding]) -> list[Finding]:
    """The findings with the verdicts on figures, which hang on how many there are of a stage."""
    findings = list(findings)
    judged = Counter(f.stage for f in findings if f.ratio is not None)
    return [_settle(finding, judged[finding.stage]) for finding in findings]


def _settle(finding: Finding, among: int) -> Finding:
    """Worse, or better, by more than the tolerance and beyond doubt."""
    ratio, tolerance = finding.ratio, finding.tolerance or 0.0
    interval = shared(ratio, among).interval if ratio else None
    if ratio is None or ratio.value is None or interval is None:
        return finding
    low, high = interval
    verdict = FINE
    if high < 1 and ratio.value < 1 - tolerance:
        verdict = REGRESSION
    elif low > 1 and ratio.value > 1 + tolerance:
        verdict = IMPROVED
    return replace(finding, verdict=verdict, among=among)


def _unseen(tests: Sequence[Entry], suite: str) -> float:
    """The relative difference of speed that self-tests leave open on ``suite``; 0 without any."""
    found = [
        metrics.estimate_speedup(entry.baseline or (), entry.samples).interval
        for entry in [e for e in tests if e.cell.suite == suite] or tests
    ]
    return max((max(abs(low - 1), abs(high - 1)) for low, high in filter(None, found)), default=0.0)


def _match(
    theirs: Sequence[Entry], ours: Sequence[Entry]
) -> tuple[list[tuple[Entry, Entry]], list[Entry]]:
    """Cells of the baseline with the candidate's, and those without one.

    The same drafter, suite and options; or, where that leaves one of a drafter on a suite on each
    side, these two, which then differ in their options.
    """
    free = list(ours)
    pairs, left = [], []
    for base in theirs:
        same = [e for e in free if _place(e) == _place(base) and _options(e) == _options(base)]
        if same:
            free.remove(same[0])
            pairs.append((base, same[0]))
        else:
            left.append(base)
    alone = []
    for base in left:
        same = [entry for entry in free if _place(entry) == _place(base)]
        if len(same) == 1 and sum(_place(other) == _place(base) for other in left) == 1:
            pairs.append((base, same[0]))
        else:
            alone.append(base)
    return pairs, alone


def _place(entry: Entry) -> tuple[str, str]:
    return entry.cell.drafter, entry.cell.suite


def _options(entry: Entry) -> dict[str, Any]:
    return entry.cell.options


def _unlike(base: Cell, cell: Cell) -> list[str]:
    """Settings in which two cells differ; another draft is what a check is for, and no such."""
    before, after = _without_draft(base), _without_draft(cell)
    return [
        f"{key} was {before[key]}, is {after[key]}"
        for key in sorted(before.keys() - DERIVED)
        if before[key] != after[key]
    ]


def _without_draft(cell: Cell) -> dict[str, Any]:
    options = {k: v for k, v in cell.options.items() if k not in ("model", "revision")}
    return asdict(replace(cell, draft_model=None, options=options))


def _missing(label: str, entry: Entry) -> Finding:
    return Finding(STAGES[0], label, entry.cell.suite, REGRESSION, "the candidate has no such cell")


def _judge(
    label: str, base: Entry, entry: Entry, limits: dict[str, float], other_machine: bool
) -> Iterable[Finding]:
    yield _completeness(label, base, entry)
    if entry.is_baseline:
        return
    yield _losslessness(label, base, entry)
    before, after = metrics.Answers.of(base.samples), metrics.Answers.of(entry.samples)
    yield _figure(
        "AAL",
        label,
        base,
        metrics.estimate_pooled_aal(before),
        metrics.estimate_pooled_aal(after),
        metrics.compare(after, before).aal_ratio,
        limits["AAL"],
    )
    if other_machine:
        text = "not judged: the baseline was measured on another machine"
        yield Finding("speedup", label, base.cell.suite, SKIPPED, text)
        return
    yield _figure(
        "speedup",
        label,
        base,
        metrics.estimate_speedup(base.baseline or (), before),
        metrics.estimate_speedup(entry.baseline or (), after),
        metrics.compare_speedups(entry.baseline or (), after, base.baseline or (), before),
        limits["speedup"],
    )


def _completeness(label: str, base: Entry, entry: Entry) -> Finding:
    """Whatever the baseline answered must be answered."""
    wanted = {(s.sample, s.turn) for s in metrics.ok(base.samples)}
    if not wanted:
        text = "not judged: the baseline has no answer"
        return Finding(STAGES[0], label, base.cell.suite, SKIPPED, text)
    found = {(s.sample, s.turn): s for s in entry.samples}
    lost = [key for key in wanted if key not in found or found[key].status != "ok"]
    if not lost:
        text = f"{len(wanted)} answers"
        return Finding(STAGES[0], label, base.cell.suite, FINE, text)
    failed = [found[key] for key in sorted(lost) if key in found]
    text = f"{len(lost)} of {len(wanted)} answers are missing"
    if failed:
        text += f", {len(failed)} of them failed: {failed[0].error}"
    return Finding(STAGES[0], label, base.cell.suite, REGRESSION, text)


def _losslessness(label: str, base: Entry, entry: Entry) -> Finding:
    before, after = _broken(base.samples), _broken(entry.samples)
    worse = after > before or (base.cell.lossless and not entry.cell.lossless)
    text = f"{after} broken outputs, {before} in the baseline"
    if base.cell.lossless != entry.cell.lossless:
        text += f"; the rule is {'now' if base.cell.lossless else 'no longer'} lossy"
    return Finding(STAGES[1], label, base.cell.suite, REGRESSION if worse else FINE, text)


def _broken(samples: Iterable[Sample]) -> int:
    return sum(s.verdict is not None and s.verdict.kind == "broken" for s in samples)


def _figure(
    stage: str,
    label: str,
    base: Entry,
    before: Estimate,
    after: Estimate,
    ratio: Estimate,
    tolerance: float,
) -> Finding:
    """The change of a figure; `settled` gives the verdict."""
    suite = base.cell.suite
    if not ratio.value or ratio.interval is None:
        text = f"not judged: it needs two prompts that both runs answered, and has {ratio.n}"
        return Finding(stage, label, suite, SKIPPED, text, before, after)
    low, high = ratio.interval
    change = f"{ratio.value - 1:+.1%} [{low - 1:+.1%}, {high - 1:+.1%}], n={ratio.n}"
    return Finding(stage, label, suite, FINE, change, before, after, ratio, tolerance)
