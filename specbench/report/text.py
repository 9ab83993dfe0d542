"""What the tables say, the same for a terminal and for markdown."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specbench.metrics import CONFIDENCE, RESAMPLES, Estimate, Interval
from specbench.records import Cell, ModelId
from specbench.report.labels import distinguish
from specbench.report.summary import Row, Summary, Table

ABSENT = "-"
METHOD = (
    f"Intervals are {CONFIDENCE:.0%} bootstrap intervals over prompts ({RESAMPLES:,} resamples, "
    "all turns of a prompt and for speedup both arms together); n counts prompts, and with fewer "
    "than about 16 the intervals come out too narrow. Speedup is autoregressive seconds per token "
    "over the drafter's, decode only, on the prompts both have. AAL is emitted tokens per round: "
    "pooled (the headline) over all rounds, macro as the mean over answers."
)


@dataclass(frozen=True)
class Grid:
    """A table of texts; a line break in a cell is a newline."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def headings(summary: Summary) -> list[str]:
    """A heading a table: target and sampling, then what tells it from those with the same."""
    plain = [_plain_heading(table) for table in summary.tables]
    notes: dict[int, str] = {}
    for heading in dict.fromkeys(plain):
        same = [i for i, other in enumerate(plain) if other == heading]
        texts = distinguish([_differences(summary.tables[i]) for i in same])
        notes.update(zip(same, texts, strict=True))
    return [f"{h} ({notes[i]})" if notes[i] else h for i, h in enumerate(plain)]


def headline(table: Table) -> Grid:
    """Drafters by suites: speedup, AAL and n."""
    rows = [
        (label, *(_headline_cell(line.get(suite)) for suite in table.suites))
        for label, line in table.lines
    ]
    return Grid("", ("drafter", *table.suites), tuple(rows))


def details(table: Table) -> Grid:
    """A line a cell: all that qualifies the headline."""
    header = (
        "drafter", "suite", "n", "AAL pooled", "AAL macro", "tokens/s", "end-to-end speedup",
        "repeated 4-grams %", "cut at budget %", "failed answers", "losslessness",
    )  # fmt: skip
    rows = [
        (
            label,
            row.cell.suite,
            _n(row),
            number(row.aal_pooled),
            number(row.aal_macro),
            number(row.tokens_per_second, digits=1),
            _times(row.speedup_end_to_end, row.is_baseline),
            number(row.repeated_4grams, percent=True),
            number(row.cut_at_budget, percent=True),
            f"{row.failed} of {row.failed + row.answers}",
            _losslessness(row),
        )
        for label, row in table.rows
    ]
    return Grid("Details", header, tuple(rows))


def acceptance(table: Table) -> Grid | None:
    """Acceptance at depth 1, 2, ...; None where nothing was accepted."""
    rows = [
        (label, row.cell.suite, _n(row), _at_depths(row.acceptance), _at_depths(row.conditional))
        for label, row in table.rows
        if row.acceptance
    ]
    header = (
        "drafter", "suite", "n", "% of rounds that reached depth 1, 2, ...",
        "% of those that reached the depth before",
    )  # fmt: skip
    return Grid("Acceptance by depth", header, tuple(rows)) if rows else None


def caption(table: Table) -> list[str]:
    """What was run on what, a sentence a line; `METHOD` says how, once for all tables."""
    cell = table.any_cell
    settings = (
        f"{cell.dtype} on {cell.device}, attention {cell.attention}, {_template(cell)}, thinking "
        f"{cell.thinking}, {_sampling(cell)}, seed {cell.seed}"
    )
    lines = [f"Target: {_model(cell.target)}; {settings}."]
    lines += [f"Suite {suite}: {_suite(_first(table, suite))}." for suite in table.suites]
    for label, line in table.lines:
        row = next(iter(line.values()))
        if not row.is_baseline:
            lines.append(f"Drafter {label}: {_drafter(row.cell)}.")
    lines += [f"Run {m.run} of {m.created}: `{m.command}`." for m in table.manifests]
    return [*lines, f"Machine: {_facts(table.manifests[0].environment)}."]


def number(estimate: Estimate, digits: int = 2, *, percent: bool = False) -> str:
    """A figure with its interval, ``3.10 [2.90, 3.30]``."""
    if estimate.value is None:
        return ABSENT
    scale, digits = (100, 0) if percent else (1, digits)
    return f"{estimate.value * scale:.{digits}f} {_interval(estimate.interval, digits, scale)}"


def _interval(interval: Interval | None, digits: int, scale: int = 1) -> str:
    if interval is None:
        return "[no interval]"
    return "[" + ", ".join(f"{end * scale:.{digits}f}" for end in interval) + "]"


def _times(estimate: Estimate, is_baseline: bool) -> str:
    if estimate.value is None:
        return ABSENT
    if is_baseline:
        return "1 (baseline)"
    return f"{estimate.value:.2f}x {_interval(estimate.interval, 2)}"


def _headline_cell(row: Row | None) -> str:
    if row is None:
        return ABSENT
    if row.answers == 0:
        return f"no answer ({row.failed} failed)"
    second = (
        f"{number(row.tokens_per_second, digits=1)} tokens/s"
        if row.is_baseline
        else f"AAL {number(row.aal_pooled)}"
    )
    first = _times(row.speedup, row.is_baseline)
    if row.speedup.n != row.aal_pooled.n and row.speedup.value is not None:
        first += f" (n={row.speedup.n})"
    marks = [f"{row.failed} failed"] if row.failed else []
    marks += [row.lossless.upper()] if row.lossless in ("broken", "lossy") else []
    return f"{first}\n{second} (n={_n(row)})" + "".join(f"\n{mark}" for mark in marks)


def _n(row: Row) -> str:
    n = row.aal_pooled.n
    return str(n) if n == row.planned else f"{n} of {row.planned}"


def _losslessness(row: Row) -> str:
    if row.is_baseline:
        return "reference"
    counts = ", ".join(f"{kind} {count}" for kind, count in row.verdicts.items())
    return f"{row.lossless} ({counts or 'no answer'})"


def _at_depths(estimates: Sequence[Estimate]) -> str:
    return ", ".join(number(estimate, percent=True) for estimate in estimates)


def _plain_heading(table: Table) -> str:
    cell = table.any_cell
    return f"{cell.target.name}, {_sampling(cell)}"


def _sampling(cell: Cell) -> str:
    if cell.temperature == 0:
        return "greedy"
    filters = f", top-k {cell.top_k}" if cell.top_k else ""
    filters += f", top-p {cell.top_p:g}" if cell.top_p < 1 else ""
    return f"temperature {cell.temperature:g}{filters}"


def _differences(table: Table) -> dict[str, str]:
    """Everything that two tables under one heading could differ in, as short texts."""
    cell = table.any_cell
    return {
        "target": _model(cell.target),
        "dtype": cell.dtype,
        "device": cell.device,
        "attention": cell.attention,
        "template": _short(cell.template),
        "thinking": cell.thinking,
        "seed": str(cell.seed),
        **{suite: _suite(_first(table, suite)) for suite in table.suites},
        **{key: _fact(value) for key, value in table.manifests[0].environment.items()},
    }


def _first(table: Table, suite: str) -> Row:
    return next(line[suite] for _, line in table.lines if suite in line)


def _model(model: ModelId) -> str:
    """Name, and revision or weights as far as known."""
    known = [f"revision {model.revision[:10]}"] if model.revision else []
    known += [f"weights {model.sha256[:10]}"] if model.sha256 else []
    return f"{model.name} ({', '.join(known)})" if known else model.name


def _template(cell: Cell) -> str:
    if cell.template is None:
        return "raw prompt: the target has no chat template"
    return f"chat template {_short(cell.template)}"


def _suite(row: Row) -> str:
    cell = row.cell
    chosen = hashlib.sha256("\n".join(cell.sample_ids).encode()).hexdigest()[:6]
    return (
        f"hash {_short(cell.suite_hash)}, {row.planned} prompts (choice {chosen}), at most "
        f"{cell.max_new_tokens} new tokens"
    )


def _drafter(cell: Cell) -> str:
    facts = [f"draft model {_model(cell.draft_model)}"] if cell.draft_model else []
    named = cell.draft_model.name if cell.draft_model else None
    facts += [f"{key}={value}" for key, value in sorted(cell.options.items()) if value != named]
    facts += [f"{key} {_fact(value)}" for key, value in cell.details.items() if value is not None]
    return ", ".join([*facts, f"width {cell.width}", f"rule {cell.rule}"])


def _facts(environment: dict[str, Any]) -> str:
    facts = [f"{key} {_fact(value)}" for key, value in environment.items() if value is not None]
    return ", ".join(facts) or "not recorded"


def _fact(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key} {item}" for key, item in value.items() if item is not None)
    return _short(str(value))


def _short(text: str | None) -> str:
    """A hash by its first ten digits, anything else as it is."""
    text = str(text)
    return text[:10] if re.fullmatch(r"[0-9a-f]{40,}", text) else text
