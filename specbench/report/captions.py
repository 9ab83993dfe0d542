"""What stands above and below a table: what was run on what, how, and how far to trust it."""

from __future__ import annotations

import re
from typing import Any

from specbench.inputs.options import as_typed
from specbench.records.records import Cell, ModelId
from specbench.report.comparable import chosen
from specbench.report.labels import distinguish
from specbench.report.runs import machine
from specbench.report.summary import Row, Summary, Table
from specbench.stats.bootstrap import CONFIDENCE, FEW_PROMPTS, RESAMPLES, prompts_for
from specbench.stats.metrics import LOOP_SHARE

PRECISION = 0.05
METHOD = (
    f"Intervals are {CONFIDENCE:.0%} bootstrap intervals over prompts ({RESAMPLES:,} resamples, "
    "expanded percentiles; all turns of a prompt and for speedup both arms together); n counts "
    f"prompts, and with fewer than about {FEW_PROMPTS} the intervals come out too narrow. Speedup "
    "is autoregressive seconds per token over the drafter's, decode only, on the prompts both "
    "have. AAL is emitted tokens per round: pooled (the headline) over all rounds, macro as the "
    "mean over answers. The fastest is picked by its speeds, so it is told apart where an interval "
    "that leaves 5 % to all pairs of drafters on the suite together excludes 1. An answer loops "
    f"when more than {LOOP_SHARE:.0%} of its 4-grams repeat an earlier one; LOOPS marks a cell "
    "with most of its emitted tokens in such answers, whose AAL and speedup proper text would not "
    "give. BROKEN: output that is not the target's, its speedup "
    "withheld; LOSSY: a rule that does not keep the target's distribution."
)


def headings(summary: Summary) -> list[str]:
    """A heading a table: target and sampling, then what tells it from those with the same."""
    plain = [_plain_heading(table) for table in summary.tables]
    notes: dict[int, str] = {}
    for heading in dict.fromkeys(plain):
        same = [i for i, other in enumerate(plain) if other == heading]
        texts = distinguish([_differences(summary.tables[i]) for i in same])
        notes.update(zip(same, texts, strict=True))
    return [f"{h} ({notes[i]})" if notes[i] else h for i, h in enumerate(plain)]


def caption(table: Table) -> list[str]:
    """What was run on what, a sentence a line; `METHOD` says how, once for all tables."""
    rows = [row for _, row in table.rows]
    settings = dict.fromkeys(_settings(row.cell) for row in rows)
    lines = [f"Target: {_model(table.any_cell.target)}; {'; or '.join(settings)}."]
    if table.unlike:
        lines.append(
            "NOT ALIKE, side by side because that was asked for: " + "; ".join(table.unlike) + "."
        )
    for suite in table.suites:
        texts = dict.fromkeys(_suite(row) for row in rows if row.cell.suite == suite)
        lines.append(f"Suite {suite}: {'; or '.join(texts)}.")
    for label, line in table.lines:
        row = next(iter(line.values()))
        if not row.is_baseline:
            lines.append(f"Drafter {label}: {_drafter(row.cell)}.")
    lines += remarks(table)
    lines += [f"Run {k} of {m.created}: `{m.command}`." for k, m in table.manifests.items()]
    return lines + list(dict.fromkeys(_machine(m.environment) for m in table.manifests.values()))


def remarks(table: Table) -> list[str]:
    """What a reader of the figures should know about them beside `METHOD`."""
    return [*_advice(table), *_untested(table), *_self_tests(table), *_repeated(table)]


def _advice(table: Table) -> list[str]:
    """Where prompts are too few, and how many would do."""
    few: dict[str, int] = {}
    for _, row in table.rows:
        n = row.aal_pooled.n
        if 0 < n < FEW_PROMPTS:
            few[row.cell.suite] = min(n, few.get(row.cell.suite, n))
    lines = []
    if few:
        suites = ", ".join(f"{suite} ({n})" for suite, n in few.items())
        lines.append(
            f"Few prompts: {suites}. Below {FEW_PROMPTS} an interval holds the truth less often "
            "than it says."
        )
    wanted = [
        (prompts_for(row.speedup, PRECISION) or 0, label, row)
        for label, row in table.rows
        if row.is_method
    ]
    prompts, label, row = max(wanted, key=lambda w: w[0], default=(0, "", table.rows[0][1]))
    if prompts > row.speedup.n:
        lines.append(
            f"Least certain speedup: {label} on {row.cell.suite}; about {prompts} prompts where it "
            f"has {row.speedup.n} would bring it to ±{PRECISION:.0%}."
        )
    return lines


def _untested(table: Table) -> list[str]:
    """Drafters whose texts could not be compared, and what tests them instead."""
    rows = [row for _, row in table.rows if row.lossless == "untested" and row.answers]
    names = dict.fromkeys(row.cell.drafter for row in rows if row.cell.rule == "reject")
    return [
        f"Untested: {name} keeps the target's distribution, not its text; test that with "
        f"`specbench verify --drafter {name} --temperature {table.any_cell.temperature:g}`."
        for name in names
    ]


def _self_tests(table: Table) -> list[str]:
    """What an A/A row says about every other row of its suite."""
    lines = []
    for _, row in table.rows:
        if row.cell.is_self_test and row.speedup.interval is not None:
            unseen = max(abs(end - 1) for end in row.speedup.interval)
            lines.append(
                f"Self-test on {row.cell.suite}: the baseline against itself leaves {unseen:.1%} "
                "open; a speedup nearer to 1 than that, or to another one, is no finding here."
            )
    return lines


def _repeated(table: Table) -> list[str]:
    """Cells that several runs measured."""
    runs: dict[tuple[str, str], list[str]] = {}
    for _, row in table.rows:
        if not row.is_baseline:
            place = row.entry.cell_id, f"{row.cell.drafter} on {row.cell.suite}"
            runs.setdefault(place, []).append(row.entry.run)
    return [
        f"Measured more than once: {name} by {' and '.join(names)}; --newest keeps the last one."
        for (_, name), names in runs.items()
        if len(names) > 1
    ]


def _settings(cell: Cell) -> str:
    return (
        f"{cell.dtype} on {cell.device}, attention {cell.attention}, {_template(cell)}, thinking "
        f"{cell.thinking}, {_sampling(cell)}, seed {cell.seed}"
    )


def _machine(environment: dict[str, Any]) -> str:
    return f"Machine {machine(environment)}: {_facts(environment)}."


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
        **{key: _fact(value) for key, value in _any_environment(table).items()},
    }


def _any_environment(table: Table) -> dict[str, Any]:
    return next(iter(table.manifests.values())).environment


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
    return (
        f"hash {_short(cell.suite_hash)}, {row.planned} prompts (choice {chosen(cell)}), at "
        f"most {cell.max_new_tokens} new tokens"
    )


def _drafter(cell: Cell) -> str:
    facts = [f"draft model {_model(cell.draft_model)}"] if cell.draft_model else []
    named = cell.draft_model.name if cell.draft_model else None
    facts += [
        f"{key}={as_typed(value)}" for key, value in sorted(cell.options.items()) if value != named
    ]
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
