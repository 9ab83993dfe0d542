"""Finding drafters: entry points, looked up by name and imported only when used."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points, packages_distributions
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any

from specbench import zoo
from specbench.errors import UserError

if TYPE_CHECKING:
    from specbench.core.drafter import Drafter

GROUP = "specbench.drafters"
BASELINE = "autoregressive"


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


def parse_options(name: str, options: type, settings: dict[str, str]) -> Any:
    """``settings`` as text into the frozen dataclass ``options`` of the drafter ``name``.

    Raises:
        UserError: an unknown option (the allowed ones are named), a value of another type, one
            the dataclass itself refuses, or a required one that is missing.
    """
    kinds = typing.get_type_hints(options)
    known = {field.name: field for field in fields(options)}
    for key in settings.keys() - known.keys():
        allowed = ", ".join(known) or "none"
        raise UserError(f"The drafter {name!r} has no option {key!r}; its options are: {allowed}.")
    for key, field in known.items():
        required = field.default is MISSING and field.default_factory is MISSING
        if required and key not in settings:
            raise UserError(f"The drafter {name!r} needs --set {name}.{key}=VALUE.")
    values = {key: _parse(f"{name}.{key}", kinds[key], text) for key, text in settings.items()}
    try:
        return options(**values)
    except ValueError as error:
        raise UserError(f"The drafter {name!r} refuses its options: {error}.") from error


def make_drafter(name: str, settings: dict[str, str]) -> Drafter:
    """The drafter ``name`` with its ``key: value`` settings, not yet bound to a target.

    The option `model` may name an embedded model.

    Raises:
        UserError: see `drafter_class` and `parse_options`.
    """
    kind = drafter_class(name)
    options = parse_options(name, kind.Options, settings)
    if "model" in settings:
        options = replace(options, model=zoo.resolve(options.model))
    return kind(options)


def _parse(option: str, kind: Any, text: str) -> Any:
    """``text`` as an int, float, bool, str, or one of these or None."""
    if typing.get_origin(kind) in (UnionType, typing.Union):
        inner = [one for one in typing.get_args(kind) if one is not NoneType]
        return None if text.lower() == "none" else _parse(option, inner[0], text)
    try:
        if kind is bool:
            return {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}[
                text.lower()
            ]
        return kind(text)
    except (ValueError, KeyError):
        wanted = "true or false" if kind is bool else f"of type {kind.__name__}"
        raise UserError(f"--set {option}={text} is wrong: the value must be {wanted}.") from None


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
