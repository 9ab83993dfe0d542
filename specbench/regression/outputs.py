"""A check on a terminal, as markdown, JUnit XML, JSON, and lists of github-action-benchmark."""

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from rich.console import Group, RenderableType
from rich.text import Text

from specbench.errors import writing
from specbench.regression.check import REGRESSION, SKIPPED, STAGES, Check, Finding
from specbench.report.markdown import markdown_table
from specbench.report.terminal import rich_grid
from specbench.stats.exact import MOST_PROMPTS

SCHEMA = 1
SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"
SUMMARY_LIMIT = 1_000_000
"""Most bytes of a step's summary: a little under 1 MiB, beyond which GitHub drops all of it."""
MARKS = {"regression": "✗", "skipped": "-", "fine": "✓", "improved": "▲"}
HEADER = ("", "check", "drafter", "suite", "baseline", "candidate", "change")
INCOMPARABLE = "incomparable"
JUNIT = {REGRESSION: "failure", SKIPPED: "skipped", INCOMPARABLE: "error"}


def files(
    check: Check, junit_xml: Path | None, json_file: Path | None, benchmarks: Path | None
) -> dict[Path, str]:
    """The files asked for with their texts; ``benchmarks`` is a folder for two of them."""
    wanted = {junit_xml: junit, json_file: to_json}
    if benchmarks is not None:
        wanted[benchmarks / "bigger-is-better.json"] = benchmark_list
        wanted[benchmarks / "smaller-is-better.json"] = benchmark_list_smaller
    return {path: text(check) for path, text in wanted.items() if path}


def conclusion(check: Check) -> str:
    """One sentence."""
    if check.exit_code == 3:
        return "Not comparable: " + "; ".join(check.differences) + "."
    counts = Counter(finding.stage for finding in check.regressions)
    worse = ", ".join(f"{counts[stage]} in {stage}" for stage in STAGES if counts[stage])
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
        finding.base.text(3) if finding.base else "",
        finding.candidate.text(3) if finding.candidate else "",
        finding.text + (f" (tolerance {finding.tolerance:.0%})" if finding.tolerance else ""),
    )


def _findings(findings: Sequence[Finding]) -> str:
    return markdown_table([HEADER, *map(cells, findings)]) + "\n"


def rich_check(check: Check) -> RenderableType:
    """A table, the notes and the conclusion for 80 columns; only words are folded."""
    rows = []
    for mark, stage, drafter, suite, base, candidate, change in map(cells, check.findings):
        stacked = (text.replace(" [", "\n[") for text in (base, candidate))
        rows.append((f"{mark} {stage}", f"{drafter}\non {suite}", *stacked, change))
    header = ("check", "drafter", "baseline", "candidate", "change")
    table = rich_grid("", header, rows, folded=(1, 4))
    lines = [*notes(check), conclusion(check)]
    return Group(*([table] if rows else []), *map(Text, lines))


def markdown(check: Check, limit: int = SUMMARY_LIMIT) -> str:
    """Regressions in a table, all other findings folded away; at most ``limit`` bytes."""
    others = [finding for finding in check.findings if finding.verdict != REGRESSION]
    text = f"### specbench check\n\n{conclusion(check)}\n\n"
    text += "".join(f"{note}\n\n" for note in notes(check))
    text += _findings(check.regressions) if check.regressions else ""
    folded = f"\n<details><summary>{len(others)} other checks</summary>\n\n{_findings(others)}\n"
    whole = f"{text}{folded}</details>\n" if others else text
    if len(whole.encode()) <= limit:
        return whole
    end = "\nCut to fit; the JSON output has everything.\n"
    return text.encode()[: max(0, limit - len(end))].decode(errors="ignore") + end


def append_summary(check: Check) -> None:
    """Add the markdown to the job's summary, if the job has one.

    Raises:
        UserError: the variable names a file that cannot be written.
    """
    name = os.environ.get(SUMMARY_VARIABLE)
    if not name:
        return
    path = Path(name)
    with writing(f"{SUMMARY_VARIABLE}={name}"):
        room = SUMMARY_LIMIT - (path.stat().st_size if path.exists() else 0)
        with path.open("a", encoding="utf-8") as file:
            file.write(markdown(check, max(0, room)) + "\n")


def junit(check: Check) -> str:
    """JUnit XML: one test case per finding; a regression is a failure."""
    cases = [(f"{f.suite}.{f.drafter}", f.stage, f.verdict, f.text) for f in check.findings]
    if check.exit_code == 3:
        cases.append(("specbench", "comparable", INCOMPARABLE, conclusion(check)))
    verdicts = Counter(verdict for _, _, verdict, _ in cases)
    suite = ElementTree.Element(
        "testsuite",
        name="specbench check",
        tests=str(len(cases)),
        failures=str(verdicts[REGRESSION]),
        errors=str(verdicts[INCOMPARABLE]),
        skipped=str(verdicts[SKIPPED]),
    )
    for classname, name, verdict, text in cases:
        case = ElementTree.SubElement(suite, "testcase", classname=classname, name=name)
        if verdict in JUNIT:
            ElementTree.SubElement(case, JUNIT[verdict], message=_printable(text))
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
    entries = []
    for finding in check.findings:
        estimate = finding.candidate
        if estimate is None or estimate.value is None:
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
    return json.dumps(entries, indent=2) + "\n"


def benchmark_list_smaller(check: Check) -> str:
    """Counts for `customSmallerIsBetter`: cells that lost answers, cells with broken output."""
    found = Counter(finding.stage for finding in check.regressions)
    entries = [
        {"name": f"{stage} faults", "unit": "cells", "value": found[stage]} for stage in STAGES[:2]
    ]
    return json.dumps(entries, indent=2) + "\n"
