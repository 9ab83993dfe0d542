"""What is installed: entry points, looked up by name and imported only when used."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points, packages_distributions
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from specbench.core.options import NoOptions
from specbench.errors import UserError
from specbench.inputs.options import as_typed, parse_options, suggest

if TYPE_CHECKING:
    from specbench.core.drafter import Drafter

DRAFTERS = "specbench.drafters"
TRAINERS = "specbench.trainers"
GENERATORS = "specbench.generators"
KINDS = {DRAFTERS: "drafter", TRAINERS: "trainer", GENERATORS: "generator"}
"""Entry-point groups, and what one entry of each is called.

An entry names a class with its options as `Options`. The group ``<group>.options`` names that
options class under the same name, in a module that imports no torch. (A trainer may also be a
function, with its options there only.)
"""

PRESETS = "presets.toml"
PRESETS_FORM = "It must hold [[preset]] tables with name, drafter, options and, optionally, note."

T = TypeVar("T")


@dataclass(frozen=True)
class Preset:
    """A name for a drafter with settings: a row of `presets.toml` in the drafter's package."""

    name: str
    drafter: str
    options: Mapping[str, Any]
    note: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.options, Mapping):
            raise TypeError(f"options of {self.name!r} must be a table, not {self.options!r}")


@dataclass(frozen=True)
class Registered:
    """A name as its distribution announces it; nothing of it has been imported.

    Attributes:
        package: the importable package that holds its module and, where it has them, `pairs.toml`
            and `presets.toml`.
        distribution: name and version.
        entry: the entry point; that of its drafter for a preset.
    """

    name: str
    package: str
    distribution: str
    entry: EntryPoint
    preset: Preset | None = None

    @property
    def base(self) -> str:
        """The name of the class: a preset's is that of its drafter."""
        return self.entry.name

    @property
    def settings(self) -> dict[str, str]:
        """What a preset sets, as a person types it."""
        options = self.preset.options if self.preset else {}
        return {key: as_typed(value) for key, value in options.items()}


def registered(group: str = DRAFTERS) -> list[Registered]:
    """All announced names of a group, duplicates included; among the drafters also the presets.

    Raises:
        UserError: a preset that cannot be read, or whose drafter is not in its package.
    """
    found = [
        Registered(
            name=entry.name,
            package=entry.module.rpartition(".")[0] or entry.module,
            distribution=_distribution(entry),
            entry=entry,
        )
        for entry in entry_points(group=group)
    ]
    if group == DRAFTERS:
        found += _presets(found)
    return sorted(found, key=lambda one: (one.name, one.distribution))


def find(name: str, group: str = DRAFTERS) -> Registered:
    """The one entry of ``group`` called ``name``.

    Raises:
        UserError: none (near names are given), or more than one distribution announces it.
    """
    everything = registered(group)
    matches = [one for one in everything if one.name == name]
    if not matches:
        raise UserError(
            f"There is no {KINDS[group]} {name!r}.", suggest(name, {one.name for one in everything})
        )
    if len(matches) > 1:
        owners = " and ".join(one.distribution for one in matches)
        raise UserError(
            f"The {KINDS[group]} {name!r} is announced more than once, by {owners}:",
            "uninstall one of them.",
        )
    return matches[0]


def load(name: str, group: str = DRAFTERS) -> Any:
    """Import the class behind ``name``.

    Raises:
        UserError: unknown or announced twice, it cannot be imported, or, for one of ours, another
            distribution has put files into the top-level package `drafters`.
    """
    one = find(name, group)
    return _import(one, one.entry, group)


def options_class(name: str, group: str = DRAFTERS) -> type:
    """The options class behind ``name``, without torch where it is announced for itself.

    Raises:
        UserError: as `load`.
    """
    one = find(name, group)
    for entry in entry_points(group=f"{group}.options"):
        if (entry.name, _distribution(entry)) == (one.base, one.distribution):
            return cast("type", _import(one, entry, group))
    return cast("type", getattr(_import(one, one.entry, group), "Options", NoOptions))


def make_options(name: str, settings: Mapping[str, str]) -> Any:
    """The options of a drafter from ``key: text`` settings; they go before those of a preset.

    Raises:
        UserError: as `load` and `options.parse_options`.
    """
    return parse_options(name, options_class(name), find(name).settings | dict(settings))


def make_drafter(name: str, options: object) -> Drafter:
    """The drafter ``name`` with its parsed options, not yet bound to a target.

    Raises:
        UserError: as `load`.
    """
    return cast("Drafter", load(name)(options))


def read_table(
    package: str, distribution: str, file: str, row: Callable[..., T], form: str
) -> list[T]:
    """What ``row`` makes of every ``[[table]]`` in a TOML file that a drafter ships.

    The table is named as the file is, but in singular. The package is not imported.

    Args:
        package: holds the file; without one the list is empty.
        distribution: who ships it, for messages.
        row: takes the keys of one table as keyword arguments.
        form: the sentence that says what the file must hold.

    Raises:
        UserError: the file cannot be read, or a table does not have the right keys.
    """
    # Found through the package's spec, since importing the package could import torch.
    spec = find_spec(package)
    folders = (spec.submodule_search_locations if spec else None) or ()
    path = next((p for folder in folders if (p := Path(folder) / file).is_file()), None)
    if path is None:
        return []
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8")).get(
            path.stem.removesuffix("s"), []
        )
        return [row(**keys) for keys in tables]
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path} of {distribution} cannot be read: {error}.", form) from error


def _presets(drafters: list[Registered]) -> list[Registered]:
    """The presets of the packages of ``drafters``."""
    entries = {(one.package, one.distribution, one.name): one.entry for one in drafters}
    found = []
    for package, distribution in dict.fromkeys((one.package, one.distribution) for one in drafters):
        for preset in read_table(package, distribution, PRESETS, Preset, PRESETS_FORM):
            entry = entries.get((package, distribution, preset.drafter))
            if entry is None:
                raise UserError(
                    f"The preset {preset.name!r} of {distribution} is for the drafter "
                    f"{preset.drafter!r}, which is not in its package {package}."
                )
            found.append(Registered(preset.name, package, distribution, entry, preset))
    return found


def _distribution(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "unknown"


def _import(one: Registered, entry: EntryPoint, group: str) -> Any:
    if entry.module.partition(".")[0] == "drafters" and len(_owners()) > 1:
        raise UserError(
            f"The top-level package `drafters` belongs to more than one distribution: "
            f"{', '.join(_owners())}.",
            "Uninstall the one that is not specbench's, then install specbench again.",
        )
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"The {KINDS[group]} {one.name!r} of {one.distribution} cannot be imported: {error}.",
            "Reinstall that distribution.",
        ) from error


@cache
def _owners() -> tuple[str, ...]:
    """Distributions with files in the top-level package `drafters`; the look-up is slow."""
    return tuple(sorted(set(packages_distributions().get("drafters", []))))
