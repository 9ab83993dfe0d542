"""A check as markdown, JUnit XML, JSON, and the two lists of github-action-benchmark."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from specbench.errors import UserError
from specbench.regression.check import REGRESSION, SKIPPED, STAGES, Check, Finding
from specbench.stats.metrics import Estimate

SCHEMA = 1
SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"
SUMMARY_LIMIT = 1_000_000
"""Bytes a step's summary may hold, a little under GitHub's 1 MiB; more is dropped as a whole."""
MARKS = {"regression": "✗", "skipped": "-", "fine": "✓", "improved": "▲"}


def conclusion(check: Check) -> str:
    """One sentence."""
    if check.exit_code == 3:
        return "Not comparable: " + "; ".join(check.differences) + "."
    counts = {stage: sum(f.stage == stage for f in check.regressions) for stage in STAGES}
    worse = ", ".join(f"{count} in {stage}" for stage, count in counts.items() if count)
    judged = sum(f.verdict != SKIPPED for f in check.findings)
    return f"Regressions: {worse}." if worse else f"No regression in {judged} checks."


def notes(check: Check) -> list[str]:
    """What a reader has to know beside the findings."""
    lines = []
    if check.forced and check.differences:
        lines.append("Compared in spite of: " + "; ".join(check.differences) + ".")
    if check.machine:
        lines.append("Speed is not judged, since the machines differ: " + "; ".join(check.machine))
    counts = {f.stage: f.among for f in check.findings if f.among}
    if counts:
        judged = " and ".join(
            f"{n} {stage} figure{'s' if n > 1 else ''}" for stage, n in counts.items()
        )
        lines.append(
            f"Judged: {judged}; one fails if its loss exceeds the tolerance and the interval of "
            'the change excludes "no change" even where all of a kind share its 5 % (printed: each '
            "at 95 %)."
        )
    if any(f.verdict == "improved" for f in check.findings):
        lines.append("Some figures got better: `--update` makes this run the baseline.")
    return lines


def cells(finding: Finding) -> tuple[str, ...]:
    """A finding as a row: mark, stage, drafter, suite, baseline, candidate, what was seen."""
    return (
        MARKS[finding.verdict],
        finding.stage,
        finding.drafter,
        finding.suite,
        _number(finding.base),
        _number(finding.candidate),
        finding.text + (f" (tolerance {finding.tolerance:.0%})" if finding.tolerance else ""),
    )


HEADER = ("", "check", "drafter", "suite", "baseline", "candidate", "change")


def markdown(check: Check, limit: int = SUMMARY_LIMIT) -> str:
    """Regressions in a table, everything else folded away, at most ``limit`` bytes."""
    others = [finding for finding in check.findings if finding.verdict != REGRESSION]
    text = f"### specbench check\n\n{conclusion(check)}\n\n"
    text += "".join(f"{note}\n\n" for note in notes(check))
    text += _table(check.regressions) if check.regressions else ""
    folded = f"\n<details><summary>{len(others)} other checks</summary>\n\n{_table(others)}\n"
    whole = f"{text}{folded}</details>\n" if others else text
    if len(whole.encode()) <= limit:
        return whole
    end = "\nCut to fit; the JSON output has everything.\n"
    return text.encode()[: max(0, limit - len(end))].decode(errors="ignore") + end


def append_summary(check: Check) -> Path | None:
    """Add the markdown to the job summary; None where there is no such file.

    Raises:
        UserError: the variable names a file that cannot be written.
    """
    name = os.environ.get(SUMMARY_VARIABLE)
    if not name:
        return None
    path = Path(name)
    try:
        room = SUMMARY_LIMIT - (path.stat().st_size if path.exists() else 0)
        with path.open("a", encoding="utf-8") as file:
            file.write(markdown(check, max(0, room)) + "\n")
    except OSError as error:
        raise UserError(
            f"{SUMMARY_VARIABLE}={name} cannot be written: {error.strerror}."
        ) from error
    return path


def junit(check: Check) -> str:
    """JUnit XML: a test case a finding, a failure a regression."""
    skipped = sum(f.verdict == SKIPPED for f in check.findings)
    suite = ElementTree.Element(
        "testsuite",
        name="specbench check",
        tests=str(len(check.findings)),
        failures=str(len(check.regressions)),
        errors=str(int(check.exit_code == 3)),
        skipped=str(skipped),
    )
    for finding in check.findings:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=f"{finding.suite}.{finding.drafter}",
            name=finding.stage,
        )
        if finding.verdict == REGRESSION:
            ElementTree.SubElement(case, "failure", message=_printable(finding.text))
        elif finding.verdict == SKIPPED:
            ElementTree.SubElement(case, "skipped", message=_printable(finding.text))
    if check.exit_code == 3:
        case = ElementTree.SubElement(suite, "testcase", classname="specbench", name="comparable")
        suite.set("tests", str(len(check.findings) + 1))
        ElementTree.SubElement(case, "error", message=_printable(conclusion(check)))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _printable(text: str) -> str:
    """XML knows no control characters, and an error's text may hold some."""
    return "".join(c for c in text if c.isprintable() or c in "\n\t")


def to_json(check: Check) -> str:
    """Everything, for a machine."""
    facts = {
        "schema": SCHEMA,
        "candidate": str(check.candidate),
        "baseline": str(check.baseline),
        "exit_code": check.exit_code,
        "conclusion": conclusion(check),
        "differences": check.differences,
        "machine": check.machine,
        "findings": [asdict(finding) for finding in check.findings],
    }
    return json.dumps(facts, indent=2) + "\n"


def benchmark_list(check: Check) -> str:
    """Figures of the candidate for github-action-benchmark's tool `customBiggerIsBetter`."""
    return json.dumps(_entries(check, ("AAL", "speedup")), indent=2) + "\n"


def benchmark_list_smaller(check: Check) -> str:
    """The same for `customSmallerIsBetter`: answers that were lost, outputs that broke."""
    entries: list[dict[str, Any]] = [
        {
            "name": f"{stage} faults",
            "unit": "cells",
            "value": sum(f.stage == stage for f in check.regressions),
        }
        for stage in STAGES[:2]
    ]
    return json.dumps(entries, indent=2) + "\n"


def _entries(check: Check, stages: Sequence[str]) -> list[dict[str, Any]]:
    entries = []
    for finding in check.findings:
        estimate = finding.candidate
        if finding.stage not in stages or estimate is None or estimate.value is None:
            continue
        entry: dict[str, Any] = {
            "name": f"{finding.stage}, {finding.drafter}, {finding.suite}",
            "unit": "tokens per round" if finding.stage == "AAL" else "x",
            "value": estimate.value,
        }
        if estimate.interval is not None:
            low, high = estimate.interval
            entry["range"] = f"± {(high - low) / 2:.3f}"
        entries.append(entry | {"extra": f"n={estimate.n}"})
    return entries


def _table(findings: Sequence[Finding]) -> str:
    lines = ["| " + " | ".join(HEADER) + " |", "|" + " --- |" * len(HEADER)]
    for finding in findings:
        row = (cell.replace("|", "\\|").replace("\n", " ") for cell in cells(finding))
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n"


def _number(estimate: Estimate | None) -> str:
    if estimate is None or estimate.value is None:
        return ""
    if estimate.interval is None:
        return f"{estimate.value:.3f}"
    low, high = estimate.interval
    return f"{estimate.value:.3f} [{low:.3f}, {high:.3f}]"
