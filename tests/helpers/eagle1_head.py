"""Make an EAGLE-1/2 head for a target: a fitted projection and the target's last layer."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch

from drafters.eagle.checkpoint import save_model
from drafters.eagle.config import EagleConfig
from drafters.eagle.model import EagleModel
from specbench.api import KVCache, Target

DAMPING = 0.1


@torch.inference_mode()
def write_eagle1_head(target: Target, texts: Iterable[list[int]], folder: Path) -> Path:
    """Write a head in the published layout whose drafts are sometimes accepted.

    ``fc`` is the least-squares map, over ``texts``, from a token's feature and the next token's
    embedding to the next token's feature. The layer is the target's last layer with damped
    outputs, because it was not trained on these inputs.
    """
    model = EagleModel(_config(target))
    layer, last = model.layers[0], target.layers[-1]
    for part in ("self_attn", "mlp", "post_attention_layernorm"):
        layer.get_submodule(part).load_state_dict(last.get_submodule(part).state_dict())
    layer.self_attn.o_proj.weight.mul_(DAMPING)
    layer.mlp.down_proj.weight.mul_(DAMPING)
    pairs = [_pairs(target, ids) for ids in texts]
    inputs, wanted = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    solution = torch.linalg.lstsq(inputs, wanted).solution
    model.fc.weight.copy_(solution[:-1].T)
    model.fc.bias.copy_(solution[-1])
    save_model(model, folder, torch.float32)
    return folder


def _pairs(target: Target, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the inputs and outputs of the least-squares fit.

    Returns:
        ``[n, 2H + 1]``: embedding of token p + 1, feature of token p, and a one.
        ``[n, H]``: feature of token p + 1.
    """
    tokens, view = torch.tensor(ids), target.view()
    cache = KVCache(target.num_layers, len(ids))
    _, hidden = target.forward(tokens, cache, (target.num_layers,))
    assert hidden is not None
    features = view.norm(hidden[:, 0])
    ones = features.new_ones(len(ids) - 1, 1)
    return torch.cat([view.embedding(tokens[1:]), features[:-1], ones], dim=1), features[1:]


def _config(target: Target) -> EagleConfig:
    of_target = target.config
    return EagleConfig(
        version=1,
        hidden=of_target.hidden_size,
        intermediate=of_target.intermediate_size,
        heads=of_target.num_attention_heads,
        kv_heads=of_target.num_key_value_heads,
        head_dim=of_target.head_dim,
        target_hidden=of_target.hidden_size,
        vocab_size=target.vocab_size,
        draft_vocab_size=target.vocab_size,
        taps_count=1,
        eps=of_target.rms_norm_eps,
        rope=dict(of_target.rope_parameters),
        max_positions=of_target.max_position_embeddings,
        fc_bias=True,
        qk_norm=True,
        own_head=False,
    )
