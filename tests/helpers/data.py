"""Paths of the real suites' data, for tests that read it."""

import os
from pathlib import Path

import pytest

from specbench.inputs.cards import Card

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("SPECBENCH_DATA") or ROOT / "../shared/data")


def require_rows(card: Card) -> Path | None:
    """Return the data folder of a suite, or None if it is embedded; skip the test without data."""
    if card.embedded is not None:
        return None
    if not any((DATA / name).is_file() for name in card.files):
        pytest.skip(f"{card.files[0]} is not in SPECBENCH_DATA or ../shared/data")
    return DATA
