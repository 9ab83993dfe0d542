"""`specbench distribution`: its exit codes, its table and its record."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench import cli
from specbench.core.proposal import Proposal
from specbench.core.rules import WALK, Kept, reject
from specbench.core.sampling import Sampling


def examine(patch: pytest.MonkeyPatch, target: Path, *arguments: object) -> int:
    small = ("--samples", 120, "--tokens", 2, "--prompts", 2, "--device", "cpu")
    command = ["distribution", "--target", target, *small, *arguments]
    patch.setattr(sys, "argv", ["specbench", *map(str, command)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    code = stop.value.code
    assert isinstance(code, int)
    return code


def test_a_drafter_with_an_exact_rule_passes(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Half of the drafts are wrong, so the control fails."""
    out = tmp_path / "distribution.json"
    drafter = ("--drafter", "oracle[rate=0.5,tokens=2]")
    assert examine(monkeypatch, target, *drafter, "--output", out) == 0
    printed = capsys.readouterr().out
    assert "passed: no p below 0.005" in printed
    document = json.loads(out.read_text())
    (result,) = document["results"]
    assert (document["schema"], document["samples"], result["verdict"]) == (2, 120, "passed")
    assert result["cell"]["options"]["rate"] == 0.5
    assert [p["position"] for p in result["test"]["positions"]] == [1, 2]
    assert result["control"]["rule"] == "face-value"
    assert examine(monkeypatch, target, *drafter, "--output", out) == 2
    assert "exists already" in capsys.readouterr().err


def generous(
    proposal: Proposal,
    logits: torch.Tensor,
    sampling: Sampling,
    uniforms: torch.Tensor,
    generator: torch.Generator,
) -> Kept:
    """Apply `reject` with a sharpened target distribution."""
    return reject(proposal, 3 * logits, sampling, uniforms, generator)


def test_a_rule_that_changes_the_distribution_fails(
    target: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    bent = replace(WALK, keep=generous)
    monkeypatch.setattr("drafters.oracle.draft.Oracle.rule", property(lambda self: bent))
    assert examine(monkeypatch, target, "--drafter", "oracle[rate=0.5,tokens=2]") == 1
    assert "FAILED" in capsys.readouterr().out


def test_a_test_whose_control_passes_is_inconclusive(
    target: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The drafter drafts nothing, so the control is plain sampling."""
    assert (
        examine(monkeypatch, target, "--drafter", "prompt-lookup[min_ngram=50,max_ngram=50]") == 3
    )
    assert "Inconclusive: even unverified drafts pass" in capsys.readouterr().out


def test_of_several_configurations_the_worst_counts(
    target: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """A failed test is not hidden by an inconclusive one."""
    verdicts = {2: "failed", 1: "inconclusive"}
    monkeypatch.setattr(
        "specbench.run.distribution.Finding.verdict",
        property(lambda self: verdicts[self.cell.options["tokens"]]),
    )
    assert examine(monkeypatch, target, "--drafter", "oracle[rate=0.5,tokens=2|1]") == 1


def test_the_baseline_has_nothing_to_test(
    target: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    assert examine(monkeypatch, target, "--drafter", "autoregressive") == 2
    assert "names the baseline only" in capsys.readouterr().err


def test_greedy_is_refused(target: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    assert examine(monkeypatch, target, "--drafter", "prompt-lookup", "--temperature", 0) == 2
    assert "--temperature must be above 0" in capsys.readouterr().err
