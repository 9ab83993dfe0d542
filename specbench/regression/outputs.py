"""A check as markdown, JUnit XML, JSON, and the two lists of github-action-benchmark."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from specbench.errors import UserError
from specbench.regression.check import REGRESSION, SKIPPED, STAGES, Check, Finding
from specbench.stats.bootstrap import Estimate
from specbench.stats.exact import MOST_PROMPTS

SCHEMA = 1
SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"
SUMMARY_LIMIT = 1_000_000
"""Most bytes of a step's summary: a little under 1 MiB, beyond which GitHub drops all of it."""
MARKS = {"regression": "✗", "skipped": "-", "fine": "✓", "improved": "▲"}
HEADER = ("", "check", "drafter", "suite", "baseline", "candidate", "change")
BENCHMARK_FILES = ("bigger-is-better.json", "smaller-is-better.json")


def files(
    check: Check, junit_xml: Path | None, json_file: Path | None, benchmarks: Path | None
) -> dict[Path, str]:
    """The files asked for with their texts; ``benchmarks`` is a folder for two of them."""
    texts = {}
    if junit_xml is not None:
        texts[junit_xml] = junit(check)
    if json_file is not None:
        texts[json_file] = to_json(check)
    if benchmarks is not None:
        texts[benchmarks / BENCHMARK_FILES[0]] = benchmark_list(check)
        texts[benchmarks / BENCHMARK_FILES[1]] = benchmark_list_smaller(check)
    return texts


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
        lines.append("Compared despite different settings: " + "; ".join(check.differences) + ".")
    if check.machine:
        lines.append(f"Speed is not judged: the machines differ ({'; '.join(check.machine)}).")
    counts = {f.stage: f.among for f in check.findings if f.among}
    if counts:
        judged = " and ".join(
            f"{n} {stage} figure{'s' if n > 1 else ''}" for stage, n in counts.items()
        )
        lines.append(
            f'Judged: {judged}. A figure fails if its loss exceeds the tolerance and "no change" '
            f"is rejected: up to {MOST_PROMPTS} prompts by an exact test that swaps the two runs, "
            "beyond by the bootstrap interval; the figures of one kind share an error of 5 % "
            "(Bonferroni). The printed intervals are 95 % each."
        )
    if any(f.verdict == "improved" for f in check.findings):
        lines.append("Some figures improved: `--update` makes this run the baseline.")
    return lines


def cells(finding: Finding) -> tuple[str, ...]:
    """A finding as a row under `HEADER`."""
    return (
        MARKS[finding.verdict],
        finding.stage,
        finding.drafter,
        finding.suite,
        _number(finding.base),
        _number(finding.candidate),
        finding.text + (f" (tolerance {finding.tolerance:.0%})" if finding.tolerance else ""),
    )


def markdown(check: Check, limit: int = SUMMARY_LIMIT) -> str:
    """Regressions in a table, all other findings folded away; at most ``limit`` bytes."""
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
    """Add the markdown to the job's summary and return its path; None if the job has none.

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
    """JUnit XML: one test case per finding; a regression is a failure."""
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
    """Without control characters: XML allows none, and the text of an error may hold some."""
    return "".join(c for c in text if c.isprintable() or c in "\n\t")


def to_json(check: Check) -> str:
    """Everything, for programs."""
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
    return json.dumps(_entries(check), indent=2) + "\n"


def benchmark_list_smaller(check: Check) -> str:
    """Counts for `customSmallerIsBetter`: cells that lost answers, cells with broken output."""
    entries: list[dict[str, Any]] = [
        {
            "name": f"{stage} faults",
            "unit": "cells",
            "value": sum(f.stage == stage for f in check.regressions),
        }
        for stage in STAGES[:2]
    ]
    return json.dumps(entries, indent=2) + "\n"


def _entries(check: Check) -> list[dict[str, Any]]:
    entries = []
    for finding in check.findings:
        estimate = finding.candidate
        if finding.stage not in STAGES[2:] or estimate is None or estimate.value is None:
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
