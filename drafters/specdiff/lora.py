"""Low-rank adapters (arXiv 2106.09685) on the projections of a decoder, merged when it is saved."""

import copy
import math
from typing import TypeVar

import torch
from torch import Tensor, nn

Model = TypeVar("Model", bound=nn.Module)

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class LowRank(nn.Module):
    """A frozen projection plus alpha / rank times the product of two narrow matrices.

    The second starts at zero, so training starts from the projection itself.
    """

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Parameter(base.weight.new_empty(rank, base.in_features))
        self.up = nn.Parameter(base.weight.new_zeros(base.out_features, rank))
        self.scale = alpha / rank
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x)
        return out + self.scale * (x @ self.down.T @ self.up.T)

    @torch.no_grad()
    def merge(self) -> nn.Linear:
        """Add the product to the weight in place; return the projection."""
        self.base.weight += self.scale * (self.up @ self.down)
        return self.base


def add_adapters(model: nn.Module, rank: int, alpha: float) -> None:
    """Freeze the model and put an adapter on each of its `PROJECTIONS`."""
    model.requires_grad_(False)
    for name, part in list(model.named_modules()):
        if name.rpartition(".")[2] in PROJECTIONS and isinstance(part, nn.Linear):
            model.set_submodule(name, LowRank(part, rank, alpha))


def merged(model: Model) -> Model:
    """Copy the model, with what the adapters add merged into its weights."""
    whole = copy.deepcopy(model)
    for name, part in list(whole.named_modules()):
        if isinstance(part, LowRank):
            whole.set_submodule(name, part.merge())
    return whole
