"""Write small masked-diffusion models that are made from a target's own weights."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from torch import nn
from transformers import PreTrainedTokenizerFast

from drafters.diffusion.families import converted
from drafters.diffusion.model import DiffusionModel
from specbench.api import Target


def save_twin(
    target: Target, folder: Path, *, shift: bool = True, block_size: int | None = None
) -> str:
    """Write the target with one more vocabulary row, the mask token.

    With a shift and a causal prefix, the first slot after the prefix is predicted as the target
    predicts it, so some drafts are accepted.
    """
    model = copy.deepcopy(target.model)
    rows = target.vocab_size
    noise = torch.Generator().manual_seed(9)
    extra = 0.3 * torch.randn(1, target.config.hidden_size, generator=noise)
    weights = {
        "embed_tokens": model.get_input_embeddings().weight,
        "lm_head": model.get_output_embeddings().weight,
    }
    wider = {name: torch.cat([weight.detach(), extra]) for name, weight in weights.items()}
    model.config.vocab_size = rows + 1
    model.set_input_embeddings(nn.Embedding.from_pretrained(wider["embed_tokens"]))
    model.get_output_embeddings().weight = nn.Parameter(wider["lm_head"])
    family = converted(target.config.model_type, rows, shift=shift, block_size=block_size)
    DiffusionModel(model, family, "twin").save(folder, torch.float32)
    return str(folder)


def tokenizer(words: list[str], special: tuple[str, ...] = (), **names: str) -> Any:
    """Make a tokenizer whose ids count the words first and then the special tokens."""
    inner = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.add_special_tokens([AddedToken(one, special=True) for one in special])
    return PreTrainedTokenizerFast(tokenizer_object=inner, **names)
