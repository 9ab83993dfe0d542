"""What is loaded for a plan, and what the cells say of it."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from specbench.core import target as loading
from specbench.inputs.plan import Settings, make_plan
from specbench.records import environment
from specbench.records.records import ModelId
from specbench.run.arms import Failure, load
from specbench.zoo import resolve


class Hub:
    """Gives the embedded target under any name and notes what was asked for."""

    def __init__(self, kind: Any, asked: list[tuple[str, str]]) -> None:
        self._kind = kind
        self._asked = asked

    def from_pretrained(self, name: str, *, revision: str, **rest: Any) -> Any:
        self._asked.append((name, revision))
        return self._kind.from_pretrained(resolve("tiny-target"), **rest)


def test_every_copy_of_a_target_is_of_the_revision_that_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, str]] = []
    for kind in (AutoModelForCausalLM, AutoTokenizer):
        monkeypatch.setattr(loading, kind.__name__, Hub(kind, asked))
    cached = {"v2": "/hub/snapshots/c0ffee/config.json"}
    monkeypatch.setattr(
        environment, "try_to_load_from_cache", lambda name, file, revision: cached[revision]
    )
    settings = Settings(("oracle",), ("smoke",), "some/target", "v2", limit=1, device="cpu")
    _, arms = load(make_plan(settings))
    assert not any(isinstance(arm.drafter, Failure) for arm in arms)
    # The model and its tokenizer, for the target and for the oracle's own copy of it.
    assert asked == [("some/target", "v2")] * 4
    assert {cell.target for arm in arms for cell in arm.cells} == {ModelId("some/target", "c0ffee")}
