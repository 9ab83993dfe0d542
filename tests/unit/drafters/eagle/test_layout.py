"""Rotary settings and layer ids of EAGLE checkpoints, in every spelling in use."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from drafters.eagle.draft import Eagle3
from specbench.api import KVCache, Target, UserError
from specbench.testing import tiny_target
from tests.helpers.eagle_drafts import (
    bound,
    change_config,
    eagle3_config,
    load,
    write_head,
)


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(layers=7)


@pytest.mark.parametrize(
    ("keys", "theta", "kind"),
    [
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, 5e5, "default"),
        ({"rope_theta": 5e5}, 5e5, "default"),
        ({"rope_theta": 5e5, "rope_scaling": None}, 5e5, "default"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 1e4, "linear"),
        ({}, 1e4, "default"),
        (
            {"rope_theta": 1.0, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
            5e5,
            "default",
        ),
    ],
)
def test_rope_spellings(
    keys: dict[str, Any], theta: float, kind: str, target: Target, tmp_path: Path
) -> None:
    folder = write_head(eagle3_config(target), tmp_path)
    change_config(folder, {}, ("rope_parameters",))
    change_config(folder, keys)
    rope = load(folder).config.rope
    assert (rope["rope_theta"], rope["rope_type"]) == (theta, kind)


def test_the_base_can_be_overridden_and_is_told(target: Target, tmp_path: Path) -> None:
    folder = write_head(eagle3_config(target), tmp_path)
    assert bound(Eagle3, target, folder).details["rope"]["rope_theta"] == 10000.0
    other = bound(Eagle3, target, folder, rope_theta=1e6, norm_output=True)
    assert other.details["rope"]["rope_theta"] == 1e6
    assert other.details["norm_output"] is True


def test_rotary_tables_past_the_configured_length(target: Target, tmp_path: Path) -> None:
    """Positions far behind max_position_embeddings, for a 16-bit model too."""
    folder = write_head(eagle3_config(target, max_positions=2048), tmp_path)
    drafter = Eagle3(Eagle3.Options(model=str(folder)))
    drafter.bind(replace(target.view(), dtype=torch.bfloat16))
    cos, sin = drafter.rope(5000)
    half = drafter.config.head_dim // 2
    angle = torch.arange(5000)[:, None].double() * 1e4 ** (-torch.arange(half).double() / half)
    for table, want in (
        (cos[:, 0, :half], angle.cos()),
        (cos[:, 0, half:], angle.cos()),
        (sin[:, 0, :half], -angle.sin()),
        (sin[:, 0, half:], angle.sin()),
    ):
        assert float((table - want).abs().max()) < 1e-3


@pytest.mark.parametrize(
    ("ids", "layers", "boundaries"),
    [
        (None, 8, (2, 4, 5)),
        (None, 32, (2, 16, 29)),
        (None, 36, (2, 18, 33)),
        ((2, 18, 33), 36, (2, 18, 33)),
        ((1, 17, 32), 36, (2, 18, 33)),
        ((24, 30, 36), 36, (24, 30, 36)),
        ((0, 1, 2), 7, (0, 1, 2)),
    ],
)
def test_layer_ids(
    ids: tuple[int, ...] | None, layers: int, boundaries: tuple[int, ...], target: Target
) -> None:
    assert eagle3_config(target, layer_ids=ids).boundaries(layers) == boundaries


@pytest.mark.parametrize(("ids", "layers"), [(None, 6), (None, 4), ((1, 17, 36), 36), ((3, 4), 3)])
def test_layer_ids_that_the_target_lacks(
    ids: tuple[int, ...] | None, layers: int, target: Target
) -> None:
    with pytest.raises(UserError, match=f"a target of {layers} layers has no such boundaries"):
        eagle3_config(target, layer_ids=ids).boundaries(layers)


def test_taps_are_what_the_target_calls_hidden_states(target: Target, tmp_path: Path) -> None:
    folder = write_head(eagle3_config(target, layer_ids=None), tmp_path)
    drafter = bound(Eagle3, target, folder)
    assert drafter.taps == (2, 3, 4)
    assert drafter.details["layer_ids"] is None
    ids = torch.arange(9)
    states = target.model(ids[None], use_cache=False, output_hidden_states=True).hidden_states
    _, features = target.forward(ids, KVCache(target.num_layers, 9), drafter.taps)
    assert features is not None
    for i, tap in enumerate(drafter.taps):
        torch.testing.assert_close(features[:, i], states[tap][0])
