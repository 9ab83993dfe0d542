"""Runs that differ in more than the drafter: separate, refused, or side by side on demand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specbench.errors import UserError
from specbench.records.records import ModelId
from specbench.report.formats import render
from specbench.report.summary import summarise
from specbench.stats.bootstrap import prompts_to_decide
from tests.helpers.run_records import BASELINE, LOOKUP, answer, write

DFLASH = replace(LOOKUP, drafter="dflash")


@pytest.mark.parametrize(
    ("setting", "value", "named"),
    [
        ("dtype", "bfloat16", r"dtype \(float32 and bfloat16\)"),
        ("attention", "eager", r"attention \(sdpa and eager\)"),
        ("template", "b" * 64, r"template \(None and bbbbbbbbbb\)"),
        ("thinking", "on", r"thinking \(n/a and on\)"),
        ("temperature", 1.0, r"temperature \(0.0 and 1.0\)"),
        ("top_p", 0.9, r"top_p \(1.0 and 0.9\)"),
        ("seed", 1, r"seed \(0 and 1\)"),
        ("max_new_tokens", 16, r"max_new_tokens on smoke \(8 and 16\)"),
        ("sample_ids", ("p", "r"), r"sample_ids on smoke \(2 prompts, choice .* and 2 prompts"),
        ("suite_hash", "b" * 64, r"suite_hash on smoke \(aaaaaaaaaa and bbbbbbbbbb\)"),
    ],
)
def test_runs_that_differ_are_refused_by_the_setting_and_joined_when_told_to(
    tmp_path: Path, setting: str, value: Any, named: str
) -> None:
    changed = {setting: value}
    a = write(tmp_path / "a", [BASELINE, LOOKUP])
    b = write(tmp_path / "b", [replace(c, **changed) for c in (BASELINE, DFLASH)])
    with pytest.raises(UserError, match=f"a and b differ in {named}.*--force"):
        summarise([a, b], unlike="refuse")
    [table] = summarise([a, b], unlike="together").tables
    assert list(table.lines) == [
        "autoregressive (run a)", "autoregressive (run b)", "prompt-lookup", "dflash",
    ]  # fmt: skip
    [difference] = table.unlike
    assert difference.startswith(setting)
    assert "in a, " in difference
    assert f"NOT ALIKE, side by side because of --force: {difference}" in render(
        summarise([a, b], unlike="together"), "markdown"
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"target": ModelId("other")},
        {"suite": "gsm8k", "suite_hash": "b" * 64, "max_new_tokens": 512},
        {"drafter": "dflash"},
    ],
)
def test_other_targets_suites_and_drafters_are_no_reason_to_refuse(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    a = write(tmp_path / "a", [LOOKUP])
    b = write(tmp_path / "b", [replace(LOOKUP, **changed)])
    assert all(not table.unlike for table in summarise([a, b], unlike="refuse").tables)


def test_runs_that_share_their_settings_are_not_refused_for_further_ones(tmp_path: Path) -> None:
    hot = replace(LOOKUP, temperature=1.0)
    a = write(tmp_path / "a", [LOOKUP, hot])
    b = write(tmp_path / "b", [DFLASH])
    tables = summarise([a, b], unlike="refuse").tables
    assert [len(table.lines) for table in tables] == [2, 1]


def test_one_run_is_never_refused_nor_joined_with_itself(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", [LOOKUP, replace(LOOKUP, temperature=1.0)])
    for choice in ("refuse", "together", "separate"):
        assert len(summarise([folder], unlike=choice).tables) == 2  # type: ignore[arg-type]


def test_another_machine_gets_a_table_of_its_own_or_stands_in_the_caption(tmp_path: Path) -> None:
    a = write(tmp_path / "a", [LOOKUP], cpu="slow")
    b = write(tmp_path / "b", [DFLASH], cpu="fast")
    assert len(summarise([a, b], unlike="refuse").tables) == 2
    [table] = summarise([a, b], unlike="together").tables
    assert [text.split(":")[0] for text in table.unlike] == ["machine"]


def test_the_fastest_of_equals_is_not_told_apart_for_having_been_picked(tmp_path: Path) -> None:
    names = tuple(f"p{i}" for i in range(20))
    cells = [
        replace(cell, sample_ids=names, drafter=drafter)
        for cell, drafter in [(BASELINE, "autoregressive"), *((LOOKUP, d) for d in "abcdef")]
    ]
    pairs = []
    for seed in range(10):
        clock = np.random.default_rng(seed)
        samples = [
            answer(cell, name, 4, float(np.exp(0.1 * clock.standard_normal())), "identical")
            for cell in cells
            for name in names
        ]
        [table] = summarise([write(tmp_path / str(seed), cells, samples)]).tables
        pairs.append([row for row in table.rows if row.comparison])
    plain = [[prompts_to_decide(pair.comparison.speed) == 20 for pair in found] for found in pairs]
    assert sum(map(any, plain)) >= 4
    assert not any(pair.prompts_to_decide == 20 for found in pairs for pair in found)
    assert {pair.pairs for found in pairs for pair in found} == {15}
