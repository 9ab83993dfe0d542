"""Make cells, samples and run folders for tests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from specbench.records.jsonl import to_line
from specbench.records.records import (
    MANIFEST,
    SAMPLES,
    Cell,
    Manifest,
    ModelId,
    Sample,
    Verdict,
    manifest_to_json,
)

BASELINE = Cell(
    target=ModelId("tiny"),
    drafter="autoregressive",
    role="baseline",
    options={},
    draft_model=None,
    width=0,
    rule="none",
    lossless=True,
    suite="smoke",
    suite_hash="a" * 64,
    sample_ids=("p", "q"),
    temperature=0.0,
    top_k=0,
    top_p=1.0,
    max_new_tokens=8,
    seed=0,
    device="cpu",
    dtype="float32",
    attention="sdpa",
    template=None,
    thinking="n/a",
)
LOOKUP = replace(
    BASELINE, drafter="prompt-lookup", role="method", options={"tokens": 4}, width=4, rule="walk"
)


def answer(cell: Cell, sample: str, emitted: int, seconds: float, kind: str = "") -> Sample:
    """Make the sample of an answer with one round."""
    return Sample(
        cell.id,
        sample,
        1,
        "ok",
        output=tuple(range(emitted + 1)),
        finish="stop",
        rounds=((emitted, emitted - 1, emitted),),
        prefill_seconds=1.0,
        decode_seconds=seconds,
        verdict=Verdict(kind) if kind else None,
    )


def looped(cell: Cell, sample: str) -> Sample:
    """Make the sample of an answer that repeats itself to its end."""
    rounds = ((9, 9, 10), (9, 8, 9))
    plain = answer(cell, sample, 2, 2.0, "identical")
    return replace(plain, output=(1, 2) * 10, rounds=rounds)


def write(
    folder: Path, cells: Iterable[Cell], samples: Iterable[Sample] | None = None, **environment: Any
) -> Path:
    """Write a run folder; without ``samples`` every cell gets two equal answers."""
    folder.mkdir()
    cells = list(cells)
    if samples is None:
        samples = [answer(cell, s, 2, 1.0) for cell in cells for s in "pq"]
    manifest = Manifest(
        folder.name, "specbench run", "2026-01-01", {c.id: c for c in cells}, environment
    )
    (folder / MANIFEST).write_text(manifest_to_json(manifest))
    (folder / SAMPLES).write_text("".join(map(to_line, samples)))
    return folder
