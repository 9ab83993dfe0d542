"""The frozen target in a draft's training: what a draft borrows, copies and learns from."""

from collections.abc import Sequence
from typing import Any

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
    def forward(self, tokens: Tensor, boundaries: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Compute hidden states ``[b, n, len(boundaries), hidden]`` of token ids ``[b, n]``.

        Boundary 0 is the embedding output, i the residual stream after i decoder layers.
        Documents must start at column 0; padding on the right changes nothing before it.

        Returns:
            Also the last hidden states ``[b, n, hidden]`` after the final norm, which ``view.head``
            turns into logits.
        """
        with capture(self.layers, boundaries) as captured:
            last = self._body(input_ids=tokens, use_cache=False).last_hidden_state
        return torch.stack([captured[boundary] for boundary in boundaries], dim=2), last


def sizes_like(view: TargetView, settings: Any) -> dict[str, Any]:
    """The sizes of a fresh draft: the target's, where ``settings`` leave them out."""
    target = view.config
    heads = target.num_attention_heads
    head_dim = getattr(target, "head_dim", None) or view.hidden_size // heads
    return {
        "hidden": view.hidden_size,
        "vocab_size": view.vocab_size,
        "intermediate": settings.intermediate or target.intermediate_size,
        "heads": settings.heads or heads,
        "kv_heads": settings.kv_heads or target.num_key_value_heads,
        "head_dim": settings.head_dim or head_dim,
        "eps": getattr(target, "rms_norm_eps", 1e-6),
        "max_positions": target.max_position_embeddings,
    }


def draw_matrices(draft: nn.Module) -> None:
    """Draw the matrices of a fresh draft from torch's global generator, as its target's were."""
    for parameter in draft.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=0.02)
