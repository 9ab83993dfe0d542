"""What is stored of a run: a manifest and one line per sample. Derived numbers are not stored.

Schema history of the manifest (samples still have schema 1):
    1: first version.
    2: a cell has a role.

A run is a folder with two files, and a third if answers were traced (`records.traces`).
``manifest.json`` is one `Manifest`. ``samples.jsonl`` has one `Sample` per line, appended and
flushed as soon as it is known, so a killed run loses at most the sample that was being measured.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from specbench.errors import UserError
from specbench.records import jsonl

SCHEMA = 1
MANIFEST_SCHEMA = 2
MANIFEST = "manifest.json"
SAMPLES = "samples.jsonl"
UNBOUND = "unbound"
"""The recorded rule if the drafter could not be bound to the target."""


@dataclass(frozen=True)
class ModelId:
    """The model that was loaded: the name given, its hub revision, and a hash of its files."""

    name: str
    revision: str | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class Cell:
    """Target x drafter configuration x suite x sampling: every setting that can change a number.

    Attributes:
        drafter: name of the drafter.
        role: "baseline", "control" or "method"; see `specbench.core.drafter.Role`.
        options: settings of the drafter, defaults included.
        width: the most tokens one proposal holds.
        rule: name of the acceptance rule, "none" for the baseline, or `UNBOUND`.
        lossless: whether the rule keeps the target's distribution.
        sample_ids: ids of the chosen prompts, in order.
        template: hash of the chat template, or None if prompts are raw text.
        thinking: "on", "off", or "n/a" if the template has no such switch.
        details: what binding determined, beside the options.
    """

    target: ModelId
    drafter: str
    role: str
    options: dict[str, Any]
    draft_model: ModelId | None
    width: int
    rule: str
    lossless: bool
    suite: str
    suite_hash: str
    sample_ids: tuple[str, ...]
    temperature: float
    top_k: int
    top_p: float
    max_new_tokens: int
    seed: int
    device: str
    dtype: str
    attention: str
    template: str | None
    thinking: str
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Ten hex digits of a hash of all settings but the role, which follows from the drafter."""
        settings = asdict(self)
        del settings["role"]
        text = json.dumps(settings, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    @property
    def bound(self) -> bool:
        """Whether the drafter could be bound; if not, all its samples have failed."""
        return self.rule != UNBOUND

    @property
    def is_self_test(self) -> bool:
        """Whether this is the baseline measured a second time: a control that drafts nothing."""
        return self.role == "control" and self.width == 0

    @property
    def asked(self) -> Cell:
        """The requested cell, without what is known only after the drafter is bound."""
        draft = ModelId(self.draft_model.name) if self.draft_model else None
        return replace(self, draft_model=draft, width=0, rule=UNBOUND, lossless=True, details={})


@dataclass(frozen=True)
class Manifest:
    """One run: its command, its cells by id, and the machine that it ran on."""

    run: str
    command: str
    created: str
    cells: dict[str, Cell]
    environment: dict[str, Any]
    schema: int = MANIFEST_SCHEMA


@dataclass(frozen=True)
class Verdict:
    """The result of comparing a speculative output with the baseline's output for its prompt.

    Attributes:
        kind: "identical", "near-tie", "broken", "lossy" or "untested".
        position: output index of the first difference.
        gap: logit difference by which the farther of the two tokens misses being the choice there.
        reason: why the output is "untested".
    """

    kind: str
    position: int | None = None
    gap: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Sample:
    """The record of one answer: cell x prompt x turn.

    Attributes:
        cell: id of the cell.
        sample: id of the prompt.
        turn: number of the turn, from 1.
        status: "ok" or "error".
        output: output token ids; one more than all rounds emitted, because the first comes from
            the prefill.
        finish: "stop" or "length"; None after an error.
        rounds: ``(drafted, accepted, emitted)`` of each round.
        error: kind and text of the error, with status "error".
    """

    cell: str
    sample: str
    turn: int
    status: str
    prompt_tokens: int = 0
    output: tuple[int, ...] = ()
    finish: str | None = None
    rounds: tuple[tuple[int, int, int], ...] = ()
    prefill_seconds: float | None = None
    decode_seconds: float | None = None
    peak_memory_bytes: int | None = None
    verdict: Verdict | None = None
    error: str | None = None
    schema: int = field(default=SCHEMA)

    @property
    def key(self) -> tuple[str, str, int]:
        """The (cell, sample, turn) that identifies the sample within a run."""
        return self.cell, self.sample, self.turn

    @property
    def emitted(self) -> int:
        """Number of tokens that all rounds emitted, without the prefill's token."""
        return sum(emitted for _, _, emitted in self.rounds)


def is_broken(sample: Sample) -> bool:
    """Return whether the sample's text is not the target's own."""
    return sample.verdict is not None and sample.verdict.kind == "broken"


def manifest_to_json(manifest: Manifest) -> str:
    """Convert a manifest to the text of its file."""
    return json.dumps(asdict(manifest), indent=2) + "\n"


def load_manifest(folder: Path) -> Manifest:
    """Read the manifest of the run in ``folder``.

    Raises:
        UserError: there is no run, or this version cannot read it.
    """
    path = folder / MANIFEST
    try:
        raw = json.loads(path.read_text())
        jsonl.refuse_other_schema(raw, SCHEMA, MANIFEST_SCHEMA)
        if raw["schema"] == SCHEMA:
            raw["cells"] = {key: _with_role(cell) for key, cell in raw["cells"].items()}
        raw["cells"] = {key: _cell(value) for key, value in raw["cells"].items()}
        return Manifest(**raw)
    except FileNotFoundError:
        raise UserError(f"{folder} holds no run: there is no {MANIFEST} in it.") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from error


def load_samples(folder: Path, name: str = SAMPLES) -> Iterator[Sample]:
    """Read the samples of the run in ``folder``; see `jsonl.read`.

    Raises:
        UserError: a line cannot be read, or its counts disagree; the message gives its number.
    """
    return jsonl.read(folder / name, SCHEMA, _sample)


def _sample(raw: dict[str, Any]) -> Sample:
    verdict = raw.pop("verdict", None)
    raw["rounds"] = tuple(tuple(r) for r in raw.get("rounds", ()))
    raw["output"] = tuple(raw.get("output", ()))
    sample = Sample(**raw, verdict=Verdict(**verdict) if verdict else None)
    if sample.status == "ok" and sample.emitted + 1 != len(sample.output):
        raise ValueError("the output must have one token more than all rounds emitted")
    return sample


def _with_role(cell: dict[str, Any]) -> dict[str, Any]:
    """Add the role to a cell of schema 1; the role follows from the drafter."""
    details = dict(cell.get("details", {}))
    is_control = details.pop("rehearsed", False) or cell["drafter"] == "self-test"
    role = "control" if is_control else "method"
    if cell["drafter"] == "autoregressive":
        role = "baseline"
    return {**cell, "role": role, "details": details}


def _cell(raw: dict[str, Any]) -> Cell:
    draft = raw["draft_model"]
    models = {
        "target": ModelId(**raw["target"]),
        "draft_model": ModelId(**draft) if draft else None,
    }
    return Cell(**{**raw, **models, "sample_ids": tuple(raw["sample_ids"])})
