"""Adaptive draft length against rounds worked by hand."""

from __future__ import annotations

import pytest
import torch

from specbench.api import AdaptiveLength, before_stop


def test_rounds_worked_by_hand() -> None:
    """Generated and accepted tokens, and the length that follows, with the paper's settings.

    The smoothed counts, generated then accepted, are in the last column.
    """
    table = [
        (30, 30, 25),  # 15, 15: all kept, 15 + 10
        (25, 3, 20),  # 20, 9
        (20, 20, 20),  # 20, 14.5
        (20, 20, 20),  # 20, 17.25
        (5, 5, 20),  # 12.5, 11.125: 12 is below k_min
        (4, 30, 20),  # 8.25, 20.5625: 8 + 10 is below k_min too
        (29, 9, 20),  # 18.625, 14.78125: 18, not 19
        (30, 30, 24),  # 24.3125, 22.390625
        (30, 40, 30),  # 27.15625, 31.1953125: 37 is above k_max
        (30, 0, 28),  # 28.578125, 15.59765625
    ]
    adaptive = AdaptiveLength()
    assert adaptive.length == 30
    for generated, accepted, length in table:
        adaptive.update(generated, accepted)
        assert adaptive.length == length


def test_settings_are_used() -> None:
    adaptive = AdaptiveLength(k_min=2, k_max=12, delta=3, rho=0.25)
    lengths = [adaptive.length]
    for generated, accepted in [(12, 12), (8, 8), (8, 1), (8, 8)]:
        adaptive.update(generated, accepted)
        lengths.append(adaptive.length)
    # Smoothed: 3, 3; 4.25, 4.25; 5.1875, 3.4375; 5.890625, 4.578125.
    assert lengths == [12, 6, 7, 5, 5]


@pytest.mark.parametrize(
    "settings", [{"k_min": 0}, {"k_min": 31}, {"delta": -1}, {"rho": 0.0}, {"rho": 1.5}]
)
def test_senseless_settings_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="adaptive length needs"):
        AdaptiveLength(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tokens", "count"), [([5, 6, 7], 3), ([5, 2, 7, 2], 1), ([2, 5], 0), ([5, 6, 3], 2), ([], 0)]
)
def test_tokens_before_the_first_stop(tokens: list[int], count: int) -> None:
    draft = torch.tensor(tokens, dtype=torch.long)
    assert int(before_stop(draft, torch.tensor([2, 3]))) == count
    assert int(before_stop(draft, torch.tensor([], dtype=torch.long))) == len(tokens)


def test_a_draft_counts_once_when_it_is_committed() -> None:
    told, counted = AdaptiveLength(2, 12, 3), AdaptiveLength(2, 12, 3)
    stops = torch.tensor([9])
    for draft, accepted in (([1, 2, 3, 9, 9], 2), ([1] * 5, 5), ([9, 1], 0)):
        told.drafted(torch.tensor(draft), stops)
        told.committed(accepted)
        told.committed(accepted)  # Nothing was drafted since.
        counted.update([*draft, 9].index(9), accepted)
        assert told.length == counted.length
