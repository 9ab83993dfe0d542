"""Drafts with rare settings against the published package, if it is installed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3Config

from drafters.dflash.draft import DFlash
from drafters.dflash.options import DFlashOptions
from specbench.api import Target
from specbench.core.decode import generate

package = pytest.importorskip("dflash.model", reason="the dflash package is not installed")
HERE = Path(__file__).parent / "dflash"
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "yarn": ({"rope_parameters": YARN}, {}),
    "cap and multiplier": ({}, {"final_logit_softcapping": 4.0, "output_multiplier": 0.6}),
    "embedding scale": ({}, {"input_embedding_scale": 3.0}),
    "sliding last": (
        {"layer_types": MIXED, "sliding_window": 7, "use_sliding_window": True},
        {},
    ),
    "sliding, all causal": (
        {
            "layer_types": MIXED,
            "sliding_window": 7,
            "use_sliding_window": True,
            "is_causal": True,
        },
        {},
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
@torch.inference_mode()
def test_the_same_rounds(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare rounds of the golden weights under settings that no recorded run has."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    outside, inside = SETTINGS[name]
    config = json.loads((HERE / "draft" / "config.json").read_text()) | outside
    config["dflash_config"] |= inside
    target = Target.load(str(HERE / "target"))
    theirs = package.DFlashDraftModel.from_pretrained(
        HERE / "draft", config=Qwen3Config(**config), dtype=torch.float32
    ).eval()
    (tmp_path / "config.json").write_text(json.dumps(config))
    shutil.copy(HERE / "draft" / "model.safetensors", tmp_path)
    drafter = DFlash(DFlashOptions(model=str(tmp_path)))
    drafter.bind(target.view())
    for prompt in ([33, 34, 35, 36, 37], list(range(2, 30)), [7] * 40):
        want = package.dflash_generate(
            theirs, target.model, torch.tensor([prompt]), 40, [1], return_stats=True
        )
        got = generate(target, drafter, prompt, 40, stop_ids=frozenset({1}))
        assert list(got.tokens) == want.output_ids[0, len(prompt) :].tolist()
        assert [len(r.tokens) for r in got.rounds] == want.acceptance_lengths
