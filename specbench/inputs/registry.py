"""Finding drafters: entry points, looked up by name and imported only when used."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points, packages_distributions
from typing import TYPE_CHECKING

from specbench import zoo
from specbench.errors import UserError
from specbench.inputs.options import parse_options

if TYPE_CHECKING:
    from specbench.core.drafter import Drafter

GROUP = "specbench.drafters"


@dataclass(frozen=True)
class Registered:
    """A drafter as its distribution announces it; nothing of it has been imported.

    Attributes:
        package: the importable package that holds its module and, where it has one, `pairs.toml`.
        distribution: name and version.
    """

    name: str
    package: str
    distribution: str
    entry: EntryPoint


def registered() -> list[Registered]:
    """All announced drafters by name, duplicates included."""
    found = [
        Registered(
            name=entry.name,
            package=entry.module.rpartition(".")[0] or entry.module,
            distribution=f"{entry.dist.name} {entry.dist.version}" if entry.dist else "unknown",
            entry=entry,
        )
        for entry in entry_points(group=GROUP)
    ]
    return sorted(found, key=lambda one: (one.name, one.distribution))


def find(name: str) -> Registered:
    """The one drafter called ``name``.

    Raises:
        UserError: none (near names are given), or more than one distribution announces it.
    """
    everything = registered()
    matches = [one for one in everything if one.name == name]
    if not matches:
        raise UserError(
            f"There is no drafter {name!r}.", _instead(name, {d.name for d in everything})
        )
    if len(matches) > 1:
        owners = " and ".join(one.distribution for one in matches)
        raise UserError(
            f"The drafter {name!r} is announced by two distributions, {owners}:",
            "uninstall one of them.",
        )
    return matches[0]


def drafter_class(name: str) -> type[Drafter]:
    """Import the class behind ``name``.

    Raises:
        UserError: unknown or announced twice, it cannot be imported, or, for one of ours, another
            distribution has put files into the top-level package `drafters`.
    """
    one = find(name)
    if one.entry.module.partition(".")[0] == "drafters":
        _refuse_foreign_owner()
    try:
        found = one.entry.load()
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"The drafter {name!r} of {one.distribution} cannot be imported: {error}.",
            "Reinstall that distribution.",
        ) from error
    return typing.cast("type[Drafter]", found)


def make_drafter(name: str, settings: dict[str, str]) -> Drafter:
    """The drafter ``name`` with its ``key: value`` settings, not yet bound to a target.

    The option `model` may name an embedded model.

    Raises:
        UserError: see `drafter_class` and `options.parse_options`.
    """
    kind = drafter_class(name)
    options = parse_options(name, kind.Options, settings)
    if "model" in settings:
        options = replace(options, model=zoo.resolve(options.model))
    return kind(options)


@cache
def _owners() -> tuple[str, ...]:
    """Distributions with files in the top-level package `drafters`; the look-up is slow."""
    return tuple(sorted(set(packages_distributions().get("drafters", []))))


def _refuse_foreign_owner() -> None:
    owners = _owners()
    if len(owners) > 1:
        raise UserError(
            f"The top-level package `drafters` belongs to more than one distribution: "
            f"{', '.join(owners)}.",
            "Uninstall the one that is not specbench's, then install specbench again.",
        )


def _instead(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    listed = ", ".join(near or sorted(names))
    return f"Did you mean {listed}?" if near else f"There are: {listed}."
