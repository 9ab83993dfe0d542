"""Where a round's time goes: what the traced pass of a run stores, one line an answer.

A run's headline figures come from a pass that nobody looks into. A few prompts are then decoded
once more under a probe that waits for the device at the end of every phase; its seconds give
shares and milliseconds a round, and are never used for a speedup.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from specbench.records import jsonl

TRACES = "traces.jsonl"
PHASES = ("draft", "search", "verify", "accept", "update", "rest")
SCHEMA = 1


@dataclass(frozen=True)
class Trace:
    """One answer decoded under the probe.

    Attributes:
        rounds, emitted: of the answer.
        rows: target rows of all rounds, anchors included.
        seconds: decode seconds by phase: "draft" (with the drafter's own prefill), "search" (what
            a drafter marks inside its drafting), "verify" (the target's forward), "accept" (the
            rule and the cache's compaction), "update" (the drafter learns what was committed) and
            "rest".
        joules: what the device took over prefill and decode, where it can be read.
    """

    cell: str
    sample: str
    turn: int
    rounds: int
    emitted: int
    rows: int
    seconds: dict[str, float]
    joules: float | None = None
    schema: int = SCHEMA


@dataclass(frozen=True)
class Split:
    """Milliseconds a round by phase over all traces of a cell, and target rows a round."""

    milliseconds: dict[str, float]
    rows: float
    rounds: int
    joules_per_token: float | None

    @property
    def total(self) -> float:
        """Milliseconds a round."""
        return sum(self.milliseconds.values())


def split(traces: Iterable[Trace]) -> Split | None:
    """Traces of one cell added up; None without a round."""
    kept = list(traces)
    rounds = sum(trace.rounds for trace in kept)
    if rounds == 0:
        return None
    joules = [trace.joules for trace in kept if trace.joules is not None]
    emitted = sum(trace.emitted for trace in kept)
    return Split(
        {p: 1000 * sum(t.seconds.get(p, 0.0) for t in kept) / rounds for p in PHASES},
        sum(trace.rows for trace in kept) / rounds,
        rounds,
        sum(joules) / emitted if len(joules) == len(kept) and emitted else None,
    )


def load_traces(folder: Path) -> Iterator[Trace]:
    """The traces of a run; none where it has none. See `jsonl.read`."""
    return jsonl.read(folder / TRACES, SCHEMA, partial(jsonl.build, Trace))
