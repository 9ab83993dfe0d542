"""A drafter in its own distribution is found, tested, run and reported like ours."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from specbench.errors import UserError
from specbench.inputs.plan import plan_arms
from specbench.inputs.registry import make_options, registered
from specbench.testing import CONTRACT, Check, tiny_target
from tests.helpers.commands import call


def installed() -> bool:
    try:
        return bool(version("specbench-echo-last"))
    except PackageNotFoundError:
        return False


pytestmark = pytest.mark.skipif(
    not installed(),
    reason="needs `pip install --no-deps --no-build-isolation ./tests/plugin`",
)


def test_it_is_listed_with_its_distribution() -> None:
    (found,) = [one for one in registered() if one.name == "echo-last"]
    assert found.distribution == "specbench-echo-last 0.1.0"


def test_its_options_are_parsed_and_checked() -> None:
    assert make_options("echo-last", {"tokens": "5"}).tokens == 5
    with pytest.raises(UserError, match=r"no option 'token'.*tokens"):
        make_options("echo-last", {"token": "5"})


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_it_passes_the_contract(check: Check) -> None:
    [arm] = plan_arms(("echo-last",), "any", None, ())
    check(tiny_target(layers=1, context=64), arm.make)


def test_it_is_run_and_reported(target: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text('{"prompt": "aaaa"}\n{"prompt": "bcbc"}\n')
    ran = call(
        *("run", "--drafter", "echo-last", "--suite", "mine.jsonl", "--target", target),
        *("--set", "echo-last.tokens=3", "--max-new-tokens", "12", "--out", "out"),
        *("--device", "cpu", "--dtype", "float32"),
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stderr
    listed = call("list", "drafters", cwd=tmp_path)
    assert "echo-last" in listed.stdout
    report = call("report", "out", "--format", "json", cwd=tmp_path)
    rows = {row["drafter"]: row for row in json.loads(report.stdout)["rows"]}
    assert rows["echo-last"]["n"] == 2
    assert rows["echo-last"]["lossless"] == "identical"
    assert rows["echo-last"]["aal_pooled"] >= 1
