"""DFlash (arXiv 2602.06036): a whole block of draft tokens from one forward a round."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from drafters.dflash.checkpoint import load_config, load_model
from drafters.dflash.config import DFlashConfig
from drafters.dflash.options import DFlashOptions
from specbench.api import (
    REJECT,
    SELECT,
    WALK,
    AdaptiveLength,
    Commit,
    Drafter,
    DraftSession,
    Proposal,
    Request,
    Rule,
    TargetView,
    UserError,
    before_stop,
    draw,
    probabilities,
    seeded_generator,
    with_candidates,
)
from specbench.drafting.checkpoints import find_checkpoint
from specbench.drafting.layers import RopeTables, attention


class DFlash(Drafter):
    """Block-parallel drafting from target features; z-lab checkpoints."""

    name = "dflash"
    Options = DFlashOptions

    @property
    def rule(self) -> Rule:
        if self.options.candidates > 1:
            return SELECT
        return REJECT if self.options.sample else WALK

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
        self.rope = RopeTables(config, target.device, target.dtype)

    def open(self, request: Request) -> DraftSession:
        return DFlashSession(self, request)

    def adaptive_length(self) -> AdaptiveLength:
        """Of the drafts, their anchors not counted; delta spans the bounds, as DiffuSpec's does."""
        k_max = self.block_size - 1
        return AdaptiveLength(self.k_min, k_max, k_max - self.k_min)

    def embed(self, ids: Tensor) -> Tensor:
        """Rows of the target's raw embedding matrix, scaled as the draft wants them."""
        rows = F.embedding(ids, self.target.embedding.weight)  # type: ignore[arg-type]
        return rows * self.config.embedding_scale

    @torch.inference_mode()
    def _blank(self, target: TargetView) -> Tensor:
        """``[B, H]`` block input without its anchor."""
        mask = torch.full((self.block_size,), self.config.mask_token_id, device=target.device)
        return self.embed(mask)


class DFlashSession(DraftSession):
    """One sequence; keys and values of its context live in one buffer for all layers.

    The buffer holds ``length`` rows, one for every committed token before the anchor. A block's
    rows are written behind them and overwritten by the next commit.
    """

    @torch.inference_mode()
    def __init__(self, drafter: DFlash, request: Request) -> None:
        config = drafter.config
        self._drafter = drafter
        self._sampling = request.sampling
        self._draws = drafter.rule is REJECT and not request.sampling.greedy
        self._candidates = drafter.options.candidates, drafter.options.draft_temperature
        self._generator = seeded_generator(request.seed, "draft", drafter.target.device)
        shape = (config.layers, config.kv_heads, request.capacity, config.head_dim)
        self._keys = drafter.blank.new_empty(shape)
        self._values = drafter.blank.new_empty(shape)
        self._cos, self._sin = drafter.rope(request.capacity)
        self._length = 0
        self._anchor = 0
        self._adaptive = drafter.adaptive_length() if drafter.options.adaptive else None
        stops = sorted(drafter.target.stop_ids)
        self._stops = torch.tensor(stops, dtype=torch.long, device=drafter.target.device)
        self._generated: Tensor | None = None

    @torch.inference_mode()
    def commit(self, commit: Commit) -> None:
        assert commit.features is not None, "a DFlash drafter taps the target"
        if self._adaptive is not None and self._generated is not None:
            self._adaptive.update(int(self._generated), commit.accepted)
        rows = slice(self._length, self._length + len(commit.features))
        keys, values = self._drafter.model.context(
            commit.features.flatten(1), (self._cos[rows], self._sin[rows])
        )
        self._keys[:, :, rows] = keys
        self._values[:, :, rows] = values
        self._length = rows.stop
        self._anchor = commit.tokens[-1]

    @torch.inference_mode()
    def propose(self, budget: int) -> Proposal:
        rows = self._drafter.block_size if self._adaptive is None else self._adaptive.length + 1
        logits = self.logits(min(rows, budget + 1))
        if self._adaptive is not None:
            self._generated = before_stop(logits.argmax(-1), self._stops)
        if not self._draws:
            count, temperature = self._candidates
            return with_candidates(logits.argmax(-1), logits, count, temperature, self._generator)
        probs = probabilities(logits, self._sampling)
        uniforms = torch.rand(len(probs), generator=self._generator, device=probs.device)
        return Proposal.chain(draw(probs, uniforms), probs)

    @torch.inference_mode()
    def logits(self, rows: int) -> Tensor:
        """``[rows - 1, vocabulary]`` logits of the slots behind the anchor, ``rows`` in all."""
        drafter = self._drafter
        anchor = torch.full((1,), self._anchor, device=drafter.target.device)
        block = torch.cat([drafter.embed(anchor), drafter.blank[1:rows]])
        at = slice(self._length, self._length + rows)
        masks = self._masks(rows)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self._keys[layer, :, at] = k.transpose(0, 1)
            self._values[layer, :, at] = v.transpose(0, 1)
            first, mask = masks[layer]
            seen = slice(first, at.stop)
            return attention(q, self._keys[layer, :, seen], self._values[layer, :, seen], mask)

        hidden = drafter.model(block, (self._cos[at], self._sin[at]), attend)
        return drafter.model.logits(hidden[1:], drafter.target.head)

    def _masks(self, rows: int) -> list[tuple[int, Tensor | None]]:
        """Each layer's first visible position and mask; layers of one kind share them."""
        config = self._drafter.config
        kinds = list(zip(config.windows, config.causal, strict=True))
        device = self._drafter.target.device
        made = {
            (window, causal): _mask(window, causal, self._length, rows, device)
            for window, causal in set(kinds)
        }
        return [made[kind] for kind in kinds]


def visible(queries: Tensor, keys: Tensor, window: int | None, causal: bool) -> Tensor:
    """Which key positions a query position may see, ``[..., queries, keys]`` bool.

    A window of W shows the W - 1 positions before and, in a bidirectional block, after it.
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
    """Whether a draft was made for this target.

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
