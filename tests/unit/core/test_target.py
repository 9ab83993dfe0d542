"""The target: which models are refused, and what a forward and its taps return."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    FalconMambaConfig,
    JambaConfig,
    MambaConfig,
    Qwen3NextConfig,
    RecurrentGemmaConfig,
)

from specbench.core.kv import KVCache
from specbench.core.proposal import Proposal
from specbench.core.target import Target, load_tokenizer
from specbench.errors import UserError
from specbench.testing import tiny_target

SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
RECURRENT = {
    "mamba": MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=4),
    "falcon_mamba": FalconMambaConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=4
    ),
    "qwen3_next": Qwen3NextConfig(
        **SMALL, head_dim=8, linear_num_value_heads=2, linear_num_key_heads=2,
        linear_key_head_dim=8, linear_value_head_dim=8, num_experts=2, num_experts_per_tok=1,
        moe_intermediate_size=16, shared_expert_intermediate_size=16,
    ),
    "recurrent_gemma": RecurrentGemmaConfig(**{**SMALL, "num_key_value_heads": 1}, lru_width=32),
    "jamba": JambaConfig(
        **SMALL, num_experts=2, attn_layer_period=2, attn_layer_offset=1, mamba_d_state=4,
        mamba_dt_rank=4, use_mamba_kernels=False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_models_are_refused_by_name(kind: str) -> None:
    with torch.random.fork_rng(devices=[]):
        model = AutoModelForCausalLM.from_config(RECURRENT[kind])
    with pytest.raises(UserError, match=rf"'here' \({kind}\).*cannot be rolled back"):
        Target(model, name="here")


@pytest.mark.parametrize("make", [tiny_target, lambda: tiny_target(window=6)])
def test_the_self_check_notices_a_wrong_mask(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(self: Target, tree: Proposal, start: int, positions: torch.Tensor) -> torch.Tensor:
        rows = len(tree) + 1
        return torch.ones(1, 1, rows, start + rows, dtype=torch.bool).tril(start)

    monkeypatch.setattr(Target, "_tree_mask", blind)
    with pytest.raises(UserError, match="gives other logits"):
        make()


def test_the_self_check_notices_a_missing_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = Target._tree_mask

    def wide(self: Target, tree: Proposal, start: int, positions: torch.Tensor) -> Any:
        return original(self, tree, start, positions * 0)

    monkeypatch.setattr(Target, "_tree_mask", wide)
    tiny_target()
    with pytest.raises(UserError, match="gives other logits"):
        tiny_target(window=6)


def test_the_self_check_notices_wrong_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Proposal, "depths", property(lambda self: torch.arange(len(self) + 1)))
    with pytest.raises(UserError, match="gives other logits"):
        tiny_target()


def test_the_self_check_notices_a_cache_that_drops_positions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = KVCache.update

    def forgetful(self: KVCache, *args: Any, **kwargs: Any) -> Any:
        keys, values = original(self, *args, **kwargs)
        keys[:, :, 0] = 0
        return keys, values

    monkeypatch.setattr(KVCache, "update", forgetful)
    with pytest.raises(UserError, match="gives other logits"):
        tiny_target()


def test_prefill_computes_the_logits_of_the_last_row_only() -> None:
    target = tiny_target()
    rows: list[int] = []
    target.model.lm_head.register_forward_pre_hook(lambda _, args: rows.append(args[0].shape[1]))
    cache = KVCache(target.num_layers, 32)
    logits, features = target.forward(torch.arange(20), cache, last_only=True)
    assert (rows, tuple(logits.shape), features) == ([1], (1, 64), None)


@pytest.mark.parametrize("make", [tiny_target, lambda: tiny_target("llama")])
def test_taps_are_the_boundaries_of_output_hidden_states(make: Any) -> None:
    target = make()
    ids = torch.arange(9) + 7
    boundaries = tuple(range(target.num_layers + 1))
    reference = target.model(ids[None], output_hidden_states=True, use_cache=False)
    cache = KVCache(target.num_layers, 16)
    _, features = target.forward(ids, cache, boundaries, last_only=True)
    assert features is not None
    assert features.shape == (9, target.num_layers + 1, 32)
    # transformers applies the final norm to its last entry; our tap does not.
    want = torch.stack([h[0] for h in reference.hidden_states[:-1]], dim=1)
    torch.testing.assert_close(features[:, :-1], want)
    last = target.model.model.norm(features[:, -1])
    torch.testing.assert_close(last, reference.hidden_states[-1][0])


def test_taps_keep_their_order_and_leave_no_hook() -> None:
    target = tiny_target()
    both = [
        target.forward(torch.arange(5), KVCache(target.num_layers, 8), taps)[1]
        for taps in ((0, 3), (3, 0))
    ]
    assert torch.equal(both[0], both[1].flip(1))
    hooks = [h for layer in target.layers for h in (layer._forward_hooks, layer._forward_pre_hooks)]
    assert not any(hooks)


def test_a_folder_without_tokenizer_files_has_no_tokenizer(tmp_path: Path) -> None:
    tiny_target().model.save_pretrained(tmp_path)
    assert load_tokenizer(str(tmp_path)) is None
    loaded = Target.load(str(tmp_path))
    assert loaded.stop_ids == frozenset()


def test_a_model_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Cannot load the target .*nothing-here"):
        Target.load(str(tmp_path / "nothing-here"))


def test_stop_ids_come_from_generation_config_and_tokenizer() -> None:
    class Tokenizer:
        eos_token_id = 9

    target = tiny_target()
    target.model.generation_config.eos_token_id = [4, 5]
    assert target.stop_ids == {4, 5}
    assert Target(target.model, Tokenizer()).stop_ids == {4, 5, 9}
    target.model.generation_config.eos_token_id = 3
    assert target.stop_ids == {3}


@pytest.mark.parametrize(
    ("prompt", "new", "message"),
    [
        (16, 4, "has 16 tokens, but the context .* is 16"),
        (0, 4, "at least one"),
        (4, 0, "at least"),
    ],
)
def test_an_impossible_budget_is_refused(prompt: int, new: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        tiny_target(context=16).budget(prompt, new)


def test_the_budget_is_cut_to_the_context() -> None:
    target = tiny_target(context=16)
    assert [target.budget(10, new) for new in (1, 6, 7, 100)] == [1, 6, 6, 6]


def test_weights_that_do_not_fit_their_config_are_refused_by_name(tmp_path: Path) -> None:
    """transformers would only warn and use random numbers."""
    tiny_target().model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    lost, short = "model.layers.0.mlp.down_proj.weight", "model.layers.1.mlp.down_proj.weight"
    tensors[short] = tensors[short][1:].contiguous()
    save_file({k: v for k, v in tensors.items() if k != lost}, file, {"format": "pt"})
    with pytest.raises(UserError, match=rf"missing {lost}, {short} is \[.*\] instead of \["):
        Target.load(str(tmp_path))
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(UserError, match="Cannot load the target"):
        Target.load(str(tmp_path))
