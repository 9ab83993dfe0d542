"""Recorded runs of the published dflash package, repeated with our loader, drafter and loop."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from drafters.dflash.checkpoint import load_config
from drafters.dflash.draft import DFlash, DFlashSession
from drafters.dflash.options import DFlashOptions
from specbench.api import Request, Sampling, Target
from specbench.core.decode import generate
from specbench.core.verifier import Verifier
from specbench.drafting.layers import rope_table

HERE = Path(__file__).parent / "dflash"
CASES = json.loads((HERE / "cases.json").read_text())["cases"]
VARIANTS = json.loads((HERE / "variants.json").read_text())
STOP = frozenset({1})

SLIDING = {
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "sliding_window": 12,
    "use_sliding_window": True,
}
VARIANT_CONFIGS: dict[str, dict[str, Any]] = {
    "full": {},
    "full, stop 30/31/32/33/34": {},
    "full, block 4": {},
    "sliding 12, default": SLIDING,
    "sliding 12, is_causal false": SLIDING | {"is_causal": False},
    "all causal": {"is_causal": True},
}


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.load(str(HERE / "target"))


def config_with(changes: dict[str, Any], dropped: tuple[str, ...] = ()) -> dict[str, Any]:
    config = json.loads((HERE / "draft" / "config.json").read_text()) | changes
    return {key: value for key, value in config.items() if key not in dropped}


def bound(
    target: Target, folder: Path, config: dict[str, Any], block_size: int | None = None
) -> DFlash:
    """Bind a drafter with the golden weights and another config.json."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(HERE / "draft" / "model.safetensors", folder)
    drafter = DFlash(DFlashOptions(model=str(folder), block_size=block_size))
    drafter.bind(target.view())
    return drafter


def assert_same_run(
    target: Target, drafter: DFlash, case: dict[str, Any], stop: frozenset[int]
) -> None:
    output = generate(target, drafter, case["prompt"], case["max_new_tokens"], stop_ids=stop)
    emitted = [len(r.tokens) for r in output.rounds]
    assert case["prompt"] + list(output.tokens) == case["output"]
    assert emitted == case["acceptance_lengths"]
    assert sum(emitted) + 1 == len(output.tokens)


def assert_same_runs(target: Target, drafter: DFlash) -> None:
    for case in CASES:
        assert case["output"] == case["autoregressive"]
        assert_same_run(target, drafter, case, STOP)


def first_block(target: Target, drafter: DFlash, case: dict[str, Any]) -> torch.Tensor:
    """Return logits ``[B - 1, vocabulary]`` of the first block after a prompt."""
    prompt = case["prompt"]
    verifier = Verifier(target, Sampling(), 0, len(prompt), 1, drafter.width, drafter.taps)
    session = drafter.open(Request(capacity=verifier.capacity))
    assert isinstance(session, DFlashSession)
    session.commit(verifier.prefill(prompt))
    return session.logits(drafter.block_size)


def first_block_error(target: Target, drafter: DFlash) -> float:
    errors = [
        (first_block(target, drafter, case) - torch.tensor(case["first_block_draft_logits"])).abs()
        for case in CASES
    ]
    return max(float(error.max()) for error in errors)


PLACES = {
    "block size in dflash_config": config_with(
        {
            "dflash_config": {
                "mask_token_id": 95,
                "target_layer_ids": [1, 3, 5],
                "block_size": 8,
            }
        },
        ("block_size",),
    ),
    "rope_theta and rope_scaling": config_with(
        {"rope_theta": 10000.0, "rope_scaling": None}, ("rope_parameters",)
    ),
    "all keys at top level": config_with(
        {"mask_token_id": 95, "target_layer_ids": [1, 3, 5]}, ("dflash_config",)
    ),
    "default taps": config_with({"dflash_config": {"mask_token_id": 95}}),
    "no layer types": config_with({}, ("layer_types", "sliding_window", "use_sliding_window")),
}


def test_cases(target: Target, tmp_path: Path) -> None:
    drafter = bound(target, tmp_path, config_with({}))
    assert first_block_error(target, drafter) < 1e-4
    assert_same_runs(target, drafter)


@pytest.mark.parametrize("place", PLACES)
def test_keys_may_be_in_any_known_place(target: Target, tmp_path: Path, place: str) -> None:
    drafter = bound(target, tmp_path, PLACES[place])
    assert drafter.config == load_config(HERE / "draft")
    assert first_block_error(target, drafter) < 1e-4
    assert_same_run(target, drafter, CASES[0], STOP)


def variant_id(case: dict[str, Any]) -> str:
    return f"{case['variant']}, prompt of {len(case['prompt'])}"


@pytest.mark.parametrize("case", VARIANTS, ids=variant_id)
def test_variants(target: Target, tmp_path: Path, case: dict[str, Any]) -> None:
    config = config_with(VARIANT_CONFIGS[case["variant"]])
    drafter = bound(target, tmp_path, config, case["block_size"])
    assert_same_run(target, drafter, case, frozenset(case["stop"]))


def move_taps(step: int) -> Callable[[DFlash], None]:
    def change(drafter: DFlash) -> None:
        drafter.taps = tuple(tap + step for tap in drafter.taps)

    return change


def reverse_taps(drafter: DFlash) -> None:
    drafter.taps = drafter.taps[::-1]


def shift_context(drafter: DFlash) -> None:
    """Shift the context by one position towards the block."""
    right = drafter.model.context

    def context(features: torch.Tensor, rope: Any) -> Any:
        positions = torch.arange(1, len(features) + 1)
        return right(features, rope_table(drafter.config, positions, torch.float32))

    drafter.model.context = context  # type: ignore[method-assign]


def drop_hidden_norm(drafter: DFlash) -> None:

    def condition(features: torch.Tensor) -> torch.Tensor:
        return drafter.model.fc(features)  # type: ignore[no-any-return]

    drafter.model.condition = condition  # type: ignore[method-assign]


def make_causal(drafter: DFlash) -> None:
    drafter.config = dataclasses.replace(drafter.config, causal=(True, True, True))


def shift_labels(drafter: DFlash) -> None:
    """Let slot k predict the token after it, as in DeepSpec's drafts."""
    right = drafter.model.forward
    drafter.model.forward = lambda *args: right(*args).roll(1, 0)  # type: ignore[method-assign]


def another_mask(drafter: DFlash) -> None:
    drafter.blank = drafter.embed(torch.full((8,), 94))


BREAKAGES = [
    move_taps(-1),
    move_taps(1),
    reverse_taps,
    shift_context,
    drop_hidden_norm,
    make_causal,
    shift_labels,
    another_mask,
]


@pytest.mark.parametrize("break_it", BREAKAGES, ids=lambda f: f.__qualname__.split(".")[0])
def test_a_faulty_draft_is_noticed(
    target: Target, tmp_path: Path, break_it: Callable[[DFlash], None]
) -> None:
    drafter = bound(target, tmp_path, config_with({}))
    break_it(drafter)
    assert first_block_error(target, drafter) > 0.05
    with pytest.raises(AssertionError):
        assert_same_runs(target, drafter)
