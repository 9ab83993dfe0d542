"""Where the time of a round goes: the traced pass of a run stores one line per answer.

The headline figures of a run come from a pass without a probe. Then a few prompts are decoded
again under a probe that times every phase. Its seconds give shares and milliseconds per round;
they are never used for a speedup.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from specbench.records import jsonl

TRACES = "traces.jsonl"
PHASES = ("draft", "search", "verify", "accept", "update", "rest")
SCHEMA = 1


@dataclass(frozen=True)
class Trace:
    """One answer decoded under the probe.

    Attributes:
        rounds: number of rounds.
        emitted: number of tokens that all rounds emitted.
        rows: number of target rows in all rounds, anchors included.
        seconds: decode seconds by phase: "draft" (including the drafter's own prefill), "search"
            (a part of drafting that a drafter marks), "verify" (the target's forward), "accept"
            (the rule and the cache's compaction), "update" (the drafter learns what was
            committed) and "rest".
        joules: energy of prefill and decoding, or None if it cannot be read.
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
    """Milliseconds per round by phase, and target rows per round, over all traces of a cell."""

    milliseconds: dict[str, float]
    rows: float
    rounds: int
    joules_per_token: float | None

    @property
    def total(self) -> float:
        """Milliseconds per round."""
        return sum(self.milliseconds.values())


def split(traces: Iterable[Trace]) -> Split | None:
    """Add up the traces of one cell; return None if there is no round."""
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
    """Read the traces of a run, if it has any; see `jsonl.read`."""
    return jsonl.read(folder / TRACES, SCHEMA, lambda raw: Trace(**raw))
