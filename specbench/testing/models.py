"""Make tiny random targets and random prompts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from specbench.api import Target


def tiny_target(
    family: Literal["qwen3", "llama"] = "qwen3",
    *,
    seed: int = 0,
    vocabulary: int = 64,
    layers: int = 3,
    window: int | None = None,
    full_layers: int = 0,
    context: int = 512,
) -> Target:
    """Make a random float32 target with grouped queries.

    Its weights are large enough that every token of the prompt changes the logits. The global
    random state is not changed.

    Args:
        family: architecture; only Qwen3 has sliding windows.
        seed: random seed of the weights.
        vocabulary: number of token ids.
        layers: number of decoder layers.
        window: sliding window, in positions, of all layers after the first ``full_layers``.
        full_layers: number of layers without a sliding window.
        context: the most positions.
    """
    sizes: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": 32,
        "num_hidden_layers": layers,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": context,
        "bos_token_id": None,
        "eos_token_id": None,
        "tie_word_embeddings": False,
    }
    if window is not None:
        sizes |= {
            "use_sliding_window": True,
            "sliding_window": window,
            "max_window_layers": full_layers,
        }
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = (
            Qwen3ForCausalLM(Qwen3Config(**sizes))
            if family == "qwen3"
            else LlamaForCausalLM(LlamaConfig(**sizes))
        )
        for parameter in model.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.3)
    return Target(model, name=f"tiny-{family}")


def random_prompts(
    vocabulary: int, lengths: Sequence[int] = (5, 17), seed: int = 0
) -> list[list[int]]:
    """Make prompts of random token ids, one per length."""
    chance = random.Random(seed)
    return [[chance.randrange(vocabulary) for _ in range(length)] for length in lengths]
