"""A masked-diffusion language model: a causal architecture run under an explicit mask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from drafters.diffusion.attention import NAME as OPEN_ATTENTION
from drafters.diffusion.checkpoint import base_config, load_decoder, save_decoder
from drafters.diffusion.families import Family, recognise
from specbench.api import KVCache, UserError, cache_argument
from specbench.drafting.checkpoints import find_checkpoint, read_config


class DiffusionModel(nn.Module):
    """Predicts the tokens of masked positions from all positions that they may see.

    The decoder is transformers' causal class, run with `open_attention`, since its own attention
    would silently be causal.

    Args:
        decoder: `Qwen2ForCausalLM`, `Qwen3ForCausalLM` or `LlamaForCausalLM`.
        family: the family's facts, with a mask id.
        name: as the user wrote it, for messages.

    Attributes:
        shift: True where the logits row at position p - 1 predicts position p.
        block_size: of block-causal attention; None where every position sees every other.
        stop_ids: ids that end a text.
        vocab_size: width of the logits that `predict` returns.
        context_limit: positions the model was made for.
    """

    def __init__(self, decoder: PreTrainedModel, family: Family, name: str = "model") -> None:
        super().__init__()
        decoder.set_attn_implementation(OPEN_ATTENTION)
        self.decoder = decoder
        self.family = family
        self.name = name
        config = decoder.config
        self.mask_id = _mask_id(family, config.vocab_size, name)
        self.shift = family.shift
        self.block_size = family.block_size
        self.vocab_size: int = min(family.text_ids or config.vocab_size, config.vocab_size)
        self.context_limit: int = config.max_position_embeddings
        self.stop_ids = _stop_ids(family, config, self.vocab_size)
        self._group = config.num_attention_heads // config.num_key_value_heads
        banned = {i for i in (*family.banned, self.mask_id) if i < self.vocab_size}
        self.register_buffer(
            "_banned", torch.tensor(sorted(banned), device=decoder.device), persistent=False
        )
        self._cache_argument = cache_argument(decoder)

    @classmethod
    def load(
        cls,
        name: str,
        revision: str | None = None,
        *,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> DiffusionModel:
        """Load an embedded model, a folder or a hub id; safetensors only, no remote code.

        Raises:
            UserError: no model under that name, no known family, or tensors that do not fit.
        """
        folder = find_checkpoint(name, revision)
        raw = read_config(folder)
        family = recognise(raw, name)
        config = base_config(raw, family, name)
        return cls(load_decoder(folder, config, family, torch.device(device), dtype), family, name)

    def save(self, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
        """Write the "converted" layout: the base's names and a ``diffusion`` object."""
        save_decoder(self.decoder, self.family, folder, dtype)

    @property
    def device(self) -> torch.device:
        return torch.device(self.decoder.device)

    @property
    def num_layers(self) -> int:
        return int(self.decoder.config.num_hidden_layers)

    def forward(
        self,
        ids: Tensor,
        visible: Tensor | None,
        rows: Tensor | slice | None = None,
        *,
        positions: Tensor | None = None,
        cache: KVCache | None = None,
    ) -> Tensor:
        """Compute raw logits: not shifted, nothing cropped or banned. Differentiable.

        Args:
            ids: ``[b, n]``.
            visible: ``[n, m]`` or ``[b, n, m]`` bool, whether a row may see a column; m counts the
                n ids and the cached positions. None: every row sees every column.
            rows: the rows of n that go through the head; None: all.
            positions: ``[n]`` or ``[b, n]``; None counts from the end of the cache.
            cache: keys and values of earlier positions, batch 1; these ids are appended.

        Returns:
            ``[b, rows, vocabulary]``.
        """
        held = 0 if cache is None else cache.length
        batch, count = ids.shape
        if positions is None:
            positions = torch.arange(held, held + count, device=ids.device)
        extra: dict[str, Any] = {} if cache is None else {self._cache_argument: cache}
        hidden = self.decoder.model(
            input_ids=ids,
            attention_mask=None if visible is None else self._mask(visible, batch, count, held),
            position_ids=positions.expand(batch, count),
            use_cache=cache is not None,
            **extra,
        ).last_hidden_state
        return self.decoder.lm_head(hidden if rows is None else hidden[:, rows])  # type: ignore[no-any-return]

    def _mask(self, visible: Tensor, batch: int, count: int, held: int) -> Tensor:
        """Repeat ``visible`` for the query heads of a group: ``[b, 1, h / g * n, m]``.

        It is repeated here once, not once per layer.
        """
        if visible.dtype != torch.bool or visible.shape[-2:] != (count, held + count):
            raise ValueError(
                f"visible must be bool [..., {count}, {held + count}], not {visible.dtype} "
                f"{list(visible.shape)}"
            )
        return visible.expand(batch, count, -1)[:, None].repeat(1, 1, self._group, 1)

    def visibility(self, n: int, first: int = 0) -> Tensor | None:
        """Make the family's own attention mask over n positions, for the rows from ``first`` on.

        ``[n - first, n]`` bool, whether a row may see a column; None where every row sees all.
        """
        if self.block_size is None:
            return None
        blocks = torch.arange(n, device=self.device) // self.block_size
        return blocks[first:, None] >= blocks

    @torch.inference_mode()
    def predict(self, ids: Tensor, slots: Tensor) -> Tensor:
        """Predict the tokens at ``slots``: logits, shifted, cropped, banned ids at -inf.

        Args:
            ids: ``[n]`` or ``[b, n]``, `mask_id` where masked.
            slots: ``[k]`` positions, for a shifted model from 1 on.

        Returns:
            ``[k, vocab_size]`` or ``[b, k, vocab_size]`` float32.
        """
        if self.shift and (slots == 0).any():
            raise ValueError("no row of a shifted model predicts position 0")
        single = ids.ndim == 1
        batch = ids[None] if single else ids
        visible = self.visibility(batch.shape[1])
        logits = self.finish(self(batch, visible, slots - int(self.shift)))
        return logits[0] if single else logits

    def finish(self, logits: Tensor) -> Tensor:
        """Crop raw logits ``[..., vocabulary]`` and set the ids that may not be drafted to -inf."""
        kept = logits[..., : self.vocab_size].float()
        return kept.index_fill(-1, self._banned, -torch.inf)  # type: ignore[arg-type]


def _mask_id(family: Family, vocabulary: int, name: str) -> int:
    if family.mask_id is None or not 0 <= family.mask_id < vocabulary:
        raise UserError(
            f"The mask id of {name} is {family.mask_id}, but its embedding has {vocabulary} rows: "
            "mask_token_id in its config.json must be one of them."
        )
    return family.mask_id


def _stop_ids(family: Family, config: Any, vocabulary: int) -> frozenset[int]:
    eos = config.eos_token_id
    found = [*family.stop_ids, *(eos if isinstance(eos, list) else [] if eos is None else [eos])]
    return frozenset(token for token in found if token < vocabulary)
