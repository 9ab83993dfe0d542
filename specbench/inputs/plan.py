"""From what a person asks for to what will be run, before any weights are loaded."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import torch

from specbench.core.drafter import Autoregressive, Drafter
from specbench.core.sampling import Sampling
from specbench.errors import UserError
from specbench.inputs import registry
from specbench.inputs.options import expand, parse_options
from specbench.inputs.pairs import find_pair
from specbench.inputs.suite import Suite, load_suite, subset
from specbench.zoo import resolve

TINY_TARGET = "tiny-target"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Settings:
    """A run as it was asked for; None and "auto" stand for the default.

    Attributes:
        drafters: names, each with settings of its own where wanted: ``dflash[block_size=4|8]``.
        revision: of the target's hub id.
        overrides: ``drafter.key=value`` texts.
        threads: CPU threads of torch.
    """

    drafters: tuple[str, ...]
    suites: tuple[str, ...]
    target: str | None = None
    revision: str | None = None
    draft_model: str | None = None
    overrides: tuple[str, ...] = ()
    limit: int | None = None
    max_new_tokens: int | None = None
    sampling: Sampling = Sampling()
    device: str = "auto"
    dtype: str = "auto"
    seed: int = 0
    threads: int | None = None
    data_dir: Path | None = None
    thinking: str = "off"


@dataclass(frozen=True)
class Arm:
    """One drafter with its settings.

    Attributes:
        options: its settings as given, in text; `make` parses them.
        draft_model: what it loads, as given; None where it loads nothing.
        found: where the draft model was found, for a person to read.
    """

    name: str
    options: dict[str, str]
    draft_model: str | None = None
    found: str = ""

    def make(self) -> Drafter:
        """The drafter, not yet bound."""
        return registry.make_drafter(self.name, self.options)


@dataclass(frozen=True)
class Plan:
    """What will be run; the baseline is the first arm.

    Attributes:
        suites: only the chosen prompts, with the budget that applies.
        device: "cpu" or "cuda"; ``dtype`` is a name in `DTYPES`.
    """

    target: str
    arms: tuple[Arm, ...]
    suites: tuple[Suite, ...]
    sampling: Sampling
    device: str
    dtype: str
    seed: int
    threads: int | None
    thinking: str
    revision: str | None = None

    @property
    def name(self) -> str:
        """The same for the same plan, so that the same command finds its run again."""
        facts = asdict(replace(self, arms=(), suites=())) | {
            "arms": [(arm.name, arm.options) for arm in self.arms],
            "suites": [
                (s.name, s.sha256, s.max_new_tokens, [prompt.id for prompt in s.prompts])
                for s in self.suites
            ],
        }
        if self.revision is None:
            del facts["revision"]  # Runs made before there was one keep their names.
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        slug = re.sub(r"[^A-Za-z0-9.]+", "-", Path(self.target).name).strip("-.")
        return f"{slug}-{digest[:8]}"

    @property
    def answers(self) -> int:
        """Samples the finished run holds: every turn of every prompt by every arm."""
        return sum(turns(suite) for suite in self.suites) * len(self.arms)


def turns(suite: Suite) -> int:
    """Turns of all prompts of ``suite``."""
    return sum(len(prompt.turns) for prompt in suite.prompts)


def make_plan(settings: Settings) -> Plan:
    """Check everything that can be checked without weights.

    Raises:
        UserError: unknown drafters, options or suites, a missing or ambiguous draft model, a
            device that is not there, a word that is not among the allowed ones.
    """
    if settings.thinking not in ("on", "off"):
        raise UserError(f"--thinking is on or off, not {settings.thinking!r}.")
    target = TINY_TARGET if settings.target is None else settings.target
    embedded = target == TINY_TARGET
    device = choose_device("cpu" if embedded else "auto", settings.device)
    plan = Plan(
        target=target,
        arms=plan_arms(
            (Autoregressive.name, *settings.drafters),
            target,
            settings.draft_model,
            settings.overrides,
        ),
        suites=tuple(_chosen(name, settings) for name in dict.fromkeys(settings.suites)),
        sampling=settings.sampling,
        device=device,
        dtype=choose_dtype(settings.dtype, device),
        seed=settings.seed,
        # The embedded models gain nothing from a second thread, and with one that waits for a busy
        # core every layer does.
        threads=settings.threads or (1 if embedded else None),
        thinking=settings.thinking,
        revision=settings.revision,
    )
    for name in (plan.target, *(arm.draft_model for arm in plan.arms if arm.draft_model)):
        _refuse_missing_folder(name)
    if plan.revision is not None and Path(resolve(plan.target)).is_dir():
        raise UserError(
            f"--revision {plan.revision} is of a hub id, and the target {plan.target} is "
            f"{'embedded' if resolve(plan.target) != plan.target else 'a folder'}: leave it out."
        )
    return plan


def plan_arms(
    drafters: tuple[str, ...], target: str, draft_model: str | None, overrides: tuple[str, ...]
) -> tuple[Arm, ...]:
    """Options and draft model of every drafter, each configuration once.

    Settings in brackets (`options.expand`) go before ``overrides``. A drafter whose
    options have a field `model` gets it from these, else from ``draft_model``, else from the
    pairs it publishes. Where several lack the first, ``draft_model`` goes to the one among them
    without a pair.

    Raises:
        UserError: an override of a drafter that is not run, a draft model that nobody or more
            than one could take, or none at all for a drafter that needs one.
    """
    wanted = [variant for text in drafters for variant in expand(text)]
    kinds = {name: registry.drafter_class(name).Options for name, _ in wanted}
    chosen = _split(overrides, tuple(kinds))
    wanted = [(name, chosen[name] | options) for name, options in wanted]
    lacking = dict.fromkeys(
        name for name, options in wanted if _takes_model(kinds[name]) and "model" not in options
    )
    receiver = _receiver(list(lacking), target) if draft_model else None
    arms: dict[tuple[str, str], Arm] = {}
    for name, options in wanted:
        found = "--set" if "model" in chosen[name] else "in brackets"
        if _takes_model(kinds[name]) and "model" not in options:
            given = draft_model if name == receiver else None
            options["model"], found = _draft_model(name, target, given)
        key = name, repr(parse_options(name, kinds[name], options))
        model = options["model"] if _takes_model(kinds[name]) else None
        arms.setdefault(key, Arm(name, options, model, found if model else ""))
    return tuple(arms.values())


def choose_device(default: str, wanted: str) -> str:
    """ "cpu" or "cuda" from a device as asked for; "auto" takes ``default``, then what is there.

    Raises:
        UserError: another word, or CUDA that is not there.
    """
    device = default if wanted == "auto" else wanted
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device not in ("cpu", "cuda"):
        raise UserError(f"--device is auto, cpu or cuda, not {wanted!r}.")
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no CUDA device here; take --device cpu.")
    return device


def choose_dtype(wanted: str, device: str) -> str:
    """A name in `DTYPES`; "auto" is float32 on a CPU and bfloat16 on CUDA.

    Raises:
        UserError: another word.
    """
    if wanted == "auto":
        return "float32" if device == "cpu" else "bfloat16"
    if wanted not in DTYPES:
        raise UserError(f"--dtype is auto, {', '.join(DTYPES)}, not {wanted!r}.")
    return wanted


def _chosen(name: str, settings: Settings) -> Suite:
    suite = subset(load_suite(name, settings.data_dir), settings.limit)
    return replace(suite, max_new_tokens=settings.max_new_tokens or suite.max_new_tokens)


def _split(overrides: tuple[str, ...], names: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """``drafter.key=value`` texts by drafter."""
    chosen: dict[str, dict[str, str]] = {name: {} for name in names}
    for text in overrides:
        left, equals, value = text.partition("=")
        name, dot, key = left.rpartition(".")
        if not equals or not dot:
            raise UserError(f"--set {text} must look like drafter.key=value.")
        if name not in chosen:
            raise UserError(
                f"--set {text}: the drafter {name!r} is not part of this run, which has "
                f"{', '.join(names)}."
            )
        chosen[name][key] = value
    return chosen


def _refuse_missing_folder(name: str) -> None:
    """A name that can only be a path; a hub id holds one slash at most."""
    is_path = name.startswith((".", "/", "~")) or name.strip("/").count("/") > 1
    if is_path and not Path(name).is_dir():
        raise UserError(f"There is no folder {name}: give one with a model in it, or a hub id.")


def _takes_model(options: type) -> bool:
    return any(field.name == "model" for field in fields(options))


def _receiver(lacking: list[str], target: str) -> str:
    """The one drafter that `--draft-model` is for: that without a pair, where several lack it."""
    unpaired = [name for name in lacking if find_pair(name, target) is None]
    candidates = unpaired or lacking
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        raise UserError("--draft-model was given, but no drafter of this run is left to take it.")
    raise UserError(
        f"--draft-model could be for {' or for '.join(candidates)}: say it with",
        " and ".join(f"--set {name}.model=ID" for name in candidates) + ".",
    )


def _draft_model(name: str, target: str, given: str | None) -> tuple[str, str]:
    """The draft model and where it was found."""
    if given:
        return given, "--draft-model"
    pair = find_pair(name, target)
    if pair is None:
        raise UserError(
            f"The drafter {name!r} needs a draft model, and none is known for the target "
            f"{target!r}:",
            f"give --draft-model ID or --set {name}.model=ID (`specbench list pairs` shows the "
            "known ones).",
        )
    return pair.draft, f"pairs table{f', {pair.note}' if pair.note else ''}"
