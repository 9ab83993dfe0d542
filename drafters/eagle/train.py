"""Training of an EAGLE-3 head: the training-time test of arXiv 2503.01840, section 3.2.

A step's output is fed to the next step as drafting does it, on the tokens of the text. Row p of
step s knows the target's features up to token p and the tokens up to p + 1 + s, and is compared
with what the target says about token p + 2 + s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from drafters.eagle.checkpoint import load_model, save_model
from drafters.eagle.config import EagleConfig
from drafters.eagle.draft import check_fit
from drafters.eagle.model import Eagle3Model
from specbench.api import TargetView, UserError
from specbench.drafting.checkpoints import find_checkpoint
from specbench.drafting.layers import rope_table
from specbench.training.corpus.batches import Batch
from specbench.training.corpus.tokenizer import Encoded
from specbench.training.features import FrozenTarget
from specbench.training.recipe import Recipe


@dataclass(frozen=True)
class Eagle3Training:
    """Settings of `Eagle3Recipe`; None takes the target's own value.

    Attributes:
        steps: unrolled steps.
        decay: step s weighs decay ** s in the loss.
        draft_vocab_size: ids the draft can propose, the most frequent ones in the responses; the
            target's whole vocabulary where that is not larger.
        rope_theta: base of the draft's rotary positions. Published heads keep 10000 whatever the
            target's is.
        heads, kv_heads, head_dim, intermediate: shape of the draft's layer.
        init: folder or hub id of an EAGLE-3 draft to go on from, in place of fresh weights; every
            setting but ``steps`` and ``decay`` then is that draft's. Its vocabulary keeps its size
            and is chosen anew; the head's rows of ids it did not have are the target's own.
    """

    steps: int = 7
    decay: float = 0.8
    draft_vocab_size: int = 32000
    rope_theta: float = 10000.0
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    intermediate: int | None = None
    init: str | None = None

    def __post_init__(self) -> None:
        if self.steps < 1 or self.draft_vocab_size < 1:
            raise UserError(
                "EAGLE-3 is trained with steps >= 1 and draft_vocab_size >= 1, not "
                f"{self.steps} and {self.draft_vocab_size}."
            )


@dataclass(frozen=True)
class Lesson:
    """What the target says about the token behind each position.

    Attributes:
        probs: ``[b, n, Vd]``, its softmax over the draft's ids alone.
        known: ``[b, n]`` bool, whether its most likely token is one of them. Other positions are
            not learned: no draft could be right there.
    """

    probs: Tensor
    known: Tensor


class Eagle3Recipe(Recipe):
    """A head with fresh weights for a frozen target, whose embedding it borrows.

    The published code takes the loss mask one place too early: tokens and targets are shifted in
    front of the first step and the mask is not, so that a response's second token is never learned
    and what follows its end is. Here a row is learned where all that it deals with, from its
    anchor p + 1 to the token p + 2 + s, belongs to one response (the first token of a response is
    the target's own and never drafted). The sum is divided by the number of such rows in step 0,
    not by all rows, so that a batch weighs the same with more padding.
    """

    Options = Eagle3Training
    draft: Eagle3Model

    def __init__(
        self, target: FrozenTarget, options: Eagle3Training, ids: Tensor | None = None
    ) -> None:
        """`ids` ``[Vd]`` are the draft's target ids, increasing; None takes all of them."""
        view = target.view
        self.target = target
        self.options = options
        self.draft = (
            fresh_draft(view, options, ids)
            if options.init is None
            else known_draft(view, options, ids)
        )
        self.taps = self.draft.config.boundaries(view.num_layers)
        self._ids = draft_ids(self.draft)

    @classmethod
    def for_corpus(
        cls, target: FrozenTarget, options: Eagle3Training, documents: Sequence[Encoded]
    ) -> Self:
        """The draft vocabulary is what the responses use most."""
        size, whole = options.draft_vocab_size, target.view.vocab_size
        if options.init is not None:
            size = load_draft(target.view, options.init).config.draft_vocab_size
        return cls(target, options, None if size >= whole else frequent_ids(documents, size, whole))

    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Cross entropy against the target's distribution, summed over the discounted steps."""
        outputs, lesson = self.forward(batch)
        inside = rows_in_responses(batch.response, self.options.steps)
        sums = []
        for step, (output, rows) in enumerate(zip(outputs, inside, strict=True)):
            learned = rows & shift(lesson.known, 1 + step)
            compared = chosen(self.draft, output, lesson, learned, step)
            sums.append(cross_entropy(*compared).sum())
        count = inside[0].sum().clamp(min=1)
        return discounted(torch.stack(sums), self.options.decay) / count

    def figures(self, batch: Batch, generator: torch.Generator) -> dict[str, float]:
        """The loss, and the tokens a round would emit if the text were the target's own: one
        more than the leading steps of a chain whose most likely token is right."""
        outputs, _ = self.forward(batch)
        inside = rows_in_responses(batch.response, self.options.steps)
        streak = torch.ones_like(batch.response)
        emitted = streak.float()
        for step, (output, rows) in enumerate(zip(outputs, inside, strict=True)):
            logits = self.draft.logits(output, torch.nn.Identity())
            streak = streak & rows & (self._ids[logits.argmax(-1)] == shift(batch.tokens, 2 + step))
            emitted = emitted + streak
        return {
            "validation_loss": float(self.loss(batch, generator)),
            "emitted_per_round": float(emitted[inside[0]].mean()),
        }

    @property
    def settled(self) -> dict[str, Any]:
        config = self.draft.config
        names = ("draft_vocab_size", "heads", "kv_heads", "head_dim", "intermediate")
        shape = {name: getattr(config, name) for name in names}
        return shape | {"rope_theta": config.rope["rope_theta"]}

    def save(self, folder: Path) -> None:
        save_model(self.draft, folder, torch.bfloat16)

    def forward(self, batch: Batch) -> tuple[Iterator[Tensor], Lesson]:
        """The outputs ``[b, n, H]`` of all steps, and what they are compared with."""
        features, last = self.target.forward(batch.tokens, self.taps)
        with torch.no_grad():
            lesson = lesson_of(self.target.view.head(last), self._ids)
        weight: Any = self.target.view.embedding.weight
        outputs = unroll(self.draft, weight, features.flatten(2), batch.tokens, self.options.steps)
        return outputs, lesson


def unroll(
    draft: Eagle3Model, embedding: Tensor, features: Tensor, tokens: Tensor, steps: int
) -> Iterator[Tensor]:
    """The outputs ``[b, n, H]`` of one step after another.

    Args:
        embedding: ``[V, H]``.
        features: ``[b, n, F * Ht]`` of the target, taps side by side.
        tokens: ``[b, n]``; rows that reach past the end read token 0 there.
    """
    length = tokens.shape[1]
    positions = torch.arange(length + steps - 1, device=tokens.device)
    cos, sin = rope_table(draft.config, positions)
    attend = UnrolledAttention()
    known = draft.condition(features)
    for step in range(steps):
        at = slice(step, step + length)
        embedded = F.embedding(shift(tokens, 1 + step), embedding)
        known = draft(embedded, known, (cos[at], sin[at]), attend)
        yield known


class UnrolledAttention:
    """What a draft's level sees, for all rows of a text at once; called once a step.

    A row of step s sees the rows of step 0 up to its own, which were made from features, and of
    the steps after it its own row only, which are the tokens drafted since. Plain products:
    backward through fused attention is slower on a CPU.
    """

    def __init__(self) -> None:
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q ``[b, n, h, d]``, k and v ``[b, n, g, d]`` to ``[b, n, h * d]``."""
        b, length, heads, width = q.shape
        groups = k.shape[2]
        self._keys.append(k.transpose(1, 2))
        self._values.append(v.transpose(1, 2))
        grouped = q.view(b, length, groups, -1, width).permute(0, 2, 3, 1, 4) * width**-0.5
        shape = grouped.shape
        scores = grouped.reshape(b, groups, -1, width) @ self._keys[0].transpose(2, 3)
        scores = scores.view(*shape[:-1], length)
        future = torch.ones(length, length, dtype=torch.bool, device=q.device).triu_(1)
        own = [(grouped * key[:, :, None]).sum(-1, keepdim=True) for key in self._keys[1:]]
        scores = torch.cat([scores.masked_fill(future, -torch.inf), *own], dim=-1)
        weights = scores.softmax(-1, dtype=torch.float32).to(v.dtype)
        past = weights[..., :length].reshape(b, groups, -1, length)
        out = (past @ self._values[0]).view(shape)
        for step, value in enumerate(self._values[1:]):
            out = out + weights[..., length + step, None] * value[:, :, None]
        return out.permute(0, 3, 1, 2, 4).reshape(b, length, heads * width)


def chosen(
    draft: Eagle3Model, output: Tensor, lesson: Lesson, rows: Tensor, step: int
) -> tuple[Tensor, Tensor]:
    """Of some rows of a step, the draft's logits and the target's distribution.

    Args:
        output: ``[b, n, H]`` of the step.
        rows: ``[b, n]`` bool; no other row goes through the head.

    Returns:
        Both ``[rows, Vd]`` float32.
    """
    sequence, row = rows.nonzero(as_tuple=True)
    logits = draft.logits(output[sequence, row], torch.nn.Identity()).float()
    return logits, lesson.probs[sequence, row + 1 + step]


def cross_entropy(logits: Tensor, probs: Tensor) -> Tensor:
    """``[rows]`` of logits and distributions ``[rows, Vd]``."""
    return -(probs * logits.log_softmax(-1)).sum(-1)


def lesson_of(target_logits: Tensor, ids: Tensor) -> Lesson:
    """From the target's logits ``[b, n, V]`` at each position, for draft ids ``ids`` ``[Vd]``."""
    known = torch.isin(target_logits.argmax(-1), ids)
    return Lesson(target_logits[..., ids].float().softmax(-1), known)


def rows_in_responses(response: Tensor, steps: int) -> list[Tensor]:
    """For each step, ``[b, n]`` bool: the tokens p + 1 .. p + 2 + s are of one response."""
    rows = shift(response, 1)
    found = []
    for step in range(steps):
        rows = rows & shift(response, 2 + step)
        found.append(rows)
    return found


def discounted(values: Tensor, decay: float) -> Tensor:
    """The sum over steps ``[steps]`` with step s weighing decay ** s."""
    return (values * decay ** torch.arange(len(values), device=values.device)).sum()


def shift(x: Tensor, count: int) -> Tensor:
    """``[b, n]`` moved to the left; zeros come in."""
    return F.pad(x[:, count:], (0, min(count, x.shape[1])))


def draft_ids(draft: Eagle3Model) -> Tensor:
    """The target ids ``[Vd]`` of a draft's ids."""
    size = draft.config.draft_vocab_size
    if draft.d2t is None:
        return torch.arange(size, device=draft.norm.weight.device)
    return draft.d2t + torch.arange(size, device=draft.d2t.device)


def frequent_ids(documents: Sequence[Encoded], size: int, vocabulary: int) -> Tensor:
    """The ``size`` ids used most in responses, increasing; of equals the lower ids."""
    counts = np.zeros(vocabulary, dtype=np.int64)
    for document in documents:
        counts += np.bincount(document.tokens[document.response], minlength=vocabulary)
    return torch.from_numpy(np.sort(np.argsort(-counts, stable=True)[:size]))


def fresh_draft(view: TargetView, options: Eagle3Training, ids: Tensor | None) -> Eagle3Model:
    """A draft that knows nothing yet but the target's own head, for its ids ``[Vd]`` or all."""
    draft = Eagle3Model(shape_for(view, options, view.vocab_size if ids is None else len(ids)))
    for parameter in draft.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.02)
    ids = draft_ids(draft) if ids is None else ids
    choose_vocabulary(draft, ids, view.head.weight[ids])  # type: ignore[index]
    return draft.to(view.device, torch.float32)


def known_draft(view: TargetView, options: Eagle3Training, ids: Tensor | None) -> Eagle3Model:
    """The draft of ``init``, with the draft ids ``[Vd]`` or its own.

    Raises:
        UserError: as `load_draft`, or settings of another draft come with it.
    """
    name = str(options.init)
    if options != Eagle3Training(steps=options.steps, decay=options.decay, init=name):
        raise UserError(
            f"With init={name} only steps and decay can be set: everything else is that draft's "
            "own."
        )
    draft = load_draft(view, name)
    if ids is not None:
        had = draft_ids(draft)
        rows: Tensor = view.head.weight.detach().clone()  # type: ignore[operator]
        rows[had] = draft.get_parameter("lm_head.weight").to(rows)
        choose_vocabulary(draft, ids, rows[ids])
    return draft.train().requires_grad_(True)


def load_draft(view: TargetView, name: str) -> Eagle3Model:
    """A draft that can be trained on, float32.

    Raises:
        UserError: it is no EAGLE-3 draft for this target, or has another shape than those made
            here.
    """
    draft = load_model(find_checkpoint(name, None, fallback="*.bin"), view.device, torch.float32)
    config = draft.config
    check_fit(config, view, "the recipe eagle3", name, 3)
    if config.own_embedding or not config.own_head or config.layers > 1:
        raise UserError(
            f"The draft {name!r} cannot be trained on: the recipe knows drafts of one layer that "
            "borrow the target's embedding and have a head of their own."
        )
    assert isinstance(draft, Eagle3Model)
    return draft


@torch.no_grad()
def choose_vocabulary(draft: Eagle3Model, ids: Tensor, head: Tensor) -> None:
    """Make ``ids`` ``[Vd]``, increasing, the target ids of a draft, with the head's ``[Vd, H]``."""
    draft.get_parameter("lm_head.weight").copy_(head)
    if draft.d2t is not None and draft.t2d is not None:
        draft.d2t.copy_(ids - torch.arange(len(ids), device=ids.device))
        draft.t2d.zero_()[ids] = True


def shape_for(view: TargetView, options: Eagle3Training, draft_vocab_size: int) -> EagleConfig:
    """The head's settings for a target.

    Raises:
        UserError: the target has too few layers for three distinct taps.
    """
    of_target = view.config
    config = EagleConfig(
        version=3,
        hidden=view.hidden_size,
        intermediate=options.intermediate or of_target.intermediate_size,
        heads=options.heads or of_target.num_attention_heads,
        kv_heads=options.kv_heads or of_target.num_key_value_heads,
        head_dim=options.head_dim or getattr(of_target, "head_dim", None) or view.hidden_size
        // of_target.num_attention_heads,
        target_hidden=view.hidden_size,
        vocab_size=view.vocab_size,
        draft_vocab_size=draft_vocab_size,
        eps=getattr(of_target, "rms_norm_eps", 1e-6),
        rope={"rope_type": "default", "rope_theta": options.rope_theta},
        max_positions=of_target.max_position_embeddings,
    )  # fmt: skip
    config.boundaries(view.num_layers)
    return config
