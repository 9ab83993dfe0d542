"""Settings as a person types them, into the frozen dataclass that declares them, and back."""

from __future__ import annotations

import difflib
import itertools
import re
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from types import NoneType, UnionType
from typing import Annotated, Any

from specbench.errors import UserError

_BOOLEANS = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}


@dataclass(frozen=True)
class Option:
    """One field of an options class, for a person to read.

    Attributes:
        type: such as "int", "float or none" or "int,int,...".
        default: as it is typed; None where a value is required.
        help: the text beside the type in `Annotated`; empty where there is none.
    """

    name: str
    type: str
    default: str | None
    help: str


def describe(options: type) -> list[Option]:
    """The fields of an options class, in their order."""
    hints = typing.get_type_hints(options, include_extras=True)
    described = []
    for field in fields(options):
        kind, help_text = hints[field.name], ""
        if typing.get_origin(kind) is Annotated:
            kind, help_text = kind.__origin__, str(kind.__metadata__[0])
        described.append(Option(field.name, _kind_name(kind), _default(field), help_text))
    return described


def parse_options(owner: str, options: type, settings: Mapping[str, str]) -> Any:
    """``key: text`` settings into the dataclass ``options`` of ``owner``.

    Fields may be int, float, bool, str, a tuple of one of these (``1,2,3``), or one of these or
    None (``none``).

    Raises:
        UserError: an unknown option (the allowed ones are named), a value of another type, one
            that the dataclass itself refuses, or a required one that is missing.
    """
    kinds = typing.get_type_hints(options)
    known = {field.name: field for field in fields(options)}
    for key in settings.keys() - known.keys():
        allowed = ", ".join(known) or "none"
        raise UserError(f"{owner!r} has no option {key!r}; its options are: {allowed}.")
    for key, field in known.items():
        if _default(field) is None and key not in settings:
            raise UserError(f"{owner!r} needs the option {key!r}.")
    values = {key: _parse(f"{owner}.{key}", kinds[key], text) for key, text in settings.items()}
    try:
        return options(**values)
    except ValueError as error:
        raise UserError(f"{owner!r} refuses its options: {error}.") from error


def as_typed(value: Any) -> str:
    """A setting's value as a person types it: `parse_options` reads it back."""
    if isinstance(value, list | tuple):
        return ",".join(map(as_typed, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def assignments(texts: Iterable[str]) -> dict[str, str]:
    """``key=value`` texts of `--set` as a mapping; the last text of a key counts.

    A key may be typed with dashes: ``block-size=8``.

    Raises:
        UserError: a text without an equals sign.
    """
    settings = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"--set {text} must look like key=value.")
        settings[key.strip().replace("-", "_")] = value.strip()
    return settings


def suggest(name: str, names: Iterable[str]) -> str:
    """The sentence that answers an unknown ``name``: with near ones, else with all of them."""
    known = sorted(names)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"Did you mean {', '.join(near)}?" if near else f"There are: {', '.join(known)}."


def split_outside_brackets(text: str) -> list[str]:
    """Split ``text`` at its commas, but not inside square brackets: ``a[x=1,y=2],b``."""
    return [part.strip() for part in re.split(r",(?![^\[\]]*\])", text) if part.strip()]


def expand(text: str) -> list[tuple[str, dict[str, str]]]:
    """``name[key=value|value,key=value]`` as a name with each combination of its settings.

    The last key changes fastest; a name without brackets has no settings.

    Raises:
        UserError: brackets that do not close, a setting without an equals sign, or a key twice.
    """
    found = re.fullmatch(r"([^\[\]]+)(?:\[([^\[\]]*)\])?", text.strip())
    if found is None:
        raise UserError(f"{text!r} must look like name or name[key=value|value,key=value].")
    name, inside = found.groups()
    axes: dict[str, list[tuple[str, str]]] = {}
    for setting in split_outside_brackets(inside or ""):
        key, equals, values = setting.partition("=")
        if not equals:
            raise UserError(f"{setting!r} in {text!r} must look like key=value or key=value|value.")
        if key.strip() in axes:
            raise UserError(f"{key.strip()!r} is set twice in {text!r}: give key=value|value once.")
        axes[key.strip()] = [(key.strip(), value.strip()) for value in values.split("|")]
    return [(name.strip(), dict(choice)) for choice in itertools.product(*axes.values())]


def _default(field: Any) -> str | None:
    """The default of a dataclass field as it is typed, None where the field is required."""
    if field.default_factory is not MISSING:
        return as_typed(field.default_factory())
    return None if field.default is MISSING else as_typed(field.default)


def _kind_name(kind: Any) -> str:
    if typing.get_origin(kind) in (UnionType, typing.Union):
        return " or ".join(map(_kind_name, typing.get_args(kind)))
    if typing.get_origin(kind) is tuple:
        item = _kind_name(typing.get_args(kind)[0])
        return f"{item},{item},..."
    return "none" if kind is NoneType else str(kind.__name__)


def _parse(option: str, kind: Any, text: str) -> Any:
    if typing.get_origin(kind) in (UnionType, typing.Union):
        inner = [one for one in typing.get_args(kind) if one is not NoneType]
        return None if text.lower() == "none" else _parse(option, inner[0], text)
    if typing.get_origin(kind) is tuple:
        item = typing.get_args(kind)[0]
        return tuple(_parse(option, item, part.strip()) for part in text.split(",") if part)
    try:
        return _BOOLEANS[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError):
        wanted = "true or false" if kind is bool else f"of type {kind.__name__}"
        raise UserError(f"{option}={text} is wrong: the value must be {wanted}.") from None
