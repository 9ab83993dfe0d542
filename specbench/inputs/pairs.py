"""Which published draft goes with which target: `pairs.toml` in a drafter's own package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from specbench.inputs import registry

FILE = "pairs.toml"
FORM = "It must hold [[pair]] tables with target, draft and, optionally, note and drafters."


@dataclass(frozen=True)
class Pair:
    """A draft that was made for a target, by hub id or embedded name.

    Attributes:
        drafters: patterns of the drafters in the package that can load it.
    """

    target: str
    draft: str
    note: str = ""
    drafters: Sequence[str] = ("*",)


def all_pairs() -> list[tuple[str, Pair]]:
    """Every drafter's name with each of its pairs, in the order of their files.

    No drafter is imported. A preset has the pairs of its drafter and is not listed for itself.
    """
    drafters = (one for one in registry.registered() if one.preset is None)
    return [(one.name, pair) for one in drafters for pair in _pairs_of(one)]


def find_pair(drafter: str, target: str) -> Pair | None:
    """The first pair of ``drafter`` for ``target``, or None; a preset has its drafter's pairs."""
    own = _pairs_of(registry.find(drafter))
    return next((pair for pair in own if pair.target == target), None)


def _pairs_of(one: registry.Registered) -> list[Pair]:
    pairs = registry.read_table(one.package, one.distribution, FILE, Pair, FORM)
    return [pair for pair in pairs if any(fnmatchcase(one.base, name) for name in pair.drafters)]
