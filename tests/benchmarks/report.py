"""Reading and reporting a store of a million rounds: ``python -m tests.benchmarks.report``.

Prints processor seconds, wall-clock seconds and peak memory; the aim is 20 s and 2 GB.
"""

import resource
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from specbench.records.jsonl import to_line
from specbench.records.records import (
    MANIFEST,
    SAMPLES,
    Cell,
    Manifest,
    Sample,
    Verdict,
    manifest_to_json,
)
from specbench.report.formats import render
from specbench.report.summary import summarise
from tests.helpers.run_records import BASELINE, LOOKUP

SUITES = ("gsm8k", "math-500", "humaneval", "mt-bench")
PROMPTS = tuple(f"p{i}" for i in range(80))
DRAFTERS = 8


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rounds = write_store(Path(folder))
        wall, processor = time.perf_counter(), time.process_time()
        summary = summarise([Path(folder)])
        for name in ("markdown", "csv", "json", "latex"):
            render(summary, name)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{rounds:,} rounds: {time.process_time() - processor:.1f} s of processor, "
            f"{time.perf_counter() - wall:.1f} s of wall clock, {memory:,.0f} MB at most"
        )


def write_store(folder: Path) -> int:
    """A run of four suites and eight drafters; how many rounds it has."""
    rng = np.random.default_rng(0)
    cells, rounds = [], 0
    with (folder / SAMPLES).open("w") as file:
        for suite in SUITES:
            base = replace(BASELINE, suite=suite, sample_ids=PROMPTS)
            arms = [replace(LOOKUP, drafter=f"drafter-{d}", suite=suite, sample_ids=PROMPTS)
                    for d in range(DRAFTERS)]  # fmt: skip
            cells += [base, *arms]
            for sample in answers(rng, base, arms):
                rounds += len(sample.rounds)
                file.write(to_line(sample))
    manifest = Manifest("big", "none", "2026-01-01", {c.id: c for c in cells}, {})
    (folder / MANIFEST).write_text(manifest_to_json(manifest))
    return rounds


def answers(rng: np.random.Generator, base: Cell, arms: list[Cell]) -> Iterator[Sample]:
    for prompt in PROMPTS:
        tokens = int(rng.integers(600, 1200))
        output = tuple(rng.zipf(1.3, tokens + 1).clip(0, 150_000).tolist())
        plain = Sample(
            base.id, prompt, 1, "ok", output=output, finish="stop",
            rounds=((0, 0, 1),) * tokens, prefill_seconds=0.05, decode_seconds=0.03 * tokens,
        )  # fmt: skip
        yield plain
        for arm in arms:
            rounds, left = [], tokens
            while left:
                accepted = min(int(rng.geometric(0.33)) - 1, 15, left - 1)
                rounds.append((16, accepted, accepted + 1))
                left -= accepted + 1
            yield replace(
                plain, cell=arm.id, rounds=tuple(rounds), decode_seconds=0.04 * len(rounds),
                verdict=Verdict("identical"),
            )  # fmt: skip


if __name__ == "__main__":
    main()
