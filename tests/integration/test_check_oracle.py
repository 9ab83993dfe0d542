"""The regression check on real runs: it finds a drafter whose AAL is 5 % lower."""

import json
from pathlib import Path

import pytest

from specbench.inputs.plan import Settings, make_plan
from specbench.regression.check import check
from specbench.run.runner import run
from tests.helpers.observers import Recorder

PROMPTS = 64
RATE, WORSE = 0.8, 0.774
"""With 4 tokens per round, (1 - r^5) / (1 - r) is 3.36 at RATE and 5 % lower at WORSE."""


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("suite") / "counting.jsonl"
    rows = [json.dumps({"prompt": f"Count from {i} to {3 * i + 7}."}) for i in range(PROMPTS)]
    path.write_text("\n".join(rows) + "\n")
    return path


def measured(target: Path, suite: Path, folder: Path, rate: float) -> Path:
    plan = make_plan(
        Settings(
            (f"oracle[rate={rate},tokens=4]",),
            (str(suite),),
            str(target),
            max_new_tokens=96,
            device="cpu",
        )
    )
    run(plan, folder, "command", Recorder())
    return folder


def test_five_percent_lower_aal_is_found(target: Path, suite: Path, tmp_path: Path) -> None:
    base = measured(target, suite, tmp_path / "base", RATE)
    worse = measured(target, suite, tmp_path / "worse", WORSE)
    # The rate is an option, so comparing the two runs needs --force.
    assert check(worse, base).exit_code == 3
    found = [f for f in check(worse, base, force=True).regressions if f.stage == "AAL"]
    assert len(found) == 1
    ratio = found[0].ratio
    assert ratio is not None
    assert ratio.value == pytest.approx(0.95, abs=0.03)
