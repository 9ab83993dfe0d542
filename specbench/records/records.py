"""What is stored of a run: a manifest and one line a sample. Derived numbers are not stored.

Schema history of the manifest (samples are still at 1):
    1: first version.
    2: a cell has a role.

A run is a folder with two files, and a third where answers were traced (`records.traces`).
``manifest.json`` is one `Manifest`. ``samples.jsonl`` has one `Sample` a line, appended and flushed
as soon as it is known, so that a killed run loses at most the sample in flight.
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
"""The rule of a cell whose drafter could not be bound to the target."""


@dataclass(frozen=True)
class ModelId:
    """A model as it was loaded: the name given, its hub revision, and a hash of its weights."""

    name: str
    revision: str | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class Cell:
    """Target x drafter configuration x suite x sampling: all that could change a number.

    Attributes:
        drafter: its name; ``options`` are its settings, defaults included.
        role: "baseline", "control" or "method"; see `specbench.core.drafter.Role`.
        width: the most tokens one proposal holds.
        rule: acceptance rule ("walk", "reject", or "none" for the baseline), or `UNBOUND`.
        lossless: whether the rule keeps the target's distribution.
        template: hash of the chat template, None where prompts went in raw.
        thinking: "on", "off", or "n/a" where the template knows no such switch.
        sample_ids: the chosen samples, in order.
        details: what the drafter settled when it met the target, beside its options.
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
        """Ten hex digits over every setting; the role follows from the drafter and is left out."""
        settings = asdict(self)
        del settings["role"]
        text = json.dumps(settings, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    @property
    def bound(self) -> bool:
        """Whether its drafter could be bound; its samples have all failed where not."""
        return self.rule != UNBOUND

    @property
    def is_self_test(self) -> bool:
        """Whether it measures the baseline once more: a control that drafts nothing."""
        return self.role == "control" and self.width == 0

    @property
    def asked(self) -> Cell:
        """What was asked for, without what is known only once the drafter is bound."""
        draft = ModelId(self.draft_model.name) if self.draft_model else None
        return replace(self, draft_model=draft, width=0, rule=UNBOUND, lossless=True, details={})


@dataclass(frozen=True)
class Manifest:
    """One run: its command, its cells by id, and the machine it ran on."""

    run: str
    command: str
    created: str
    cells: dict[str, Cell]
    environment: dict[str, Any]
    schema: int = MANIFEST_SCHEMA


@dataclass(frozen=True)
class Verdict:
    """A speculative output against the autoregressive one of the same prompt.

    Attributes:
        kind: "identical", "near-tie", "broken", "lossy" or "untested".
        position: output index of the first difference.
        gap: the target's logit of its own choice there minus that of the emitted token.
        reason: why it is "untested".
    """

    kind: str
    position: int | None = None
    gap: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Sample:
    """One answer: cell x sample x turn.

    Attributes:
        rounds: ``(drafted, accepted, emitted)`` of each round.
        output: output token ids; one more than the emitted ones, since the first comes from
            the prefill.
        finish: "stop" or "length"; None after an error.
        error: kind and text of what went wrong, with status "error".
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
        """What makes it unique within a run."""
        return self.cell, self.sample, self.turn

    @property
    def emitted(self) -> int:
        """Tokens emitted in rounds; the prefill's token is not among them."""
        return sum(emitted for _, _, emitted in self.rounds)


def is_broken(sample: Sample) -> bool:
    """Whether its text is not the target's own."""
    return sample.verdict is not None and sample.verdict.kind == "broken"


def manifest_to_json(manifest: Manifest) -> str:
    """The manifest file's text."""
    return json.dumps(asdict(manifest), indent=2) + "\n"


def load_manifest(folder: Path) -> Manifest:
    """Read ``folder``'s manifest.

    Raises:
        UserError: no run there, or one this version cannot read.
    """
    path = folder / MANIFEST
    try:
        raw = json.loads(path.read_text())
        jsonl.refuse_other_schema(raw, SCHEMA, MANIFEST_SCHEMA)
        if raw["schema"] == SCHEMA:
            raw["cells"] = {key: _with_role(cell) for key, cell in raw["cells"].items()}
        raw["cells"] = {key: _cell(value) for key, value in raw["cells"].items()}
        return jsonl.build(Manifest, raw)
    except FileNotFoundError:
        raise UserError(f"{folder} holds no run: there is no {MANIFEST} in it.") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from error


def load_samples(folder: Path, name: str = SAMPLES) -> Iterator[Sample]:
    """Read ``folder``'s samples; see `jsonl.read`.

    Raises:
        UserError: a line in the middle cannot be read, or its counts disagree; it is named.
    """
    return jsonl.read(folder / name, SCHEMA, _sample)


def _sample(raw: dict[str, Any]) -> Sample:
    verdict = raw.pop("verdict", None)
    raw["rounds"] = tuple(tuple(r) for r in raw.get("rounds", ()))
    raw["output"] = tuple(raw.get("output", ()))
    verdict = jsonl.build(Verdict, verdict) if verdict else None
    sample = jsonl.build(Sample, {**raw, "verdict": verdict})
    if sample.status == "ok" and sample.emitted + 1 != len(sample.output):
        raise ValueError("emitted tokens of all rounds + 1 must equal the output tokens")
    return sample


def _with_role(cell: dict[str, Any]) -> dict[str, Any]:
    """A cell of schema 1, with the role that follows from its drafter."""
    details = dict(cell.get("details", {}))
    is_control = details.pop("rehearsed", False) or cell["drafter"] == "self-test"
    role = "control" if is_control else "method"
    if cell["drafter"] == "autoregressive":
        role = "baseline"
    return {**cell, "role": role, "details": details}


def _cell(raw: dict[str, Any]) -> Cell:
    draft = raw["draft_model"]
    return jsonl.build(
        Cell,
        {
            **raw,
            "target": jsonl.build(ModelId, raw["target"]),
            "draft_model": jsonl.build(ModelId, draft) if draft else None,
            "sample_ids": tuple(raw["sample_ids"]),
        },
    )
