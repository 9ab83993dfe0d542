"""The target: a causal language model with taps, our cache and a self-check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from specbench.core.attention import NAME as PACKED_ATTENTION
from specbench.core.drafter import TargetView
from specbench.core.kv import KVCache, cache_argument
from specbench.core.proposal import Proposal
from specbench.core.taps import capture
from specbench.errors import UserError
from specbench.hub import locate


class Target:
    """A causal LM behind one forward for prefill, chains and trees.

    Args:
        model: any `AutoModelForCausalLM` with full or sliding-window attention.
        tokenizer: its tokenizer, or None.
        name: as the user wrote it, for messages and records.
        revision: of the hub id, as asked for.

    Raises:
        UserError: the model keeps a recurrent state, or the self-check fails.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Any = None,
        name: str = "target",
        revision: str | None = None,
    ) -> None:
        self.model = model.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.name = name
        self.revision = revision
        self.config = model.config.get_text_config(decoder=True)
        self.device = model.device
        self.dtype = model.dtype
        self.windows = _attention_windows(self.config, model, name)
        self.num_layers = len(self.windows)
        self.layers = _decoder_layers(model, self.num_layers, name)
        self.vocab_size: int = self.config.vocab_size
        self._cache_argument = cache_argument(model)
        self.attention = _choose_attention(model)
        _self_check(self)

    @classmethod
    def load(
        cls,
        name: str,
        *,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        revision: str | None = None,
        role: str = "target",
    ) -> Target:
        """Load an embedded model, a folder or a hub id; safetensors only, no remote code.

        Args:
            role: what the model is to the person who named it, for messages.

        Raises:
            UserError: nothing loadable under that name, weights that do not fit their config, or
                a model that is refused.
        """
        try:
            model, found = AutoModelForCausalLM.from_pretrained(
                locate(name, revision, role),
                dtype=dtype,
                revision=revision,
                use_safetensors=True,
                trust_remote_code=False,
                ignore_mismatched_sizes=True,  # They are named below, all of them.
                output_loading_info=True,
            )
        except (OSError, ValueError, SafetensorError) as error:
            raise UserError(
                f"Cannot load the {role} {name!r}: {_first_line(error)}",
                "Give a folder with config.json and safetensors, or a hub id that this machine "
                "can reach (elsewhere: `hf download`, copy the folder, pass its path).",
            ) from error
        _refuse_invented_weights(found, name)
        return cls(model.to(device), load_tokenizer(name, revision), name, revision)

    @property
    def stop_ids(self) -> frozenset[int]:
        """Stop tokens of the generation config and of the tokenizer."""
        found: list[int] = []
        for holder in (self.model.generation_config, self.tokenizer):
            eos = getattr(holder, "eos_token_id", None)
            found += eos if isinstance(eos, list) else [] if eos is None else [eos]
        return frozenset(found)

    @property
    def context_limit(self) -> int | None:
        """Positions the model was made for, or None where its config does not say."""
        return getattr(self.config, "max_position_embeddings", None)

    def budget(self, prompt_length: int, max_new_tokens: int) -> int:
        """``max_new_tokens``, cut to what the context leaves.

        Raises:
            UserError: an empty prompt, or one that fills the context.
        """
        if prompt_length < 1 or max_new_tokens < 1:
            raise UserError("The prompt and max_new_tokens must each hold at least one token.")
        limit = self.context_limit
        if limit is None:
            return max_new_tokens
        if prompt_length >= limit:
            raise UserError(
                f"The prompt has {prompt_length} tokens, but the context of {self.name} is "
                f"{limit}: shorten the prompt or take another target."
            )
        return min(max_new_tokens, limit - prompt_length)

    def view(self) -> TargetView:
        """What a drafter may see."""
        return TargetView(
            name=self.name,
            embedding=self.model.get_input_embeddings(),
            norm=getattr(self.model.get_decoder(), "norm", None),
            head=self.model.get_output_embeddings(),
            config=self.config,
            tokenizer=self.tokenizer,
            num_layers=self.num_layers,
            hidden_size=self.config.hidden_size,
            vocab_size=self.vocab_size,
            device=self.device,
            dtype=self.dtype,
            stop_ids=self.stop_ids,
            revision=self.revision,
        )

    def forward(
        self,
        ids: Tensor,
        cache: KVCache,
        taps: tuple[int, ...] = (),
        *,
        tree: Proposal | None = None,
        last_only: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Append ``ids`` ``[n]`` to the cache.

        With ``tree``, the ids are its anchor and tokens: each row sees the cache and its own
        ancestors and sits at the anchor's position plus its depth. Without, they are a prompt.

        Returns:
            ``[n, vocabulary]`` logits (``[1, vocabulary]`` with ``last_only``) and
            ``[n, taps, hidden]`` features, None without taps.
        """
        start = cache.length
        mask: Any = None
        if tree is None:
            positions = torch.arange(start, start + len(ids), device=self.device)
        else:
            positions = tree.depths + start
            mask = self._tree_mask(tree, start, positions)
        with capture(self.layers, taps) as captured:
            logits = self.model(
                ids[None],
                attention_mask=mask,
                position_ids=positions[None],
                use_cache=True,
                logits_to_keep=1 if last_only else 0,
                **{self._cache_argument: cache},
            ).logits[0]
        features = torch.stack([captured[tap][0] for tap in taps], dim=1) if taps else None
        return logits, features

    def _tree_mask(self, tree: Proposal, start: int, positions: Tensor) -> Any:
        """``[1, 1, n, start + n]`` bool, one a window size where layers differ in it; the rows
        repeated for every query head of a group where the attention packs them.

        None for a lone anchor without a window, which sees everything.
        """
        kinds = set(self.windows)
        if len(tree) == 0 and kinds == {None}:
            return None
        rows = len(tree) + 1
        visible = torch.ones(rows, start + rows, dtype=torch.bool, device=self.device)
        visible[:, start:] = tree.ancestors
        masks = dict.fromkeys(kinds, visible[None, None])
        for window in kinds:
            if window is None:
                continue
            seen = torch.cat([torch.arange(start, device=self.device), positions])
            masks[window] = (visible & (positions[:, None] - seen < window))[None, None]
        if self.attention == PACKED_ATTENTION:
            heads, kv_heads = self.config.num_attention_heads, self.config.num_key_value_heads
            masks = {w: mask.repeat(1, 1, heads // kv_heads, 1) for w, mask in masks.items()}
        if len(kinds) == 1:
            return masks[self.windows[0]]
        return {_layer_type(window): mask for window, mask in masks.items()}


def _refuse_invented_weights(found: dict[str, Any], name: str) -> None:
    """transformers fills what a checkpoint lacks with random numbers and only warns."""
    faults = [f"missing {key}" for key in sorted(found["missing_keys"])]
    faults += [
        f"{key} is {list(given)} instead of {list(wanted)}"
        for key, given, wanted in sorted(found["mismatched_keys"])
    ]
    if faults:
        raise UserError(
            f"The tensors of {name!r} are not those of a model with its config.json: "
            f"{', '.join(faults)}."
        )


def largest_error(dtype: torch.dtype) -> float:
    """Relative difference of logits beyond which it is no rounding any more."""
    return 1e-3 if dtype == torch.float32 else 0.05


def load_tokenizer(
    name: str, revision: str | None = None, kinds: Sequence[Any] = (AutoTokenizer,)
) -> Any:
    """The tokenizer of an embedded model, a folder or a hub id; None where there is none.

    Args:
        kinds: transformers' tokenizer classes, tried one after the other.
    """
    place = locate(name, revision)
    for kind in kinds:
        try:
            found = kind.from_pretrained(place, revision=revision, trust_remote_code=False)
        except (OSError, ValueError, TypeError):
            continue
        # Where there are no files transformers may make one up that knows special tokens only.
        if set(found.get_vocab()) - set(found.all_special_tokens):
            return found
    return None


def _layer_type(window: int | None) -> str:
    return "full_attention" if window is None else "sliding_attention"


def _attention_windows(config: Any, model: PreTrainedModel, name: str) -> list[int | None]:
    """Each layer's window, None where it sees everything."""
    types = getattr(config, "layer_types", None)
    foreign = sorted(set(types or []) - {"full_attention", "sliding_attention"})
    usual = {DynamicLayer, DynamicSlidingWindowLayer}
    if not foreign and not getattr(model, "_is_stateful", False):
        foreign = sorted(
            {type(x).__name__ for x in DynamicCache(config=config).layers if type(x) not in usual}
        )
    if foreign or getattr(model, "_is_stateful", False):
        kinds = ", ".join(foreign) or "a recurrent state"
        raise UserError(
            f"The target {name!r} ({model.config.model_type}) has layers that cannot be rolled "
            f"back after a rejected draft: {kinds}.",
            "Take a target with full or sliding-window attention only.",
        )
    window = getattr(config, "sliding_window", None)
    if types:
        return [window if kind == "sliding_attention" else None for kind in types]
    return [window if getattr(config, "use_sliding_window", True) else None] * int(
        config.num_hidden_layers
    )


def _decoder_layers(model: PreTrainedModel, count: int, name: str) -> nn.ModuleList:
    layers: nn.ModuleList | None = getattr(model.get_decoder(), "layers", None)
    if layers is None or len(layers) != count:
        raise UserError(
            f"The target {name!r} ({model.config.model_type}) does not show its decoder layers as "
            "`layers`, so its hidden states cannot be read.",
        )
    return layers


def _choose_attention(model: PreTrainedModel) -> str:
    """Our packed SDPA where the model runs SDPA; anything else stays as it is."""
    current = model.config._attn_implementation
    if current == "sdpa" and getattr(model, "_supports_attention_backend", False):
        model.set_attn_implementation(PACKED_ATTENTION)
    return str(model.config._attn_implementation)


@torch.inference_mode()
def _self_check(target: Target) -> None:
    """Our cache, masks and positions against the model's own forward without any.

    Raises:
        UserError: the logits differ by more than rounding explains.
    """
    short = [window for window in target.windows if window is not None and window <= 64]
    prompt = max(short, default=8) + 4
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(target.vocab_size, (prompt + 5,), generator=generator).to(target.device)
    want = target.model(ids[None], use_cache=False).logits[0, prompt:]
    cache = KVCache(target.num_layers, prompt + 12)
    target.forward(ids[:prompt], cache, last_only=True)
    # A decoy beside every token of the chain: a wrong mask or position would show.
    tokens = torch.stack([ids[prompt + 1 :].flip(0), ids[prompt + 1 :]], dim=1).flatten()
    parents = torch.tensor([-1, -1, 1, 1, 3, 3, 5, 5], device=target.device)
    tree = Proposal(tokens, parents)
    got, _ = target.forward(torch.cat([ids[prompt : prompt + 1], tokens]), cache, tree=tree)
    error = (got[0::2].float() - want.float()).norm() / want.float().norm()
    if not error < largest_error(target.dtype):
        raise UserError(
            f"The target {target.name!r} ({target.model.config.model_type}) does not give its own "
            f"logits through specbench's cache (relative difference {float(error):.2g}), so "
            "nothing measured on it would be true."
        )


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
