"""Options of a command made from the fields of a settings dataclass."""

import functools
import inspect
import typing
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any

import typer

from specbench.inputs.options import as_typed, parse_options

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
    """The settings of a parameter's default, as a person types them."""
    if parameter.default is parameter.empty:
        return {}
    return {key: as_typed(value) for key, value in vars(parameter.default).items()}


def _options(parameter: inspect.Parameter) -> Iterator[inspect.Parameter]:
    """One parameter for typer per field with a help: a bool, or text that is parsed later."""
    for field in fields(parameter.annotation):
        annotated = typing.get_type_hints(parameter.annotation, include_extras=True)[field.name]
        if typing.get_origin(annotated) is not Annotated:
            continue
        kind, default = annotated.__origin__, getattr(parameter.default, field.name, field.default)
        metavar = None
        if kind is not bool:
            metavar = f"<{inspect.formatannotation(kind).removesuffix(' | None')}>"
            default = default if default in (None, MISSING) else as_typed(default)
        option = typer.Option(
            f"--{field.name.replace('_', '-')}", help=annotated.__metadata__[0], metavar=metavar
        )
        yield inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if default is MISSING else default,
            annotation=Annotated[bool if kind is bool else str | None, option],
        )
