"""Options of every drafter: announced, described, and read without torch."""

import subprocess
import sys
from dataclasses import fields
from importlib.metadata import entry_points
from typing import Any, get_type_hints

import pytest

from drafters.diffusion.options import DRAFT_ORDERS
from drafters.diffusion.sampling import ORDERS
from specbench.api import ModelOptions, UserError
from specbench.core.drafter import NoOptions
from specbench.inputs.options import parse_options

DRAFTERS = {entry.name: entry for entry in entry_points(group="specbench.drafters")
            if entry.module.startswith("drafters.")}  # fmt: skip
OPTIONS = {entry.name: entry for entry in entry_points(group="specbench.drafters.options")}
MODELS = [name for name in DRAFTERS if name not in ("oracle", "prompt-lookup")]


@pytest.mark.parametrize("name", DRAFTERS)
def test_the_announced_options_are_the_drafter_s(name: str) -> None:
    options: Any = OPTIONS[name].load()
    assert options is DRAFTERS[name].load().Options
    assert options.__name__ != NoOptions.__name__


@pytest.mark.parametrize("name", DRAFTERS)
def test_every_option_says_what_it_means(name: str) -> None:
    options: Any = OPTIONS[name].load()
    hints = get_type_hints(options, include_extras=True)
    for field in fields(options):
        (said,) = hints[field.name].__metadata__
        assert said.endswith("."), f"{field.name}: {said}"


@pytest.mark.parametrize("name", MODELS)
def test_a_model_must_be_named(name: str) -> None:
    options: Any = OPTIONS[name].load()
    assert issubclass(options, ModelOptions)
    with pytest.raises(UserError, match=f"'{name}' needs the option 'model'"):
        parse_options(name, options, {})
    assert [field.name for field in fields(options)][:2] == ["model", "revision"]


def test_no_option_needs_torch() -> None:
    ours = {entry.module for entry in OPTIONS.values() if entry.module.startswith("drafters.")}
    imports = ", ".join(sorted(ours))
    code = f"import sys, {imports}; print({{'torch', 'transformers'}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_draft_orders_are_those_that_finish_in_any_number_of_steps() -> None:
    assert tuple(name for name in ORDERS if name != "first_hitting") == DRAFT_ORDERS
