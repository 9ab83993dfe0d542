"""Random DFlash drafts for `specbench.testing.tiny_target`, written and loaded as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from drafters.dflash.checkpoint import save_model
from drafters.dflash.config import DFlashConfig
from drafters.dflash.draft import DFlash
from drafters.dflash.model import DFlashModel
from drafters.dflash.options import DFlashOptions
from specbench.api import Target


def draft_config(target: Target, **changes: Any) -> DFlashConfig:
    """Make the config of a two-layer draft, block size 5, for a target of at least four layers."""
    layers = changes.setdefault("layers", 2)
    settings: dict[str, Any] = {
        "hidden": target.config.hidden_size,
        "intermediate": 40,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 8,
        "vocab_size": target.vocab_size,
        "block_size": 5,
        "mask_token_id": target.vocab_size - 1,
        "target_layer_ids": (0, 2),
        "windows": (None,) * layers,
        "causal": (False,) * layers,
        "rope": {"rope_type": "default", "rope_theta": 10000.0},
        "max_positions": 512,
        "num_target_layers": target.num_layers,
    }
    return DFlashConfig(**settings | changes)


def write_draft(config: DFlashConfig, folder: Path, seed: int = 0) -> Path:
    """Write random weights that are large enough for every setting to change the logits."""
    model = DFlashModel(config)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.3, generator=generator)
        else:
            nn.init.uniform_(parameter, 0.5, 1.5, generator=generator)
    save_model(model, folder, torch.float32)
    return folder


def bound_draft(target: Target, folder: Path, **options: Any) -> DFlash:
    drafter = DFlash(DFlashOptions(model=str(folder), **options))
    drafter.bind(target.view())
    return drafter
