"""How often a check fails by chance, and what it catches, in simulation."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from specbench.regression.check import Finding, settled
from tests.helpers.checked_runs import TRUE, WORSE, compared, timed

ROWS = 30
LEVEL = 0.025
Draw = Callable[[np.random.Generator, int], Finding]


def failing(findings: list[Finding]) -> int:
    """Figures that fail a check of all of them."""
    return sum(finding.verdict == "regression" for finding in settled(findings))


def test_many_figures_that_did_not_change_fail_a_check_no_more_often_than_one() -> None:
    rng = np.random.default_rng(0)
    checks = [[compared(rng, TRUE) for _ in range(ROWS)] for _ in range(60)]
    alone = sum(any(failing([finding]) for finding in found) for found in checks)
    assert alone >= 20, "without the correction every third check or more fails"
    assert sum(failing(found) > 0 for found in checks) <= 4


def test_five_percent_less_accepted_is_caught_among_many_figures() -> None:
    rng = np.random.default_rng(1)
    caught = 0
    for _ in range(20):
        found = [compared(rng, WORSE if row == 0 else TRUE) for row in range(ROWS)]
        caught += settled([replace(f, tolerance=0.02) for f in found])[0].verdict == "regression"
    assert caught >= 18


def unchanged_aal(rng: np.random.Generator, prompts: int) -> Finding:
    return compared(rng, TRUE, prompts)


def unchanged_speed(rng: np.random.Generator, prompts: int) -> Finding:
    return timed(rng, 1.0, prompts)


def false_alarms(draw: Draw, prompts: int, figures: int, checks: int) -> int:
    """Checks of so many unchanged figures that fail."""
    rng = np.random.default_rng(prompts)
    return sum(failing([draw(rng, prompts) for _ in range(figures)]) > 0 for _ in range(checks))


def most(checks: int) -> float:
    """As many as chance allows at the nominal level, three standard deviations above."""
    return LEVEL * checks + 3 * math.sqrt(LEVEL * checks)


@pytest.mark.parametrize("draw", [unchanged_aal, unchanged_speed])
@pytest.mark.parametrize("prompts", [4, 6, 8, 12])
def test_few_unchanged_prompts_raise_no_more_alarms_than_they_may(draw: Draw, prompts: int) -> None:
    assert false_alarms(draw, prompts, 1, 200) <= most(200)


@pytest.mark.slow
@pytest.mark.parametrize("draw", [unchanged_aal, unchanged_speed])
@pytest.mark.parametrize("figures", [1, 7])
@pytest.mark.parametrize("prompts", [4, 6, 8, 12, 16, 20])
def test_false_alarms_stay_at_their_level(draw: Draw, figures: int, prompts: int) -> None:
    checks = 2000 if figures == 1 else 600
    if prompts > 16:
        checks //= 10
    found = false_alarms(draw, prompts, figures, checks)
    print(prompts, figures, found / checks)
    assert found <= most(checks)


def test_the_interval_alone_would_raise_more_alarms_with_four_prompts() -> None:
    rng = np.random.default_rng(4)
    found = [replace(unchanged_speed(rng, 4), exact=None) for _ in range(400)]
    assert sum(failing([one]) for one in found) > most(400)


@pytest.mark.parametrize(
    ("prompts", "figures"), [(6, 1), (8, 1), (8, 6), (12, 1), (12, 60), (20, 60)]
)
def test_a_large_loss_is_caught_where_the_level_can_be_reached(prompts: int, figures: int) -> None:
    rng = np.random.default_rng(prompts)
    among = [timed(rng, 1.0, 4) for _ in range(figures - 1)]
    found = settled([timed(rng, 2.0, prompts), *among])
    assert (found[0].verdict, found[0].method) == ("regression", "exact test")


@pytest.mark.parametrize(("prompts", "figures", "needed"), [(4, 1, 6), (6, 2, 7), (8, 7, 9)])
def test_a_level_out_of_reach_is_said(prompts: int, figures: int, needed: int) -> None:
    rng = np.random.default_rng(prompts)
    found = settled([timed(rng, 2.0, prompts) for _ in range(figures)])
    assert {finding.verdict for finding in found} == {"skipped"}
    assert f"too few prompts for {figures} figures; {needed} would do" in found[0].text
