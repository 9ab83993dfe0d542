"""DFlash (arXiv 2602.06036): a whole block of draft tokens from one forward per round."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from drafters.dflash.checkpoint import load_config, load_model
from drafters.dflash.config import DFlashConfig
from drafters.dflash.options import DFlashOptions
from specbench.api import (
    REJECT,
    AdaptiveLength,
    Commit,
    Drafter,
    DraftSession,
    Proposal,
    Request,
    Rule,
    TargetView,
    UserError,
    drawn,
    rule_of,
    seeded_generator,
    with_candidates,
)
from specbench.drafting.checkpoints import find_checkpoint
from specbench.drafting.kv import DraftKV
from specbench.drafting.layers import RopeTables


class DFlash(Drafter):
    """Block-parallel drafting from target features; z-lab checkpoints."""

    name = "dflash"
    Options = DFlashOptions

    @property
    def rule(self) -> Rule:
        return rule_of(self.options.sample, self.options.candidates)

    @property
    def details(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"block": self.block_size, "boundaries": list(self.taps)}
        return facts | {"k_min": self.k_min} if self.options.adaptive else facts

    def bind(self, target: TargetView) -> None:
        """Load the draft in the target's dtype, on its device.

        Raises:
            UserError: it cannot be loaded or does not fit the target.
        """
        folder = find_checkpoint(self.options.model, self.options.revision)
        config = load_config(folder)
        check_fit(config, target, self.options.model)
        self.block_size = _block_size(config, self.options.block_size)
        self.k_min = _shortest(self.block_size - 1, self.options.k_min)
        self.config = config
        self.target = target
        self.taps = config.taps
        self.width = self.options.candidates * (self.block_size - 1)
        self.model = load_model(folder, config, target.device, target.dtype)
        self.model.stack()
        self.blank = self._blank(target)
        self.stops = torch.tensor(sorted(target.stop_ids), dtype=torch.long, device=target.device)
        self.rope = RopeTables(config, target.device, target.dtype)

    def open(self, request: Request) -> DraftSession:
        return DFlashSession(self, request)

    def length(self) -> AdaptiveLength:
        """Start a session's draft length, anchor excluded; where it adapts, delta is
        k_max - k_min, as in DiffuSpec."""
        k_max = self.block_size - 1
        k_min = self.k_min if self.options.adaptive else k_max
        return AdaptiveLength(k_min, k_max, k_max - k_min)

    def embed(self, ids: Tensor) -> Tensor:
        """Look up rows of the target's embedding matrix, scaled as the draft was trained."""
        rows = F.embedding(ids, self.target.embedding.weight)  # type: ignore[arg-type]
        return rows * self.config.embedding_scale

    @torch.inference_mode()
    def _blank(self, target: TargetView) -> Tensor:
        """Embed a block ``[B, H]`` of masks; the anchor replaces its first row."""
        mask = torch.full((self.block_size,), self.config.mask_token_id, device=target.device)
        return self.embed(mask)


class DFlashSession(DraftSession):
    """One sequence; ``kv`` holds a row for every committed token before the anchor."""

    @torch.inference_mode()
    def __init__(self, drafter: DFlash, request: Request) -> None:
        config, target = drafter.config, drafter.target
        self._drafter = drafter
        self._sampling = request.sampling
        self._draws = drafter.rule.at(request.sampling) is REJECT
        self._generator = seeded_generator(request.seed, "draft", target.device)
        shape = (config.layers, config.kv_heads, request.capacity, config.head_dim)
        self.kv = DraftKV(shape, dtype=target.dtype, device=target.device)
        self._cos, self._sin = drafter.rope(request.capacity)
        self._anchor = 0
        self._length = drafter.length()

    @torch.inference_mode()
    def commit(self, commit: Commit) -> None:
        assert commit.features is not None, "a DFlash drafter taps the target"
        self._length.committed(commit.accepted)
        rows = slice(self.kv.length, self.kv.length + len(commit.features))
        rope = self._cos[rows], self._sin[rows]
        self.kv.append(*self._drafter.model.context(commit.features.flatten(1), rope))
        self._anchor = commit.tokens[-1]

    @torch.inference_mode()
    def propose(self, budget: int) -> Proposal:
        logits = self.logits(min(self._length.length, budget) + 1)
        options = self._drafter.options
        if options.adaptive:
            self._length.drafted(logits.argmax(-1), self._drafter.stops)
        if self._draws:
            return drawn(logits, self._sampling, self._generator)
        count, temperature = options.candidates, options.draft_temperature
        return with_candidates(logits.argmax(-1), logits, count, temperature, self._generator)

    def buffers(self) -> Iterable[Tensor]:
        return self.kv.buffers()

    @torch.inference_mode()
    def logits(self, rows: int) -> Tensor:
        """Compute ``[rows - 1, vocabulary]`` logits of the slots behind the anchor, which is the
        first of ``rows`` in all."""
        drafter, kv = self._drafter, self.kv
        anchor = torch.full((1,), self._anchor, device=drafter.target.device)
        block = torch.cat([drafter.embed(anchor), drafter.blank[1:rows]])
        at = slice(kv.length, kv.length + rows)
        masks = self._masks(rows)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            first, mask = masks[layer]
            return kv.attend(layer, at, q, k, v, mask, first=first)

        hidden = drafter.model(block, (self._cos[at], self._sin[at]), attend)
        return drafter.model.logits(hidden[1:], drafter.target.head)

    def _masks(self, rows: int) -> list[tuple[int, Tensor | None]]:
        """Return each layer's first visible position and mask; layers of one kind share them."""
        config = self._drafter.config
        kinds = list(zip(config.windows, config.causal, strict=True))
        device = self._drafter.target.device
        made = {
            (window, causal): _mask(window, causal, self.kv.length, rows, device)
            for window, causal in set(kinds)
        }
        return [made[kind] for kind in kinds]


def visible(queries: Tensor, keys: Tensor, window: int | None, causal: bool) -> Tensor:
    """Return ``[..., queries, keys]`` bool: which key positions a query position may see.

    A window of W shows the W - 1 positions before the query and, in a bidirectional block, the
    W - 1 after it.
    """
    distance = queries[..., :, None] - keys[..., None, :]
    seen = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
    if window is not None:
        seen = seen & (distance < window) & (distance > -window)
    return seen


def _mask(
    window: int | None, causal: bool, length: int, rows: int, device: torch.device
) -> tuple[int, Tensor | None]:
    if window is None and not causal:
        return 0, None
    first = 0 if window is None else max(0, length - window + 1)
    positions = torch.arange(first, length + rows, device=device)
    return first, visible(positions[length - first :], positions, window, causal)


def check_fit(config: DFlashConfig, target: TargetView, name: str) -> None:
    """Check that a draft was made for this target.

    Raises:
        UserError: names everything that does not fit.
    """
    rows = target.embedding.weight.shape[0]  # type: ignore[index]
    faults = []
    if config.hidden != target.hidden_size:
        faults.append(f"hidden_size is {config.hidden}, the target's {target.hidden_size}")
    if config.vocab_size != target.vocab_size:
        faults.append(f"vocab_size is {config.vocab_size}, the target's {target.vocab_size}")
    if config.num_target_layers not in (None, target.num_layers):
        faults.append(
            f"it was made for {config.num_target_layers} layers, the target has {target.num_layers}"
        )
    # The hidden state listed behind the last layer is past the final norm, so what a tap on that
    # layer means is ambiguous, and no published draft has one.
    if max(config.target_layer_ids) > target.num_layers - 2:
        faults.append(
            f"target_layer_ids go to {max(config.target_layer_ids)}, the target's last usable "
            f"layer is {target.num_layers - 2}"
        )
    if config.mask_token_id >= rows:
        faults.append(
            f"mask_token_id is {config.mask_token_id}, the target's embedding has {rows} rows"
        )
    if faults:
        raise UserError(
            f"The draft {name!r} does not fit the target {target.name!r}: {'; '.join(faults)}."
        )


def _block_size(config: DFlashConfig, wanted: int | None) -> int:
    if wanted is None:
        return config.block_size
    if not 2 <= wanted <= config.block_size:
        raise UserError(
            f"dflash.block_size is {wanted}, but this draft was trained for {config.block_size}: "
            f"take 2 to {config.block_size}."
        )
    return wanted


def _shortest(longest: int, wanted: int | None) -> int:
    if wanted is None:
        return max(1, round(2 / 3 * longest))
    if not 1 <= wanted <= longest:
        raise UserError(
            f"dflash.k_min is {wanted}, but a draft of this block size has 1 to {longest} tokens."
        )
    return wanted
