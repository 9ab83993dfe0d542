"""What is shown while a run is on."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from specbench.cli.live import Display, Figures, duration
from specbench.records.records import Cell, Sample, Verdict
from tests.helpers.run_records import BASELINE, LOOKUP


def sample(cell: Cell, name: str, seconds: float, verdict: str | None = None) -> Sample:
    """Four emitted tokens in two rounds."""
    return Sample(
        cell.id,
        name,
        1,
        "ok",
        output=(0,) * 5,
        rounds=((4, 1, 2), (4, 1, 2)),
        prefill_seconds=0.1,
        decode_seconds=seconds,
        verdict=Verdict(verdict) if verdict else None,
    )


def figures(*samples: Sample) -> Figures:
    known = [sample(BASELINE, "a", 4.0), sample(BASELINE, "b", 4.0)]
    return Figures([BASELINE, LOOKUP], [*known, *samples])


def test_a_speedup_is_shown_of_what_is_judged() -> None:
    seen = figures()
    assert seen.text(BASELINE) == "baseline"
    assert seen.text(LOOKUP) == ""
    seen.add(sample(LOOKUP, "a", 2.0))
    assert seen.text(LOOKUP) == "AAL 2.00"
    seen.add(sample(LOOKUP, "a", 2.0, "identical"))
    assert seen.text(LOOKUP) == "AAL 2.00, 2.00x"
    seen.add(sample(LOOKUP, "b", 0.5))
    assert seen.text(LOOKUP) == "AAL 2.00, 2.00x"
    seen.add(sample(LOOKUP, "b", 0.5, "lossy"))
    assert seen.text(LOOKUP) == "AAL 2.00, 3.20x"


def test_a_broken_output_leaves_no_speedup() -> None:
    broken = sample(LOOKUP, "b", 2.0, "broken")
    assert figures(sample(LOOKUP, "a", 2.0, "identical"), broken).text(LOOKUP) == (
        "AAL 2.00, broken"
    )


@pytest.mark.parametrize("terminal", [True, False])
def test_a_verdict_that_comes_later_is_shown(terminal: bool) -> None:
    console = Console(file=StringIO(), force_terminal=terminal, width=120)
    held = sample(LOOKUP, "a", 2.0)
    with Display(console) as shown:
        shown.begins([BASELINE, LOOKUP], [], 4)
        shown.measured(LOOKUP, held)
        shown.measured(BASELINE, sample(BASELINE, "a", 4.0))
        shown.judged(LOOKUP, replace(held, verdict=Verdict("broken")))
        shown.measuring(LOOKUP, "b", 1)
        shown.measured(LOOKUP, sample(LOOKUP, "b", 2.0))
    assert isinstance(console.file, StringIO)
    assert "AAL 2.00, broken" in console.file.getvalue()
    assert ("[3/4] prompt-lookup" in console.file.getvalue()) == (not terminal)
    assert "x" not in console.file.getvalue().replace("\x1b", "").replace("prompt-lookup", "")


def test_duration() -> None:
    assert [duration(s) for s in (0.4, 59, 60, 725, 11220)] == [
        "0s",
        "59s",
        "1m 0s",
        "12m 5s",
        "3h 7m",
    ]
