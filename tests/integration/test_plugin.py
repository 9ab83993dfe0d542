"""A drafter in a distribution of its own is found, tested, run and reported like ours."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import pytest

from specbench.errors import UserError
from specbench.registry import make_drafter, registered
from specbench.testing import CONTRACT, Check, tiny_target


def installed() -> bool:
    try:
        return bool(version("specbench-echo-last"))
    except PackageNotFoundError:
        return False


pytestmark = pytest.mark.skipif(
    not installed(),
    reason="needs `pip install --no-deps --no-build-isolation ./tests/plugin`",
)


def test_it_is_listed_with_its_distribution() -> None:
    (found,) = [one for one in registered() if one.name == "echo-last"]
    assert found.distribution == "specbench-echo-last 0.1.0"


def test_its_options_are_parsed_and_checked() -> None:
    assert make_drafter("echo-last", {"tokens": "5"}).options.tokens == 5
    with pytest.raises(UserError, match=r"no option 'token'.*tokens"):
        make_drafter("echo-last", {"token": "5"})


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_it_passes_the_contract(check: Check) -> None:
    check(tiny_target(layers=1, context=64), lambda: make_drafter("echo-last", {}))
