"""Training of an EAGLE-3 head: the training-time test of arXiv 2503.01840, section 3.2.

Each step's output is the next step's input, as in drafting, on the tokens of the text. Row p of
step s knows the target's features up to token p and the tokens up to p + 1 + s, and is compared
with the target's distribution of token p + 2 + s.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from drafters.eagle.checkpoint import save_model
from drafters.eagle.model import Eagle3Model
from drafters.eagle.settings import Eagle3Settings
from drafters.eagle.start import draft_ids, frequent_ids, fresh_draft, known_draft, load_draft
from specbench.drafting.layers import rope_table
from specbench.training.corpus.batches import Batch
from specbench.training.corpus.tokenizer import Encoded
from specbench.training.features import FrozenTarget
from specbench.training.recipe import Recipe


@dataclass(frozen=True)
class Teacher:
    """The target's distribution of the token after each position.

    Attributes:
        probs: ``[b, n, Vd]``, its softmax over the draft's ids alone.
        known: ``[b, n]`` bool, true where its most likely token is one of them. Other positions are
            not learned, since no draft could be right there.
    """

    probs: Tensor
    known: Tensor


class Eagle3Recipe(Recipe):
    """An EAGLE-3 head for a frozen target, whose embedding it borrows.

    The published code applies the loss mask one place too early: it shifts tokens and targets
    before the first step, but not the mask, so that a response's second token is never learned and
    the token after its end is. Here a row is learned where all its tokens, from its anchor p + 1 to
    p + 2 + s, belong to one response (the first token of a response is the target's own and never
    drafted). The sum is divided by the number of such rows in step 0, not by all rows, so that
    padding does not change the weight of a batch.
    """

    Options = Eagle3Settings
    draft: Eagle3Model

    def __init__(
        self, target: FrozenTarget, options: Eagle3Settings, ids: Tensor | None = None
    ) -> None:
        """``ids`` ``[Vd]`` are the draft's target ids, increasing; None takes all of them."""
        view = target.view
        self.target, self.options = target, options
        if options.init is None:
            self.draft = fresh_draft(view, options, ids)
        else:
            self.draft = known_draft(view, options.init, ids)
        self.taps = self.draft.config.boundaries(view.num_layers)
        self._ids = draft_ids(self.draft)

    @classmethod
    def for_corpus(
        cls, target: FrozenTarget, options: Eagle3Settings, documents: Sequence[Encoded]
    ) -> Self:
        """Take the ids that the responses use most as the draft vocabulary."""
        size, whole = options.draft_vocab_size, target.view.vocab_size
        if options.init is not None:
            size = load_draft(target.view, options.init).config.draft_vocab_size
        return cls(target, options, None if size >= whole else frequent_ids(documents, size, whole))

    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Sum the cross entropies with the target's distribution over the discounted steps."""
        outputs, teacher = self.forward(batch)
        inside = rows_in_responses(batch.response, self.options.steps)
        sums = []
        for step, (output, rows) in enumerate(zip(outputs, inside, strict=True)):
            learned = rows & shift(teacher.known, 1 + step)
            compared = select_rows(self.draft, output, teacher, learned, step)
            sums.append(cross_entropy(*compared).sum())
        count = inside[0].sum().clamp(min=1)
        return discounted(torch.stack(sums), self.options.decay) / count

    def figures(self, batch: Batch, generator: torch.Generator) -> dict[str, float]:
        """Compute the loss, and the tokens emitted per round if the text were the target's own.

        A round emits one token more than the leading steps whose most likely token is right.
        """
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
        known = vars(config) | {"rope_theta": config.rope["rope_theta"]}
        return {name: known[name] for name in self.Options.decided_by_init}

    def save(self, folder: Path) -> None:
        save_model(self.draft, folder, torch.bfloat16)

    def forward(self, batch: Batch) -> tuple[Iterator[Tensor], Teacher]:
        """Compute the outputs ``[b, n, H]`` of all steps, and what they are compared with."""
        features, last = self.target.forward(batch.tokens, self.taps)
        with torch.no_grad():
            teacher = teacher_of(self.target.view.head(last), self._ids)
        weight: Any = self.target.view.embedding.weight
        outputs = unroll(self.draft, weight, features.flatten(2), batch.tokens, self.options.steps)
        return outputs, teacher


def unroll(
    draft: Eagle3Model, embedding: Tensor, features: Tensor, tokens: Tensor, steps: int
) -> Iterator[Tensor]:
    """Yield the outputs ``[b, n, H]`` of one step after another.

    Args:
        embedding: ``[V, H]``.
        features: ``[b, n, F * Ht]`` of the target, the taps concatenated.
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
    """The attention of a draft's level, for all rows of a text at once; called once per step.

    A row sees the rows of step 0 up to its own, which come from features, and its own row of each
    later step, which are the tokens drafted since. Plain products, since backward through fused
    attention is slower on a CPU.
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


def select_rows(
    draft: Eagle3Model, output: Tensor, teacher: Teacher, rows: Tensor, step: int
) -> tuple[Tensor, Tensor]:
    """Draft logits and teacher distribution of the selected rows.

    Args:
        output: ``[b, n, H]`` of the step.
        rows: ``[b, n]`` bool; no other row goes through the head.

    Returns:
        Both ``[rows, Vd]`` float32.
    """
    sequence, row = rows.nonzero(as_tuple=True)
    logits = draft.logits(output[sequence, row], torch.nn.Identity()).float()
    return logits, teacher.probs[sequence, row + 1 + step]


def cross_entropy(logits: Tensor, probs: Tensor) -> Tensor:
    """Cross entropies ``[rows]`` of logits and distributions ``[rows, Vd]``."""
    return -(probs * logits.log_softmax(-1)).sum(-1)


def teacher_of(target_logits: Tensor, ids: Tensor) -> Teacher:
    """Make the teacher from the target's logits ``[b, n, V]``, for draft ids ``ids`` ``[Vd]``."""
    known = torch.isin(target_logits.argmax(-1), ids)
    return Teacher(target_logits[..., ids].float().softmax(-1), known)


def rows_in_responses(response: Tensor, steps: int) -> list[Tensor]:
    """Per step, ``[b, n]`` bool: true where the tokens p + 1 .. p + 2 + s are of one response."""
    follow = (shift(response, 1 + step) for step in range(steps + 1))
    return list(itertools.accumulate(follow, torch.logical_and))[1:]


def discounted(values: Tensor, decay: float) -> Tensor:
    """Sum over the steps ``[steps]``, step s weighing decay ** s."""
    return (values * decay ** torch.arange(len(values), device=values.device)).sum()


def shift(x: Tensor, count: int) -> Tensor:
    """Shift ``[b, n]`` to the left, and fill with zeros."""
    return F.pad(x[:, count:], (0, min(count, x.shape[1])))
