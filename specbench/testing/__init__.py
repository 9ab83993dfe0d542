"""The contract kit: the tests that every drafter must pass, a third party's included.

    @pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
    def test_my_drafter(check):
        check(tiny_target(), MyDrafter)

Every check takes a target and a function that makes a new, unbound drafter. It raises
AssertionError if the contract is broken.
"""

from specbench.testing.contract import CONTRACT, Check
from specbench.testing.lossless import NO_STOPS, assert_counts, assert_lossless, plain
from specbench.testing.models import random_prompts, tiny_target
from specbench.testing.scripted import ScriptedDrafter, ScriptedOptions

__all__ = [
    "CONTRACT",
    "NO_STOPS",
    "Check",
    "ScriptedDrafter",
    "ScriptedOptions",
    "assert_counts",
    "assert_lossless",
    "plain",
    "random_prompts",
    "tiny_target",
]
