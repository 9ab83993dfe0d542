"""The target: a causal language model with taps, our own cache and a self-check."""

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
    """A causal LM with one forward for prefill, chains and trees.

    Args:
        model: any `AutoModelForCausalLM` with full or sliding-window attention.
        tokenizer: the model's tokenizer, or None.
        name: the name that the user gave, for messages and records.
        revision: requested revision of the hub id, or None.

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
            role: what the user calls the model, for messages.

        Raises:
            UserError: nothing can be loaded under this name, the weights do not fit their config,
                or the model is refused.
        """
        try:
            model, found = AutoModelForCausalLM.from_pretrained(
                locate(name, revision, role),
                dtype=dtype,
                revision=revision,
                use_safetensors=True,
                trust_remote_code=False,
                ignore_mismatched_sizes=True,  # All of them are named below.
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
        ids: list[int] = []
        for holder in (self.model.generation_config, self.tokenizer):
            eos = getattr(holder, "eos_token_id", None)
            ids += eos if isinstance(eos, list) else [] if eos is None else [eos]
        return frozenset(ids)

    @property
    def context_limit(self) -> int | None:
        """The most positions, or None if the config does not state a limit."""
        return getattr(self.config, "max_position_embeddings", None)

    def budget(self, prompt_length: int, max_new_tokens: int) -> int:
        """Return ``max_new_tokens``, or fewer if the context has room for fewer.

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
                f"{limit}: shorten the prompt or choose another target."
            )
        return min(max_new_tokens, limit - prompt_length)

    def view(self) -> TargetView:
        """Return what a drafter may see of this target."""
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

        With ``tree``, the ids are its anchor and its tokens: each row sees the cache and its own
        ancestors, and its position is the anchor's plus its depth. Without ``tree``, the ids are
        a prompt.

        Returns:
            ``[n, vocabulary]`` logits (``[1, vocabulary]`` with ``last_only``) and
            ``[n, taps, hidden]`` features, or None without taps.
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
        """Build the mask ``[1, 1, n, start + n]`` bool.

        There is one mask per kind of layer if the layers differ in their window. The rows are
        repeated for every query head of a group if the attention stacks these heads.

        Returns:
            The mask, masks by layer type, or None for an anchor alone without any window, where
            nothing is masked.
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
    """Refuse missing or misshapen tensors; transformers makes them random and only warns."""
    faults = [f"missing {key}" for key in sorted(found["missing_keys"])]
    faults += [
        f"{key} is {list(given)} instead of {list(wanted)}"
        for key, given, wanted in sorted(found["mismatched_keys"])
    ]
    if faults:
        raise UserError(
            f"The tensors of {name!r} do not fit its config.json: {', '.join(faults)}. "
            "Give a checkpoint whose tensors fit."
        )


def largest_error(dtype: torch.dtype) -> float:
    """Return the largest relative difference of logits that rounding explains."""
    return 1e-3 if dtype == torch.float32 else 0.05


def load_tokenizer(
    name: str, revision: str | None = None, kinds: Sequence[Any] | None = None
) -> Any:
    """Load the tokenizer of an embedded model, a folder or a hub id; None if there is none.

    Args:
        kinds: transformers' tokenizer classes, tried in order; None means `AutoTokenizer` only.
    """
    located = locate(name, revision)
    for kind in kinds or (AutoTokenizer,):
        try:
            tokenizer = kind.from_pretrained(located, revision=revision, trust_remote_code=False)
        except (OSError, ValueError, TypeError):
            continue
        # Without files, transformers may invent a tokenizer with nothing but special tokens.
        if set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens):
            return tokenizer
    return None


def _layer_type(window: int | None) -> str:
    return "full_attention" if window is None else "sliding_attention"


def _attention_windows(config: Any, model: PreTrainedModel, name: str) -> list[int | None]:
    """Return the window of each layer in positions, None for full attention.

    Raises:
        UserError: a layer that cannot be rolled back.
    """
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
            "Choose a target with full or sliding-window attention only.",
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
            f"The target {name!r} ({model.config.model_type}) does not name its decoder layers "
            "`layers`, so its hidden states cannot be read: choose another target.",
        )
    return layers


def _choose_attention(model: PreTrainedModel) -> str:
    """Select our packed SDPA if the model uses SDPA; leave any other attention as it is."""
    current = model.config._attn_implementation
    if current == "sdpa" and getattr(model, "_supports_attention_backend", False):
        model.set_attn_implementation(PACKED_ATTENTION)
    return str(model.config._attn_implementation)


@torch.inference_mode()
def _self_check(target: Target) -> None:
    """Compare logits through our cache, masks and positions with the model's plain forward.

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
    # Every token of the chain has a wrong sibling, so a wrong mask or position is noticed.
    tokens = torch.stack([ids[prompt + 1 :].flip(0), ids[prompt + 1 :]], dim=1).flatten()
    parents = torch.tensor([-1, -1, 1, 1, 3, 3, 5, 5], device=target.device)
    tree = Proposal(tokens, parents)
    got, _ = target.forward(torch.cat([ids[prompt : prompt + 1], tokens]), cache, tree=tree)
    error = (got[0::2].float() - want.float()).norm() / want.float().norm()
    if not error < largest_error(target.dtype):
        raise UserError(
            f"The target {target.name!r} ({target.model.config.model_type}) gives other logits "
            f"through specbench's cache than without it (relative difference {float(error):.2g}), "
            "so no measurement would be valid: choose another target."
        )


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
