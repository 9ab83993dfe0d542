"""The one door for a drafter's author holds what it says, and no more."""

import ast
from pathlib import Path

from specbench import api
from tests.helpers.data import ROOT


def test_everything_public_is_listed() -> None:
    public = [name for name in vars(api) if not name.startswith("_")]
    assert sorted(public) == sorted(api.__all__)


def test_every_name_is_used_by_a_drafter_or_a_test() -> None:
    """A name that nobody imports from there is dead."""
    used: set[str] = set()
    for folder in ("drafters", "tests", "specbench"):
        for path in (ROOT / folder).rglob("*.py"):
            used |= imported_from_api(path)
    assert set(api.__all__) - used == set()


def imported_from_api(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "specbench.api"
        for alias in node.names
    }
