"""TOML tables that a drafter ships beside its module; they are read without importing it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from specbench.errors import UserError

T = TypeVar("T")


def read_table(
    package: str, distribution: str, file: str, row: Callable[..., T], form: str
) -> list[T]:
    """What ``row`` makes of every ``[[table]]`` in ``file``, named as the file is but in singular.

    Args:
        package: holds the file; without one the list is empty.
        distribution: who ships it, for messages.
        row: takes the keys of one table as keyword arguments.
        form: the sentence that says what the file must hold.

    Raises:
        UserError: the file cannot be read, or a table does not have the right keys.
    """
    path = _find(package, file)
    if path is None:
        return []
    table = path.stem.removesuffix("s")
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8")).get(table, [])
        return [row(**keys) for keys in tables]
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path} of {distribution} cannot be read: {error}.", form) from error


def _find(package: str, file: str) -> Path | None:
    """Found through the package's spec, since importing the package could import torch."""
    spec = find_spec(package)
    folders = spec.submodule_search_locations if spec else None
    paths = (Path(folder) / file for folder in folders or ())
    return next((path for path in paths if path.is_file()), None)
