"""Small diffusion recipes and batches of random tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from drafters.diffusion.settings import DiffusionSettings
from drafters.diffusion.train import DiffusionRecipe
from specbench.api import Target
from specbench.training.corpus.batches import Batch
from specbench.training.features import FrozenTarget

MASK = 63


def recipe_for(target: Target, **options: Any) -> DiffusionRecipe:
    made = {"layers": 2, "mask_token_id": MASK, "block_size": 4, **options}
    return DiffusionRecipe(FrozenTarget(target), DiffusionSettings(**made))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_tokens(*shape: int) -> Tensor:
    return torch.randint(60, shape, generator=seeded())


def chat(tokens: Tensor, first: int) -> Batch:
    """Make a batch whose answers go from position ``first`` to the end."""
    response = torch.zeros(tokens.shape, dtype=torch.bool)
    response[:, first:] = True
    return Batch(tokens, response)
