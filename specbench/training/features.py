"""The frozen target in a draft's training: weights to borrow, hidden states to learn from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from specbench.api import Target, TargetView
from specbench.zoo import resolve


class FrozenTarget:
    """A target in eval mode whose parameters require no gradient.

    Attributes:
        view: what a drafter may see.
        layers: its decoder layers, to copy weights from.
    """

    def __init__(self, target: Target) -> None:
        self.view: TargetView = target.view()
        self._body = target.model.get_decoder()
        self.layers: nn.ModuleList = target.layers

    @classmethod
    def load(
        cls, name: str, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> FrozenTarget:
        """From a hub id, a folder, or the name of an embedded model.

        Raises:
            UserError: nothing loadable under that name, or a model that is refused.
        """
        return cls(Target.load(resolve(name), device=device, dtype=dtype))

    @torch.no_grad()
    def features(self, tokens: Tensor, boundaries: Sequence[int]) -> Tensor:
        """Hidden states ``[b, n, len(boundaries), hidden]`` of token ids ``[b, n]``.

        Boundary 0 is the embedding output, i the residual stream after i decoder layers.
        Documents must start at column 0; padding on the right changes nothing before it.
        """
        return self.forward(tokens, boundaries)[0]

    @torch.no_grad()
    def forward(self, tokens: Tensor, boundaries: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The features and, after the final norm, the last hidden states ``[b, n, hidden]``.

        ``view.head`` makes logits of the latter.
        """
        with _capture(self.layers, boundaries) as captured:
            last = self._body(input_ids=tokens, use_cache=False).last_hidden_state
        return torch.stack([captured[boundary] for boundary in boundaries], dim=2), last


@contextmanager
def _capture(layers: nn.ModuleList, boundaries: Sequence[int]) -> Iterator[dict[int, Tensor]]:
    """Collects ``[b, n, hidden]`` at the boundaries during one forward."""
    captured: dict[int, Tensor] = {}

    def entering(module: nn.Module, args: Any, kwargs: Any) -> None:
        captured[0] = args[0] if args else kwargs["hidden_states"]

    def leaving(boundary: int) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            captured[boundary] = output[0] if isinstance(output, tuple) else output

        return hook

    handles = [
        layers[boundary - 1].register_forward_hook(leaving(boundary))
        if boundary
        else layers[0].register_forward_pre_hook(entering, with_kwargs=True)
        for boundary in set(boundaries)
    ]
    try:
        yield captured
    finally:
        for handle in handles:
            handle.remove()
