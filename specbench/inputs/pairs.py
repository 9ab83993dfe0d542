"""Which published draft goes with which target: `pairs.toml` in a drafter's own package."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path

from specbench.errors import UserError
from specbench.inputs import registry

FILE = "pairs.toml"


@dataclass(frozen=True)
class Pair:
    """A draft that was made for a target, by hub id or embedded name."""

    drafter: str
    target: str
    draft: str
    note: str = ""


def all_pairs() -> list[Pair]:
    """The pairs of every drafter, in the order of their files; no drafter is imported."""
    return [pair for one in registry.registered() for pair in _pairs_of(one)]


def find_pair(drafter: str, target: str) -> Pair | None:
    """The first pair of ``drafter`` for ``target``, or None."""
    own = _pairs_of(registry.find(drafter))
    return next((pair for pair in own if pair.target == target), None)


def _pairs_of(one: registry.Registered) -> list[Pair]:
    path = _file(one.package)
    if path is None:
        return []
    try:
        rows = tomllib.loads(path.read_text(encoding="utf-8")).get("pair", [])
        return [pair for row in rows if (pair := _pair(one.name, **row))]
    except (tomllib.TOMLDecodeError, TypeError) as error:
        raise UserError(
            f"{path} of {one.distribution} cannot be read: {error}.",
            "It must hold [[pair]] tables with target, draft and, optionally, note and drafters.",
        ) from error


def _pair(name: str, drafters: Sequence[str] = ("*",), **row: str) -> Pair | None:
    """A row, unless it is for other drafters of the package than ``name``."""
    wanted = any(fnmatchcase(name, pattern) for pattern in drafters)
    return Pair(drafter=name, **row) if wanted else None


def _file(package: str) -> Path | None:
    """Found through the package's spec, since importing the package could import torch."""
    spec = find_spec(package)
    folders = spec.submodule_search_locations if spec else None
    files = (Path(folder) / FILE for folder in folders or ())
    return next((path for path in files if path.is_file()), None)
