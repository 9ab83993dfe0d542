"""The exact test against p-values worked by hand and by scipy."""

import numpy as np
import pytest
import scipy.stats

from specbench.stats.bootstrap import Array
from specbench.stats.exact import swap_test


def ratio(sums: Array) -> Array:
    return sums[..., :1] / sums[..., 1:]


def test_all_prompts_worse_is_one_swap_in_two_to_the_n() -> None:
    before = np.array([[4.0, 1], [6, 2], [9, 3]])
    found = swap_test(before * [0.5, 1], before, ratio)
    assert (found.loss, found.gain, found.n) == (1 / 8, 1.0, 3)
    back = swap_test(before, before * [0.5, 1], ratio)
    assert (back.loss, back.gain) == (1.0, 1 / 8)


def test_one_of_two_prompts_changed() -> None:
    before = np.array([[4.0, 1], [6, 1]])
    found = swap_test(before - [[1, 0], [0, 0]], before, ratio)
    assert (found.loss, found.gain) == (1 / 2, 1.0)


def test_no_change_is_certain_either_way() -> None:
    same = np.array([[4.0, 1], [6, 2], [0.1, 3]])
    found = swap_test(same, same, ratio)
    assert (found.loss, found.gain) == (1.0, 1.0)


def test_a_figure_that_does_not_exist_raises_no_alarm() -> None:
    nothing = np.zeros((3, 2))
    found = swap_test(nothing, nothing, ratio)
    assert (found.loss, found.gain) == (1.0, 1.0)


@pytest.mark.parametrize("seed", range(3))
def test_it_agrees_with_scipy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    after, before = rng.random((2, 7))
    weights = np.ones(7)
    found = swap_test(np.column_stack([after, weights]), np.column_stack([before, weights]), ratio)
    known = scipy.stats.permutation_test(
        (after, before), lambda a, b: a.sum() / b.sum(), permutation_type="samples",
        alternative="less",
    )  # fmt: skip
    assert found.loss == pytest.approx(known.pvalue)
