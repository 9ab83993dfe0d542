"""Register the drafters of a test file for one test."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

import pytest

from specbench.core.drafter import Drafter
from specbench.inputs import registry


def install(monkeypatch: pytest.MonkeyPatch, *kinds: type[Drafter]) -> None:
    """Add the drafters to the registered ones."""
    ours = [
        EntryPoint(kind.name, f"{kind.__module__}:{kind.__name__}", registry.DRAFTERS)
        for kind in kinds
    ]
    monkeypatch.setattr(
        registry,
        "entry_points",
        lambda group: [*entry_points(group=group), *(ours if group == registry.DRAFTERS else ())],
    )
