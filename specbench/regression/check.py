"""A candidate run against a baseline run: is everything there, still lossless, and as good?

The order of the stages is that of trust: a missing answer makes every later figure doubtful, and
broken output makes speed meaningless. A figure has got worse only if its loss exceeds the tolerance
and "no change", paired over the prompts that both runs answered, is rejected.

The figures of a stage share an error of 5 % (Bonferroni), half of it for gains, so that a check of
many figures raises no more false alarms than a check of one: in at most 2.5 % of checks per stage.
Up to `MOST_PROMPTS` prompts an exact test rejects (`swap_test`); where so few prompts cannot
reach the level, the figure is not judged. For more prompts, the bootstrap interval has to exclude
"no change".
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from specbench.errors import UserError
from specbench.records.machine import differences
from specbench.records.records import Cell, is_broken, load_manifest
from specbench.report.labels import cell_labels
from specbench.report.runs import Entry, group_by, load_entries
from specbench.stats import metrics
from specbench.stats.bootstrap import CONFIDENCE, Estimate, shared
from specbench.stats.exact import SwapTest
from specbench.stats.metrics import Change

STAGES = ("completeness", "losslessness", "AAL", "speedup")
TOLERANCE = {"AAL": 0.02, "speedup": 0.10}
"""Relative loss that is allowed."""
NO_CELL = "the candidate has no such cell"
REGRESSION, SKIPPED, FINE, IMPROVED = "regression", "skipped", "fine", "improved"
DERIVED = frozenset({"drafter", "role", "suite", "width", "lossless", "details", "sample_ids"})
"""Settings of a cell that follow from others, or that the first two stages judge."""


@dataclass(frozen=True)
class Finding:
    """One judgement about one cell.

    Attributes:
        stage: one of `STAGES`.
        drafter: label of the drafter's configuration.
        verdict: "regression", "skipped", "fine" or "improved".
        text: what was seen.
        base, candidate: the figure in both runs, where the stage has one.
        ratio: candidate over baseline, paired, with its 95 % interval.
        exact: the exact test of the change, for few prompts.
        tolerance: the relative loss allowed.
        among: figures of the stage, which share the error.
        method: what judged the change, "exact test" or "bootstrap interval".
    """

    stage: str
    drafter: str
    suite: str
    verdict: str
    text: str
    base: Estimate | None = None
    candidate: Estimate | None = None
    ratio: Estimate | None = None
    exact: SwapTest | None = None
    tolerance: float | None = None
    among: int | None = None
    method: str | None = None


@dataclass(frozen=True)
class Check:
    """All findings, and what kept cells from being compared.

    Attributes:
        differences: settings in which the two runs differ, one text each. If there are any,
            nothing was judged unless that was forced.
        machine: facts in which the two machines differ. If there are any, speed was not judged.
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
        """0: no regression; 1: a regression; 3: the runs cannot be compared."""
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
        tolerance: relative loss allowed, by stage; `TOLERANCE` where absent. For speed it is at
            least the difference that a self-test of either run leaves open on the same suite (or,
            if that suite has none, the largest on any suite).
        force: judge cells even if their settings differ.

    Raises:
        UserError: a folder that cannot be read, or a baseline without a single answer.
    """
    ours, theirs = load_entries([candidate]), load_entries([baseline])
    if not any(entry.counted.keys for entry in theirs):
        raise UserError(f"{baseline} holds no answer to compare with: name a run that has some.")
    machine = tuple(differences(*(load_manifest(r).environment for r in (baseline, candidate))))
    labels = cell_labels([entry.cell for entry in theirs])
    tests = [entry for entry in (*theirs, *ours) if entry.cell.is_self_test]
    theirs, ours = ([e for e in run if not e.cell.is_self_test] for run in (theirs, ours))
    pairs, alone = _match(theirs, ours)
    unlike = tuple(
        f"{labels[base.cell_id]} on {base.cell.suite}: {text}"
        for base, entry in pairs
        for text in _unlike(base.cell, entry.cell)
    )
    missing = partial(Finding, "completeness", verdict=REGRESSION, text=NO_CELL)
    findings = [missing(labels[entry.cell_id], entry.cell.suite) for entry in alone]
    if force or not unlike:
        limits = TOLERANCE | (tolerance or {})
        for base, entry in pairs:
            speed = max(limits["speedup"], _unresolved(tests, base.cell.suite))
            allowed = limits | {"speedup": speed}
            findings += _judge(labels[base.cell_id], base, entry, allowed, bool(machine))
    return Check(candidate, baseline, tuple(settled(findings)), unlike, machine, force)


def settled(findings: Iterable[Finding]) -> list[Finding]:
    """The findings with the verdicts on figures, which depend on how many a stage has.

    They are in the order of the stages, regressions first.
    """
    findings = list(findings)
    judged = Counter(f.stage for f in findings if f.ratio is not None)
    found = [_settle(finding, judged[finding.stage]) for finding in findings]
    return sorted(found, key=lambda f: (STAGES.index(f.stage), f.verdict != REGRESSION))


def _settle(finding: Finding, among: int) -> Finding:
    """The verdict: a change beyond the tolerance, with "no change" rejected at the shared level."""
    ratio, exact = finding.ratio, finding.exact
    if ratio is None or ratio.value is None or ratio.interval is None:
        return finding
    level = (1 - CONFIDENCE) / 2 / among
    if exact is None:
        low, high = shared(ratio, among).interval or ratio.interval
        worse, better, method = high < 1, low > 1, "bootstrap interval"
        text = f"{finding.text}, by interval"
    elif 2**-exact.n > level:
        needed = math.ceil(-math.log2(level))
        text = f"{finding.text}, not judged: too few prompts for {among} figures; {needed} would do"
        return replace(finding, verdict=SKIPPED, text=text, among=among)
    else:
        worse, better, method = exact.loss <= level, exact.gain <= level, "exact test"
        p = min(exact.loss, exact.gain)
        text = f"{finding.text}, exact p={p:.2g}"
    tolerance, verdict = finding.tolerance or 0.0, FINE
    if worse and ratio.value < 1 - tolerance:
        verdict = REGRESSION
    elif better and ratio.value > 1 + tolerance:
        verdict = IMPROVED
    return replace(finding, verdict=verdict, text=text, among=among, method=method)


def _unresolved(tests: Sequence[Entry], suite: str) -> float:
    """The relative difference of speed that self-tests leave open on ``suite``; 0 without any."""
    found = [
        metrics.speedup(entry.baseline or (), entry.counted).interval
        for entry in [e for e in tests if e.cell.suite == suite] or tests
    ]
    return max((max(abs(low - 1), abs(high - 1)) for low, high in filter(None, found)), default=0.0)


def _match(
    theirs: Sequence[Entry], ours: Sequence[Entry]
) -> tuple[list[tuple[Entry, Entry]], list[Entry]]:
    """Each cell of the baseline with the candidate's, and the cells that have no partner.

    Partners have the same drafter, suite and options. If that leaves exactly one cell of a drafter
    on a suite on each side, these two are partners as well, with different options.
    """
    free = list(ours)
    pairs, left = [], []
    for base in theirs:
        own = _place(base), base.cell.options
        same = [e for e in free if (_place(e), e.cell.options) == own]
        if same:
            free.remove(same[0])
            pairs.append((base, same[0]))
        else:
            left.append(base)
    alone = []
    others = group_by(free, _place)
    for place, bases in group_by(left, _place).items():
        partners = others.get(place, [])
        if len(bases) == len(partners) == 1:
            pairs.append((bases[0], partners[0]))
        else:
            alone += bases
    return pairs, alone


def _place(entry: Entry) -> tuple[str, str]:
    return entry.cell.drafter, entry.cell.suite


def _unlike(base: Cell, cell: Cell) -> list[str]:
    """Settings that differ between two cells.

    The draft model is ignored: judging another draft is the point of a check.
    """
    before, after = (asdict(replace(one, draft_model=None)) for one in (base, cell))
    for settings in (before, after):
        for named in ("model", "revision"):
            settings["options"].pop(named, None)
    return [
        f"{key} was {before[key]}, is {after[key]}"
        for key in sorted(before.keys() - DERIVED)
        if before[key] != after[key]
    ]


def _judge(
    label: str, base: Entry, entry: Entry, limits: dict[str, float], other_machine: bool
) -> Iterator[Finding]:
    finding = partial(Finding, drafter=label, suite=base.cell.suite)
    yield _completeness(finding, base, entry)
    if entry.is_baseline:
        return
    yield _losslessness(finding, base, entry)
    before, after = base.counted, entry.counted
    figures = metrics.pooled_aal(before), metrics.pooled_aal(after)
    aal = partial(finding, "AAL", tolerance=limits["AAL"])
    yield _figure(aal, *figures, metrics.aal_change(after, before))
    if other_machine:
        text = "not judged: the baseline was measured on another machine"
        yield finding("speedup", verdict=SKIPPED, text=text)
        return
    old_arm, arm = base.baseline or (), entry.baseline or ()
    figures = metrics.speedup(old_arm, before), metrics.speedup(arm, after)
    speedup = partial(finding, "speedup", tolerance=limits["speedup"])
    yield _figure(speedup, *figures, metrics.speedup_change(arm, after, old_arm, before))


def _completeness(finding: partial[Finding], base: Entry, entry: Entry) -> Finding:
    """Every prompt that the baseline answered must be answered."""
    finding = partial(finding, "completeness")
    wanted = set(base.counted.keys)
    if not wanted:
        return finding(verdict=SKIPPED, text="not judged: the baseline has no answer")
    lost = wanted - set(entry.counted.keys)
    if not lost:
        return finding(verdict=FINE, text=f"{len(wanted)} answers")
    found = {(s.sample, s.turn): s for s in entry.samples}
    failed = [found[key] for key in sorted(lost) if key in found]
    text = f"{len(lost)} of {len(wanted)} answers are missing"
    if failed:
        text += f", {len(failed)} of them failed: {failed[0].error}"
    return finding(verdict=REGRESSION, text=text)


def _losslessness(finding: partial[Finding], base: Entry, entry: Entry) -> Finding:
    before, after = (sum(map(is_broken, run.samples)) for run in (base, entry))
    worse = after > before or (base.cell.lossless and not entry.cell.lossless)
    text = f"{after} broken outputs, {before} in the baseline"
    if base.cell.lossless != entry.cell.lossless:
        text += f"; the rule is {'now' if base.cell.lossless else 'no longer'} lossy"
    return finding("losslessness", verdict=REGRESSION if worse else FINE, text=text)


def _figure(
    finding: partial[Finding], before: Estimate, after: Estimate, change: Change
) -> Finding:
    """The change of a figure; `settled` gives the verdict."""
    ratio = change.ratio
    finding = partial(finding, base=before, candidate=after)
    if not ratio.value or ratio.interval is None:
        text = f"not judged: it needs two prompts that both runs answered, and has {ratio.n}"
        return finding(verdict=SKIPPED, text=text, tolerance=None)
    low, high = ratio.interval
    text = f"{ratio.value - 1:+.1%} [{low - 1:+.1%}, {high - 1:+.1%}], n={ratio.n}"
    return finding(verdict=FINE, text=text, ratio=ratio, exact=change.exact)
