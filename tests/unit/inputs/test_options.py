"""Settings as text into the dataclass that declares them."""

from dataclasses import dataclass, field
from typing import Annotated

import pytest

from specbench.errors import UserError
from specbench.inputs.options import (
    Option,
    as_typed,
    assignments,
    describe,
    expand,
    parse_options,
    split_outside_brackets,
)


@dataclass(frozen=True)
class Options:
    width: int = 4
    share: float = 0.5
    exact: bool = True
    model: str | None = None

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError("width must be at least 1")


@dataclass(frozen=True)
class Demanding:
    model: str


def test_options_are_typed() -> None:
    text = {"width": "8", "share": "0.25", "exact": "off", "model": "some/model"}
    assert parse_options("x", Options, text) == Options(8, 0.25, False, "some/model")
    assert parse_options("x", Options, {"model": "none"}) == Options()


def test_a_value_is_shown_as_it_is_typed() -> None:
    options = Options(8, 0.25, False, None)
    shown = {key: as_typed(value) for key, value in vars(options).items()}
    assert shown == {"width": "8", "share": "0.25", "exact": "false", "model": "none"}
    assert parse_options("x", Options, shown) == options
    # A stored tuple comes back from JSON as a list.
    assert as_typed((1, 2)) == as_typed([1, 2]) == "1,2"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"widht": "8"}, "no option 'widht'; its options are: width, share, exact, model"),
        ({"width": "wide"}, "x.width=wide is wrong: the value must be of type int"),
        ({"exact": "perhaps"}, "the value must be true or false"),
        ({"width": "0"}, "width must be at least 1"),
    ],
)
def test_wrong_options(settings: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_options("x", Options, settings)


def test_a_required_option_is_asked_for() -> None:
    with pytest.raises(UserError, match="'x' needs the option 'model'"):
        parse_options("x", Demanding, {})


def test_options_are_described() -> None:
    @dataclass(frozen=True)
    class Base:
        model: Annotated[str, "The model."]
        width: Annotated[int, "How wide."] = 4

    @dataclass(frozen=True)
    class Described(Base):
        width: Annotated[int, "How wide it may be."] = 8
        share: Annotated[float | None, "The share."] = None
        ids: Annotated[tuple[int, ...], "The layers."] = (1, 2)
        bare: bool = True
        made: tuple[str, ...] = field(default_factory=tuple)

    assert describe(Described) == [
        Option("model", "str", None, "The model."),
        Option("width", "int", "8", "How wide it may be."),
        Option("share", "float or none", "none", "The share."),
        Option("ids", "int,int,...", "1,2", "The layers."),
        Option("bare", "bool", "true", ""),
        Option("made", "str,str,...", "", ""),
    ]
    assert parse_options("x", Described, {"model": "m"}) == Described("m")
    assert parse_options("x", Described, {"model": "m", "share": "0.5"}).share == 0.5


def test_assignments() -> None:
    assert assignments(["a-b=1", " b = x=y ", "a_b=2"]) == {"a_b": "2", "b": "x=y"}
    with pytest.raises(UserError, match="--set a must look like key=value"):
        assignments(["a"])


def test_a_tuple_is_split_at_commas() -> None:
    @dataclass(frozen=True)
    class Layers:
        ids: tuple[int, ...] | None = None

    assert parse_options("x", Layers, {"ids": "1,3, 5"}) == Layers((1, 3, 5))
    with pytest.raises(UserError, match="must be of type int"):
        parse_options("x", Layers, {"ids": "1,two"})


def test_a_name_expands_to_every_combination_of_its_settings() -> None:
    assert expand("dflash") == [("dflash", {})]
    assert expand("a[x=1|2, y=u|v]") == [
        ("a", {"x": "1", "y": "u"}),
        ("a", {"x": "1", "y": "v"}),
        ("a", {"x": "2", "y": "u"}),
        ("a", {"x": "2", "y": "v"}),
    ]
    assert split_outside_brackets("a[x=1,y=2], b ,c[z=1]") == ["a[x=1,y=2]", "b", "c[z=1]"]


@pytest.mark.parametrize("text", ["a[x=1", "a]x", "a[x]", "[x=1]", "a[x=1]b", "a[x=1,x=2]"])
def test_malformed_variants_are_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"must look like|set twice"):
        expand(text)
