"""Progress of a plan, from records alone."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from specbench.inputs.plan import Plan, PlannedArm, Settings, make_plan
from specbench.inputs.suite import Suite
from specbench.records.jsonl import to_line
from specbench.records.records import Cell, ModelId, Sample
from specbench.records.store import HELD
from specbench.run.progress import progress
from tests.helpers.run_records import BASELINE, LOOKUP, answer, write


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """Make a plan of two suites with two prompts, the baseline and two drafter configurations."""
    for name in ("first", "second"):
        (tmp_path / f"{name}.jsonl").write_text(
            '{"id": "p", "turns": ["one", "two"]}\n{"id": "q", "turns": ["three"]}\n'
        )
    suites = tuple(str(tmp_path / f"{name}.jsonl") for name in ("first", "second"))
    drafters = ("prompt-lookup[tokens=4|8]",)
    return make_plan(Settings(drafters, suites, "tiny-target", max_new_tokens=8))


def cell(plan: Plan, arm: PlannedArm, suite: Suite) -> Cell:
    """Return the cell that a run of ``plan`` records."""
    return replace(
        BASELINE if arm.name == "autoregressive" else LOOKUP,
        target=ModelId(plan.target, sha256="0"),
        drafter=arm.name,
        options=asdict(arm.options),
        suite=suite.name,
        suite_hash=suite.sha256,
        sample_ids=tuple(prompt.id for prompt in suite.prompts),
    )


def cells(plan: Plan) -> list[Cell]:
    return [cell(plan, arm, suite) for suite in plan.suites for arm in plan.arms]


def test_nothing_is_answered_in_a_missing_folder(plan: Plan, tmp_path: Path) -> None:
    parts = progress(plan, tmp_path / "run")
    assert [(part.suite.name, part.arm.label) for part in parts] == [
        (f"{suite}.jsonl", drafter)
        for suite in ("first", "second")
        for drafter in ("autoregressive", "prompt-lookup[tokens=4]", "prompt-lookup[tokens=8]")
    ]
    assert {(len(part.answers), part.missing, part.seconds_left) for part in parts} == {
        (0, 3, None)
    }


def test_answers_are_counted_and_their_seconds_give_the_estimate(
    plan: Plan, tmp_path: Path
) -> None:
    base, small, *_ = known = cells(plan)
    samples = [
        answer(base, "p", 2, 1.0),  # The prefill of each answer takes another second.
        answer(base, "q", 2, 3.0),
        replace(answer(base, "p", 2, 5.0), turn=2),
        answer(small, "p", 2, 2.0),
        Sample(small.id, "q", 1, "error", error="x"),
    ]
    folder = write(tmp_path / "run", known, samples)
    first, second = (progress(plan, folder)[i : i + 3] for i in (0, 3))
    assert [len(part.answers) for part in first] == [3, 2, 0]
    assert [part.missing for part in first] == [0, 1, 3]
    # Seconds come from the same cell, else from the same drafter; failed answers have none.
    assert [part.seconds_left for part in first] == [0.0, 3.0, 9.0]
    assert [part.seconds_left for part in second] == [12.0, 9.0, 9.0]
    p, q = sorted(plan.suites[0].prompts, key=lambda prompt: prompt.id)
    assert [(part.has(p), part.has(q)) for part in first] == [
        (True, True), (False, True), (False, False),
    ]  # fmt: skip


def test_held_answers_count(plan: Plan, tmp_path: Path) -> None:
    known = cells(plan)
    folder = write(tmp_path / "run", known, [])
    (folder / HELD).write_text(to_line(answer(known[1], "p", 2, 1.0)))
    assert [len(part.answers) for part in progress(plan, folder)] == [0, 1, 0, 0, 0, 0]


@pytest.mark.parametrize(
    "other",
    [
        {"suite_hash": "0"},
        {"sample_ids": ("p",)},
        {"temperature": 1.0},
        {"max_new_tokens": 9},
        {"seed": 1},
        {"dtype": "bfloat16"},
        {"target": ModelId("other")},
        {"options": {"tokens": 5, "max_ngram": 3, "min_ngram": 1}},
    ],
)
def test_answers_of_another_plan_do_not_count(
    plan: Plan, tmp_path: Path, other: dict[str, object]
) -> None:
    stranger = replace(cells(plan)[1], **other)  # type: ignore[arg-type]
    folder = write(tmp_path / "run", [stranger], [answer(stranger, "p", 2, 1.0)])
    assert {len(part.answers) for part in progress(plan, folder)} == {0}
