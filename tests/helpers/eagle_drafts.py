"""Random EAGLE heads for `specbench.testing.tiny_target`, written and loaded as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from drafters.eagle.base import Eagle
from drafters.eagle.checkpoint import load_model, save_model
from drafters.eagle.config import EagleConfig
from drafters.eagle.model import Eagle3Model, EagleModel
from specbench.api import Target
from specbench.drafting.layers import rope_table


def eagle3_config(target: Target, **changes: Any) -> EagleConfig:
    """Make the config of an EAGLE-3 head over half of the vocabulary, for two layers or more."""
    settings: dict[str, Any] = {
        "version": 3,
        "hidden": target.config.hidden_size,
        "intermediate": 40,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 8,
        "target_hidden": target.config.hidden_size,
        "vocab_size": target.vocab_size,
        "draft_vocab_size": target.vocab_size // 2,
        "layer_ids": (0, 1, 2),
    }
    return EagleConfig(**settings | changes)


def eagle1_config(target: Target, **changes: Any) -> EagleConfig:
    """Make the config of an EAGLE-1/2 head."""
    settings: dict[str, Any] = {
        "version": 1,
        "draft_vocab_size": target.vocab_size,
        "layer_ids": None,
        "taps_count": 1,
        "fc_bias": True,
        "own_head": False,
    }
    return eagle3_config(target, **settings | changes)


def random_head(config: EagleConfig, seed: int = 0) -> Eagle3Model | EagleModel:
    """Make random weights that are large enough for every setting to change the logits."""
    model = Eagle3Model(config) if config.version == 3 else EagleModel(config)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.3, generator=generator)
        else:
            nn.init.uniform_(parameter, 0.5, 1.5, generator=generator)
    if config.draft_vocab_size != config.vocab_size:
        ids = torch.randperm(config.vocab_size, generator=generator)[: config.draft_vocab_size]
        model.d2t = ids.sort().values - torch.arange(len(ids))
        model.t2d = torch.zeros(config.vocab_size, dtype=torch.bool)
        model.t2d[ids] = True
    return model


def write_head(config: EagleConfig, folder: Path, seed: int = 0) -> Path:
    save_model(random_head(config, seed), folder, torch.float32)
    return folder


def bound(kind: type[Eagle], target: Target, folder: Path, **options: Any) -> Any:
    drafter = kind(kind.Options(model=str(folder), **options))
    drafter.bind(target.view())
    return drafter


def load(folder: Path) -> Any:
    return load_model(folder, torch.device("cpu"), torch.float32)


def causal(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), is_causal=True, enable_gqa=True
    )
    return out.transpose(0, 1).flatten(1)


def run(model: Any, rows: int = 6) -> Tensor:
    """Run two steps on random inputs; the second step takes the output of the first."""
    config = model.config
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(rows, config.taps_count * config.target_hidden, generator=generator)
    embedding = torch.randn(rows, config.hidden, generator=generator)
    head = torch.nn.Linear(config.hidden, config.vocab_size, bias=False)
    torch.nn.init.normal_(head.weight, generator=generator)
    rope = rope_table(config, torch.arange(rows))
    with torch.inference_mode():
        first = model(embedding, model.condition(features), rope, causal)
        second = model(embedding, first, rope, causal)
        return torch.cat([model.logits(first, head), model.logits(second, head)])


def change_config(folder: Path, changes: dict[str, Any], dropped: tuple[str, ...] = ()) -> None:
    """Change the config.json of a folder."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in config.items() if k not in dropped}))


def change_tensors(folder: Path, changes: dict[str, Tensor], dropped: tuple[str, ...] = ()) -> None:
    """Change the model.safetensors of a folder."""
    path = folder / "model.safetensors"
    tensors = dict(load_file(path)) | changes
    save_file({k: v.contiguous() for k, v in tensors.items() if k not in dropped}, path)
