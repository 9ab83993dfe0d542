"""From what a person asks for to what will be run, before any weights are loaded."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from specbench import hub
from specbench.core.drafter import Autoregressive, Drafter
from specbench.core.sampling import Sampling
from specbench.drafting.options import ModelOptions
from specbench.errors import UserError
from specbench.inputs import registry
from specbench.inputs.devices import AUTO, choose_device, choose_dtype
from specbench.inputs.options import as_typed, describe, expand, split_outside_brackets
from specbench.inputs.pairs import find_pair
from specbench.inputs.suite import Suite, load_suite, subset

TINY_TARGET = "tiny-target"
SET, BRACKETS = "--set", "in brackets"


@dataclass(frozen=True)
class Settings:
    """A run as it was asked for; None and "auto" stand for the default.

    Attributes:
        drafters: texts of names with commas between them, each with settings of its own where
            wanted: ``dflash[block_size=4|8],prompt-lookup``.
        suites: texts of names or paths, with commas between them.
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
    device: str = AUTO
    dtype: str = AUTO
    seed: int = 0
    threads: int | None = None
    data_dir: Path | None = None
    thinking: str = "off"


@dataclass(frozen=True)
class PlannedArm:
    """One drafter with its settings.

    Attributes:
        name: of a drafter or a preset.
        options: the drafter's own options object.
        found: where the draft model was found, for a person to read.
    """

    name: str
    options: Any
    found: str = ""

    @property
    def draft_model(self) -> str | None:
        """What it loads, as given; None where it loads nothing."""
        return self.options.model if isinstance(self.options, ModelOptions) else None

    @property
    def settings(self) -> dict[str, str]:
        """The options that differ from the defaults of the name, as a person types them."""
        preset = registry.find(self.name).settings
        defaults = {option.name: option.default for option in describe(type(self.options))}
        typed = {key: as_typed(value) for key, value in asdict(self.options).items()}
        return {k: text for k, text in typed.items() if text != preset.get(k, defaults[k])}

    @property
    def label(self) -> str:
        """Its name and settings, but for a draft model that nobody has set in them."""
        hidden = () if self.found in (SET, BRACKETS) else ("model",)
        shown = [f"{key}={text}" for key, text in self.settings.items() if key not in hidden]
        return f"{self.name}[{','.join(shown)}]" if shown else self.name

    def make(self) -> Drafter:
        """The drafter, not yet bound."""
        return registry.make_drafter(self.name, self.options)


@dataclass(frozen=True)
class Plan:
    """What will be run; the baseline is the first arm.

    Attributes:
        suites: only the chosen prompts, with the budget that applies.
        device, dtype: words of `devices.DEVICES` and `devices.DTYPES`.
    """

    target: str
    arms: tuple[PlannedArm, ...]
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
            "arms": [(arm.name, arm.settings) for arm in self.arms],
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

    def cell_settings(self, arm: PlannedArm, suite: Suite) -> dict[str, Any]:
        """The settings of an arm's cell on a suite that are known before anything is loaded."""
        return {
            "drafter": arm.name,
            "options": asdict(arm.options),
            "suite": suite.name,
            "suite_hash": suite.sha256,
            "sample_ids": tuple(prompt.id for prompt in suite.prompts),
            **asdict(self.sampling),
            "max_new_tokens": suite.max_new_tokens,
            "seed": self.seed,
            "device": self.device,
            "dtype": self.dtype,
        }

    @property
    def answers(self) -> int:
        """Samples the finished run holds: every turn of every prompt by every arm."""
        return sum(suite.turns for suite in self.suites) * len(self.arms)


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
    device = choose_device(settings.device, "cpu" if embedded else AUTO)
    plan = Plan(
        target=target,
        arms=plan_arms(
            (Autoregressive.name, *_names("--drafter", settings.drafters)),
            target,
            settings.draft_model,
            settings.overrides,
        ),
        suites=tuple(_chosen(name, settings) for name in _names("--suite", settings.suites)),
        sampling=settings.sampling,
        device=device,
        dtype=choose_dtype(settings.dtype, device),
        seed=settings.seed,
        # The embedded models gain nothing from a second thread: one that waits for a busy core
        # delays every layer.
        threads=settings.threads or (1 if embedded else None),
        thinking=settings.thinking,
        revision=settings.revision,
    )
    for name in (plan.target, *(arm.draft_model for arm in plan.arms if arm.draft_model)):
        _refuse_missing_folder(name)
    if plan.revision is not None and hub.is_local(plan.target):
        raise UserError(
            f"--revision {plan.revision} is of a hub id, and the target {plan.target} is "
            f"{'a folder' if Path(plan.target).is_dir() else 'embedded'}: leave it out."
        )
    return plan


def plan_arms(
    drafters: Iterable[str], target: str, draft_model: str | None, overrides: tuple[str, ...]
) -> tuple[PlannedArm, ...]:
    """Options and draft model of every drafter, each configuration once.

    Settings in brackets (`options.expand`) go before ``overrides``, and these before a preset's.
    A drafter whose options are `ModelOptions` gets its draft model from these, else from
    ``draft_model``, else from the pairs it publishes. Where several lack the first,
    ``draft_model`` goes to the one among them without a pair.

    Raises:
        UserError: an override of a drafter that is not run, a draft model that nobody or more
            than one could take, or none at all for a drafter that needs one.
    """
    wanted = [variant for text in drafters for variant in expand(text)]
    chosen = _split(overrides, dict.fromkeys(name for name, _ in wanted))
    wanted = [(name, chosen[name] | settings) for name, settings in wanted]
    lacking = dict.fromkeys(name for name, settings in wanted if _lacks_model(name, settings))
    receiver = _receiver(list(lacking), target) if draft_model else None
    arms: list[PlannedArm] = []
    for name, settings in wanted:
        found = SET if "model" in chosen[name] else BRACKETS if "model" in settings else "preset"
        if _lacks_model(name, settings):
            given = draft_model if name == receiver else None
            settings["model"], found = _draft_model(name, target, given)
        arm = PlannedArm(name, registry.make_options(name, settings), found)
        if not any((name, arm.options) == (other.name, other.options) for other in arms):
            arms.append(arm)
    return tuple(arms)


def _names(option: str, texts: Iterable[str]) -> list[str]:
    """The different names that an option lists, with commas or several times."""
    found = dict.fromkeys(name for text in texts for name in split_outside_brackets(text))
    if not found:
        raise UserError(f"{option} names nothing: `specbench list` shows what there is.")
    return list(found)


def _chosen(name: str, settings: Settings) -> Suite:
    suite = subset(load_suite(name, settings.data_dir), settings.limit)
    return replace(suite, max_new_tokens=settings.max_new_tokens or suite.max_new_tokens)


def _split(overrides: tuple[str, ...], names: Iterable[str]) -> dict[str, dict[str, str]]:
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
                f"{', '.join(chosen)}."
            )
        chosen[name][key] = value
    return chosen


def _refuse_missing_folder(name: str) -> None:
    """A name that can only be a path; a hub id holds one slash at most."""
    is_path = name.startswith((".", "/", "~")) or name.strip("/").count("/") > 1
    if is_path and not Path(name).is_dir():
        raise UserError(f"There is no folder {name}: give one with a model in it, or a hub id.")


def _lacks_model(name: str, settings: dict[str, str]) -> bool:
    """Whether a drafter loads a draft model, and neither a person nor its preset names it."""
    if not issubclass(registry.options_class(name), ModelOptions):
        return False
    return "model" not in registry.find(name).settings | settings


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
