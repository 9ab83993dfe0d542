"""Options of a command made from the fields of a settings dataclass."""

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Annotated, Any

import typer

from specbench.inputs.options import as_typed, describe, parse_options

Command = Callable[..., None]


def with_fields(name: str) -> Callable[[Command], Command]:
    """Replace each parameter of a command that is a dataclass by one option per field.

    Fields without a help get no option. A parameter's default, an instance, holds the defaults of
    its options; without one they are the dataclass's own.

    Args:
        name: of the command, for messages.
    """

    def decorate(command: Command) -> Command:
        parameters = inspect.signature(command).parameters.values()
        spread = {p.name: p for p in parameters if is_dataclass(p.annotation)}
        shown = [o for p in parameters for o in (_options(p) if p.name in spread else [p])]

        @functools.wraps(command)
        def run(**given: Any) -> None:
            for key, parameter in spread.items():
                texts = _defaults(parameter)
                for field in fields(parameter.annotation):
                    value = given.pop(field.name, None)
                    texts |= {} if value is None else {field.name: as_typed(value)}
                given[key] = parse_options(name, parameter.annotation, texts)
            command(**given)

        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in shown]
        )
        return run

    return decorate


def _defaults(parameter: inspect.Parameter) -> dict[str, str]:
    """The settings of a parameter's default, as a person types them; empty without one."""
    known = {} if parameter.default is parameter.empty else vars(parameter.default)
    return {key: as_typed(value) for key, value in known.items()}


def _options(parameter: inspect.Parameter) -> Iterator[inspect.Parameter]:
    """One parameter for typer per field with a help: a bool, or text that is parsed later."""
    defaults = _defaults(parameter)
    for field in describe(parameter.annotation):
        if not field.help:
            continue
        text = defaults.get(field.name, field.default)
        kind: Any = str | None
        default: Any = {None: inspect.Parameter.empty, "none": None}.get(text, text)
        metavar: str | None = f"<{field.type.removesuffix(' or none')}>"
        if field.type == "bool":
            kind, default, metavar = bool, text == "true", None
        name = f"--{field.name.replace('_', '-')}"
        yield inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=Annotated[kind, typer.Option(name, help=field.help, metavar=metavar)],
        )
