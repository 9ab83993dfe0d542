"""The frozen target in a draft's training: weights to borrow, hidden states to learn from."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from specbench.api import Target, TargetView
from specbench.core.taps import capture


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

    @torch.no_grad()
    def features(self, tokens: Tensor, boundaries: Sequence[int]) -> Tensor:
        """Compute hidden states ``[b, n, len(boundaries), hidden]`` of token ids ``[b, n]``.

        Boundary 0 is the embedding output, i the residual stream after i decoder layers.
        Documents must start at column 0; padding on the right changes nothing before it.
        """
        return self.forward(tokens, boundaries)[0]

    @torch.no_grad()
    def forward(self, tokens: Tensor, boundaries: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Compute the features, and the last hidden states ``[b, n, hidden]`` after the final norm.

        ``view.head`` turns the latter into logits.
        """
        with capture(self.layers, boundaries) as captured:
            last = self._body(input_ids=tokens, use_cache=False).last_hidden_state
        return torch.stack([captured[boundary] for boundary in boundaries], dim=2), last
