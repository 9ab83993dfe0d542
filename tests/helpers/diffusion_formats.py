"""Tiny random checkpoints in the published masked-diffusion layouts, with their own forward.

Nothing here comes from transformers or from `drafters`: names, shapes and the network are written
independently, so that a wrong rename or mask is noticed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

VOCABULARY, HIDDEN, INNER, LAYERS, WIDTH = 64, 32, 48, 2, 8
MASK = 60

_QWEN_KEYS = {
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "rope_scaling": None,
    "sliding_window": None,
    "use_sliding_window": False,
    "max_window_layers": 28,
    "vocab_size": VOCABULARY,
    "mask_token_id": MASK,
    "bos_token_id": 151643,
    "pad_token_id": 151643,
    "eos_token_id": 5,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.46.2",
}

_LLADA_KEYS = {
    "model_type": "llada",
    "architectures": ["LLaDAModelLM"],
    "auto_map": {"AutoModel": "modeling_llada.LLaDAModelLM"},
    "activation_type": "silu",
    "alibi": False,
    "attention_layer_norm": False,
    "bias_for_layer_norm": False,
    "block_type": "llama",
    "d_model": HIDDEN,
    "embedding_size": VOCABULARY,
    "eos_token_id": 5,
    "include_bias": False,
    "include_qkv_bias": False,
    "input_emb_norm": False,
    "layer_norm_type": "rms",
    "mask_token_id": MASK,
    "max_sequence_length": 256,
    "mlp_hidden_size": INNER,
    "mlp_ratio": 4,
    "multi_query_attention": None,
    "n_heads": 4,
    "n_kv_heads": 4,
    "n_layers": LAYERS,
    "pad_token_id": 126081,
    "rms_norm_eps": 1e-5,
    "rope": True,
    "rope_theta": 500000.0,
    "scale_logits": False,
    "vocab_size": VOCABULARY,
    "weight_tying": False,
}


_LLADA_PARTS = {
    "norm1": "attn_norm",
    "norm2": "ff_norm",
    "q": "q_proj",
    "k": "k_proj",
    "v": "v_proj",
    "o": "attn_out",
    "gate": "ff_proj",
    "up": "up_proj",
    "down": "ff_out",
}


@dataclass(frozen=True)
class Format:
    """A published layout at tiny size.

    Attributes:
        folder: name of a published model of this family.
        config: content of config.json.
        shift: whether row p predicts token p + 1.
        block: block size of block-causal attention, or None for full attention.
        biases: whether q, k and v have biases.
        norms: whether the heads of q and k are normalised.
        tied: whether the head is the embedding.
    """

    folder: str
    config: dict[str, Any]
    shift: bool
    block: int | None = None
    biases: bool = False
    norms: bool = False
    tied: bool = False
    llada: bool = False
    kv_heads: int = 2
    eps: float = 1e-6
    theta: float = 1e6
    vocabulary: int = VOCABULARY
    mask: int = MASK

    def names(self, layer: int) -> dict[str, str]:
        """Return the tensor names of one layer by role."""
        if self.llada:
            at = f"model.transformer.blocks.{layer}."
            return {r: f"{at}{p}.weight" for r, p in _LLADA_PARTS.items()}
        at = f"model.layers.{layer}."
        named = {
            "norm1": f"{at}input_layernorm.weight",
            "norm2": f"{at}post_attention_layernorm.weight",
            "gate": f"{at}mlp.gate_proj.weight",
            "up": f"{at}mlp.up_proj.weight",
            "down": f"{at}mlp.down_proj.weight",
        } | {r: f"{at}self_attn.{r}_proj.weight" for r in "qkvo"}
        if self.biases:
            named |= {f"{r}_bias": f"{at}self_attn.{r}_proj.bias" for r in "qkv"}
        if self.norms:
            named |= {f"{r}_norm": f"{at}self_attn.{r}_norm.weight" for r in "qk"}
        return named

    @property
    def embedding(self) -> str:
        return "model.transformer.wte.weight" if self.llada else "model.embed_tokens.weight"

    @property
    def norm(self) -> str:
        return "model.transformer.ln_f.weight" if self.llada else "model.norm.weight"

    @property
    def head(self) -> str:
        return "model.transformer.ff_out.weight" if self.llada else "lm_head.weight"

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor of a checkpoint."""
        queries, keys = 4 * WIDTH, self.kv_heads * WIDTH
        roles: dict[str, tuple[int, ...]] = {
            "norm1": (HIDDEN,),
            "norm2": (HIDDEN,),
            "q": (queries, HIDDEN),
            "k": (keys, HIDDEN),
            "v": (keys, HIDDEN),
            "o": (HIDDEN, queries),
            "gate": (INNER, HIDDEN),
            "up": (INNER, HIDDEN),
            "down": (HIDDEN, INNER),
            "q_bias": (queries,),
            "k_bias": (keys,),
            "v_bias": (keys,),
            "q_norm": (WIDTH,),
            "k_norm": (WIDTH,),
        }
        shapes = {self.embedding: (self.vocabulary, HIDDEN), self.norm: (HIDDEN,)}
        if not self.tied:
            shapes[self.head] = (self.vocabulary, HIDDEN)
        for layer in range(LAYERS):
            shapes |= {name: roles[role] for role, name in self.names(layer).items()}
        return shapes

    def tensors(self, seed: int = 0) -> dict[str, Tensor]:
        """Make random weights with which every tensor changes the logits."""
        generator = torch.Generator().manual_seed(seed)
        return {
            name: torch.randn(shape, generator=generator) * 0.2 + (len(shape) == 1)
            for name, shape in self.shapes().items()
        }

    def write(self, folder: Path, seed: int = 0) -> Path:
        """Write a checkpoint into a folder with the family's name, and return that folder."""
        folder = folder / self.folder
        folder.mkdir()
        save_file(self.tensors(seed), folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(self.config))
        return folder

    def visible(self, n: int) -> Tensor:
        """Return the ``[n, n]`` attention mask of training, one pair of positions at a time."""
        size = self.block or n
        return torch.tensor([[j // size <= i // size for j in range(n)] for i in range(n)])

    def forward(self, tensors: dict[str, Tensor], ids: Tensor, visible: Tensor) -> Tensor:
        """Compute ``[n, vocabulary]`` float64 logits of ids ``[n]`` with the mask ``[n, n]``."""
        weights = {name: value.double() for name, value in tensors.items()}
        x = weights[self.embedding][ids]
        for layer in range(LAYERS):
            w = {role: weights[name] for role, name in self.names(layer).items()}
            x = x + self._attention(w, _norm(x, w["norm1"], self.eps), visible)
            inner = _norm(x, w["norm2"], self.eps)
            gate = inner @ w["gate"].T
            x = x + (gate * torch.sigmoid(gate) * (inner @ w["up"].T)) @ w["down"].T
        head = weights[self.embedding if self.tied else self.head]
        return _norm(x, weights[self.norm], self.eps) @ head.T

    def _attention(self, w: dict[str, Tensor], x: Tensor, visible: Tensor) -> Tensor:
        n = len(x)
        q, k, v = ((x @ w[r].T + w.get(f"{r}_bias", 0)).view(n, -1, WIDTH) for r in "qkv")
        if self.norms:
            q, k = (_norm(y, w[f"{r}_norm"], self.eps) for r, y in (("q", q), ("k", k)))
        q, k = (_rotate(y, self.theta) for y in (q, k))
        heads = []
        for head in range(4):
            group = head * self.kv_heads // 4
            scores = q[:, head] @ k[:, group].T / WIDTH**0.5
            heads.append(scores.masked_fill(~visible, -torch.inf).softmax(-1) @ v[:, group])
        return torch.cat(heads, -1) @ w["o"].T


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def _rotate(x: Tensor, theta: float) -> Tensor:
    """Rotate each pair (i, i + d/2) by position / theta^(2i / d)."""
    half = WIDTH // 2
    angles = torch.arange(len(x))[:, None] / theta ** (torch.arange(half) / half).double()
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def _qwen(kind: str, architecture: str, **changes: Any) -> dict[str, Any]:
    return {
        **_QWEN_KEYS,
        "model_type": kind,
        "architectures": [architecture],
        "auto_map": {"AutoModel": f"modeling.{architecture}"},
    } | changes


def _without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


FORMATS: dict[str, Format] = {
    "Dream": Format(
        "Dream-v0-Instruct-7B",
        _qwen("Dream", "DreamModel", tie_word_embeddings=False, use_mrope=False),
        shift=True,
        biases=True,
    ),
    "LLaDA": Format(
        "LLaDA-8B-Instruct",
        _LLADA_KEYS,
        shift=False,
        llada=True,
        kv_heads=4,
        eps=1e-5,
        theta=500000.0,
    ),
    "DiffuLLaMA": Format(
        "diffullama",
        _without(
            _qwen("llama", "LlamaForCausalLM", vocab_size=820, rms_norm_eps=1e-5),
            "rope_theta",
            "auto_map",
            "use_sliding_window",
            "mask_token_id",
        ),
        shift=True,
        vocabulary=820,
        mask=811,
        eps=1e-5,
        theta=10000.0,
    ),
    "Fast-dLLM v2": Format(
        "Fast_dLLM_v2_1.5B",
        _qwen("Fast_dLLM_Qwen", "Fast_dLLM_QwenForCausalLM", bd_size=4, tie_word_embeddings=True),
        shift=True,
        block=4,
        biases=True,
        tied=True,
    ),
    "A2D-Qwen3 mdlm": Format(
        "Qwen3-0.6B-diffusion-mdlm-v0.1",
        _qwen("a2d-qwen3", "A2DQwen3LMHeadModel", head_dim=WIDTH, tie_word_embeddings=True),
        shift=False,
        norms=True,
        tied=True,
    ),
    "A2D-Qwen3 bd3lm": Format(
        "Qwen3-0.6B-diffusion-bd3lm-v0.1",
        _qwen("a2d-qwen3", "A2DQwen3LMHeadModel", head_dim=WIDTH, tie_word_embeddings=True),
        shift=False,
        block=32,
        norms=True,
        tied=True,
    ),
    "A2D-Qwen2 mdlm": Format(
        "Qwen2.5-Coder-0.5B-Instruct-diffusion-mdlm-v0.1",
        _qwen("a2d-qwen2", "A2DQwen2LMHeadModel", tie_word_embeddings=True),
        shift=False,
        biases=True,
        tied=True,
    ),
    "A2D-Qwen2 bd3lm": Format(
        "Qwen2.5-Coder-0.5B-Instruct-diffusion-bd3lm-v0.1",
        _qwen("a2d-qwen2", "A2DQwen2LMHeadModel", tie_word_embeddings=True),
        shift=False,
        block=32,
        biases=True,
        tied=True,
    ),
    "SDAR": Format(
        "SDAR-1.7B-Chat",
        _qwen("sdar", "SDARForCausalLM", head_dim=WIDTH, block_size=4, tie_word_embeddings=False),
        shift=False,
        block=4,
        norms=True,
    ),
    "converted": Format(
        "tiny-diffusion",
        _qwen(
            "qwen3",
            "Qwen3ForCausalLM",
            head_dim=WIDTH,
            tie_word_embeddings=True,
            diffusion={"mask_token_id": MASK, "shift": True, "block_size": None},
        ),
        shift=True,
        norms=True,
        tied=True,
    ),
}
