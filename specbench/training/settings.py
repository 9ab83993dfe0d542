"""What training is asked for: plain data, read without torch.

A trainer is an entry point of the group ``specbench.trainers``, and its settings are a frozen
dataclass under the same name in the group ``specbench.trainers.options``. Settings that inherit
`RecipeSettings` belong to a `specbench.training.recipe.Recipe`, which the shared loop trains. Any
other settings belong to a function ``train(settings, job) -> str`` that does all the work and
returns a line about the result. A trainer without announced settings is a recipe.
"""

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, ClassVar

MaskToken = Annotated[
    int | None,
    "Token that stands in every masked place; none: the tokenizer's mask token, or the embedding's "
    "first row past the tokenizer's entries.",
]
PRECISIONS = ("auto", "bf16", "fp32")
Precision = Annotated[str, "bf16, fp32, or auto: bf16 on CUDA."]


@dataclass(frozen=True)
class Job:
    """What every trainer is told.

    Attributes:
        target: hub id, folder or embedded model.
        corpora: files of chats, as ``PATH`` or ``PATH:WEIGHT``.
        exclude: files whose text must not be trained on.
        out: folder of the result.
        command: what a person typed, for the card.
    """

    target: str
    corpora: tuple[str, ...]
    exclude: tuple[Path, ...]
    out: Path
    command: str


@dataclass(frozen=True)
class RecipeSettings:
    """A recipe's own settings (``--set key=value``); a recipe without any uses this class."""


@dataclass(frozen=True)
class DraftSettings(RecipeSettings):
    """Settings of a recipe that can go on from an earlier draft.

    Attributes:
        decided_by_init: settings that the earlier draft decides, so that nobody may give them too.
    """

    decided_by_init: ClassVar[tuple[str, ...]] = ()

    init: Annotated[
        str | None,
        "Folder, hub id or embedded model of a draft to go on from, instead of fresh weights.",
    ] = None

    def __post_init__(self) -> None:
        both = [
            field.name
            for field in fields(self)
            if field.name in self.decided_by_init and getattr(self, field.name) != field.default
        ]
        if self.init is not None and both:
            raise ValueError(f"leave {', '.join(both)} out, since init={self.init} decides that")


@dataclass(frozen=True)
class TrainSettings:
    """Everything that shapes a run of the loop besides model, data and loss.

    Attributes:
        final_lr: share of ``lr`` that the cosine ends at.
        compile: left to the code that makes the loss, which knows the parts of fixed shape.
    """

    steps: Annotated[int, "Optimizer steps."]
    batch: Annotated[int, "Sequences per batch."] = 16
    length: Annotated[int, "Tokens per sequence."] = 256
    lr: Annotated[float, "Highest learning rate."] = 2e-3
    final_lr: float = 0.05
    warmup: Annotated[float, "Share of the steps in which the rate rises."] = 0.02
    weight_decay: float = 0.1
    clip: float = 1.0
    accumulate: Annotated[int, "Batches per step."] = 1
    seed: Annotated[int, "Random seed."] = 0
    precision: Precision = "fp32"
    compile: Annotated[bool, "Use torch.compile."] = False
    log_every: int = 20
    validate_every: int = 1000
    checkpoint_every: Annotated[int, "Steps between two checkpoints."] = 500

    def __post_init__(self) -> None:
        check_least(self, steps=1, batch=1, accumulate=1, length=8, lr=0, checkpoint_every=1)
        check_choice("precision", self.precision, PRECISIONS)
        if not 0 <= self.warmup <= 1:
            raise ValueError(f"warmup={self.warmup} must lie in [0, 1]")

    @property
    def shape(self) -> dict[str, int]:
        """What batches are made by."""
        return {"batch": self.batch, "length": self.length, "seed": self.seed}

    def rate(self, step: int) -> float:
        """Learning rate of a step counted from 0: linear warm-up, then a cosine."""
        warm = max(1, round(self.warmup * self.steps))
        if step < warm:
            return self.lr * (step + 1) / warm
        done = (step - warm) / max(1, self.steps - warm)
        cosine = 0.5 * (1 + math.cos(math.pi * done))
        return self.lr * (self.final_lr + (1 - self.final_lr) * cosine)


@dataclass(frozen=True)
class TargetShape:
    """Sizes of a target trained from scratch; the vocabulary is the tokenizer's."""

    hidden: Annotated[int, "Width of the residual stream."] = 192
    layers: Annotated[int, "Decoder layers."] = 12
    heads: Annotated[int, "Query heads per layer."] = 3
    kv_heads: Annotated[int, "Key and value heads per layer."] = 1
    head_dim: Annotated[int, "Width of a head."] = 64
    intermediate: Annotated[int, "Width of the feed-forward part."] = 512
    tied: Annotated[bool, "Use the embedding as the head."] = True
    context: int = 2048


@dataclass(frozen=True)
class ResponseSettings:
    """How a target answers prompts."""

    max_new_tokens: Annotated[int, "Most tokens per answer."] = 256
    temperature: Annotated[float, "Sampling temperature; 0 is greedy."] = 0.0
    batch: Annotated[int, "Answers decoded together."] = 64
    limit: Annotated[int | None, "Most prompts, chosen by the seed."] = None
    longest_prompt: Annotated[int, "Leave out prompts of more tokens than this."] = 512
    seed: Annotated[int, "Random seed."] = 0
    precision: Precision = "fp32"

    def __post_init__(self) -> None:
        check_least(self, max_new_tokens=1, temperature=0, batch=1, limit=1)
        check_choice("precision", self.precision, PRECISIONS)


def check_least(settings: object, **least: float) -> None:
    """Check lower bounds of settings; one that is None passes.

    Raises:
        ValueError: names every setting below its bound.
    """
    small = [
        f"{name} must be at least {bound}, not {value}"
        for name, bound in least.items()
        if (value := getattr(settings, name)) is not None and value < bound
    ]
    if small:
        raise ValueError("; ".join(small))


def check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    """Check a setting that has a few possible values.

    Raises:
        ValueError: names them.
    """
    if value not in known:
        raise ValueError(f"{name} is one of {', '.join(known)}, not {value!r}")
