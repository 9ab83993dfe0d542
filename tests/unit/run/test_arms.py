"""Arms: what is loaded for a plan, and what the cells record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from specbench import hub
from specbench.core import target as loading
from specbench.core.decode import Decoding
from specbench.core.drafter import Autoregressive, Request, Unbound
from specbench.core.sampling import Sampling
from specbench.errors import UserError
from specbench.inputs.plan import Settings, make_plan
from specbench.records import environment
from specbench.records.records import ModelId
from specbench.run.arms import DrafterArm, load
from specbench.run.turns import Turn
from specbench.testing import tiny_target
from specbench.zoo import resolve
from tests.helpers.run_records import BASELINE


class Hub:
    """Loads the embedded target for every name, and records the names and revisions."""

    def __init__(self, kind: Any, asked: list[tuple[str, str]]) -> None:
        self._kind = kind
        self._asked = asked

    def from_pretrained(self, name: str, *, revision: str, **rest: Any) -> Any:
        self._asked.append((name, revision))
        return self._kind.from_pretrained(resolve("tiny-target"), **rest)


def test_every_copy_of_a_target_has_the_recorded_revision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, str]] = []
    for kind in (AutoModelForCausalLM, AutoTokenizer):
        monkeypatch.setattr(loading, kind.__name__, Hub(kind, asked))
    monkeypatch.setattr(hub, "outage", lambda: None)
    cached = {"v2": "/hub/snapshots/c0ffee/config.json"}
    monkeypatch.setattr(
        environment, "try_to_load_from_cache", lambda name, file, revision: cached[revision]
    )
    settings = Settings(("oracle",), ("smoke",), "some/target", "v2", limit=1, device="cpu")
    _, arms = load(make_plan(settings))
    assert all(arm.bound for arm in arms)
    # The model and its tokenizer, for the target and for the oracle's own copy.
    assert asked == [("some/target", "v2")] * 4
    assert {cell.target for arm in arms for cell in arm.cells} == {ModelId("some/target", "c0ffee")}


def test_a_warm_up_fits_the_context() -> None:
    target = tiny_target(context=16)
    drafter = Autoregressive()
    drafter.bind(target.view())
    arm = DrafterArm(target, drafter, (), Sampling())
    arm.prepare(Turn(list(range(14)), 2, 0))
    assert arm.is_warm


class _Control(Autoregressive):
    role = "control"

    def prepare(self, prompt: list[int], request: Request) -> None:
        self.prepared = prompt, request


class _Method(_Control):
    role = "method"


@pytest.mark.parametrize(("kind", "prepares"), [(_Control, True), (_Method, False)])
def test_only_a_control_prepares_untimed(kind: type[_Control], prepares: bool) -> None:
    """A control gets the request with which its session will be opened."""
    target = tiny_target(context=64)
    drafter = kind()
    drafter.bind(target.view())
    turn = Turn([3, 4, 5], 6, 7)
    DrafterArm(target, drafter, (), Sampling(1.0)).prepare(turn)
    assert hasattr(drafter, "prepared") == prepares
    if prepares:
        expected = Decoding(target, drafter, turn.prompt, 6, sampling=Sampling(1.0), seed=7).request
        prompt, request = drafter.prepared
        assert prompt == turn.prompt
        assert replace(request, probe=expected.probe) == expected


def test_a_drafter_that_cannot_be_bound_raises_its_error_when_opened() -> None:
    target = tiny_target()
    cell = replace(BASELINE, drafter="shy")
    arm = DrafterArm(target, Unbound(RuntimeError("no room")), (cell,), Sampling())
    with pytest.raises(RuntimeError, match="no room"):
        arm.answer(Turn([1, 2], 4, 0))
    with pytest.raises(UserError, match="'shy' cannot be loaded: RuntimeError: no room"):
        assert arm.bound
