"""The text above and below a table: what was run on what, how, and how far to trust it."""

import re
from typing import Any

from specbench.inputs.options import as_typed
from specbench.records.machine import machine_id
from specbench.records.records import Cell, ModelId
from specbench.report.comparable import chosen
from specbench.report.figures import AAL, PRECISION, SPEEDUP
from specbench.report.labels import distinguish
from specbench.report.summary import Row, Summary, Table
from specbench.stats.bootstrap import CONFIDENCE, FEW_PROMPTS, RESAMPLES, prompts_for
from specbench.stats.metrics import LOOP_SHARE

METHOD = (
    f"Intervals are {CONFIDENCE:.0%} bootstrap intervals over prompts ({RESAMPLES:,} resamples, "
    "expanded percentiles). A prompt is drawn with all its turns and, for speedup, with both arms. "
    "n is the number of prompts. Speedup is autoregressive seconds per token divided by the "
    "drafter's: decode time only, on the prompts that both answered. AAL is emitted tokens per "
    "round: pooled (the headline) over all rounds, macro as the mean over answers. The fastest is "
    "chosen after seeing the data, so differences from it use intervals corrected for all pairs of "
    "drafters on the suite (Bonferroni, 5 % family-wise). An answer loops if more than "
    f"{LOOP_SHARE:.0%} of its 4-grams repeat an earlier one; LOOPS marks a cell with most of its "
    "emitted tokens in such answers: on proper text, AAL and speedup would differ. near-tie: the "
    "output leaves the target's own where its logits for the two tokens lie within the machine's "
    "rounding. BROKEN: the output is not the target's own, and the speedup is withheld. LOSSY: the "
    "rule does not keep the target's distribution."
)


def headings(summary: Summary) -> list[str]:
    """One heading per table: target and sampling, then what distinguishes tables of equal ones."""
    plain = [_plain_heading(table) for table in summary.tables]
    notes: dict[int, str] = {}
    for heading in dict.fromkeys(plain):
        same = [i for i, other in enumerate(plain) if other == heading]
        texts = distinguish([_differences(summary.tables[i]) for i in same])
        notes.update(zip(same, texts, strict=True))
    return [f"{h} ({notes[i]})" if notes[i] else h for i, h in enumerate(plain)]


def caption(table: Table) -> list[str]:
    """What was run on what, one sentence per line; `METHOD` says how, once for all tables."""
    settings = dict.fromkeys(_settings(row.cell) for row in table.rows)
    lines = [f"Target: {_model(table.any_cell.target)}; {'; or '.join(settings)}."]
    if table.unlike:
        lines.append(f"NOT ALIKE, side by side because of --force: {'; '.join(table.unlike)}.")
    for suite in table.suites:
        texts = dict.fromkeys(_suite(row) for row in table.rows if row.cell.suite == suite)
        lines.append(f"Suite {suite}: {'; or '.join(texts)}.")
    for label, line in table.lines.items():
        row = next(iter(line.values()))
        if not row.is_baseline:
            lines.append(f"Drafter {label}: {_drafter(row.cell)}.")
    lines += remarks(table)
    lines += [f"Run {k} of {m.created}: `{m.command}`." for k, m in table.manifests.items()]
    return lines + list(dict.fromkeys(_machine(m.environment) for m in table.manifests.values()))


def remarks(table: Table) -> list[str]:
    """What a reader of the figures should know about them beside `METHOD`."""
    return [
        *_advice(table), *_differing(table), *_untested(table), *_self_tests(table),
        *_repeated(table),
    ]  # fmt: skip


def _advice(table: Table) -> list[str]:
    """Where prompts are too few, and how many would be enough."""
    few: dict[str, int] = {}
    for row in table.rows:
        n = AAL.of(row).n
        if 0 < n < FEW_PROMPTS:
            few[row.cell.suite] = min(n, few.get(row.cell.suite, n))
    lines = []
    if few:
        suites = ", ".join(f"{suite} ({n})" for suite, n in few.items())
        lines.append(
            f"Few prompts: {suites}. With fewer than {FEW_PROMPTS}, a {CONFIDENCE:.0%} interval "
            f"covers less than {CONFIDENCE:.0%}."
        )
    wanted = {
        row: prompts_for(SPEEDUP.of(row), PRECISION) or 0
        for row in table.rows
        if row.entry.is_method
    }
    least = max(wanted, key=lambda row: wanted[row], default=None)
    if least is not None and wanted[least] > SPEEDUP.of(least).n:
        lines.append(
            f"Least certain speedup: {least.label} on {least.cell.suite}; about {wanted[least]} "
            f"prompts instead of {SPEEDUP.of(least).n} would narrow it to ±{PRECISION:.0%}."
        )
    return lines


def _differing(table: Table) -> list[str]:
    """Answers that leave the target's own text: where, and by how much."""
    return [
        f"{kind.capitalize()}: {label}: {', '.join(_differences_on(row, kind) for row in found)}."
        for kind in ("broken", "near-tie")
        for label, line in table.lines.items()
        if (found := [row for row in line.values() if kind in row.entry.verdicts])
    ]


def _differences_on(row: Row, kind: str) -> str:
    verdicts = [s.verdict for s in row.entry.verdicts[kind] if s.verdict]
    places = [v.position for v in verdicts if v.position is not None]
    gaps = [v.gap for v in verdicts if v.gap is not None]
    facts = [f"first at output token {min(places) + 1}"] if places else []
    facts += [f"largest logit gap {max(gaps):.2g}"] if gaps else []
    text = f"{len(verdicts)} of {row.answers} answers on {row.cell.suite}"
    return f"{text} ({', '.join(facts)})" if facts else text


def _untested(table: Table) -> list[str]:
    """Answers whose text was not compared, why, and what tests them instead."""
    lines = []
    for row in table.rows:
        reasons: dict[str, list[tuple[str, int]]] = {}
        for s in row.entry.verdicts.get("untested", []):
            if s.verdict and s.verdict.reason:
                reasons.setdefault(s.verdict.reason, []).append((s.sample, s.turn))
        for reason, answers in reasons.items():
            text = f"Untested: {row.label} on {row.cell.suite}, {len(answers)} answers: {reason}."
            if row.entry.baseline and set(answers) <= set(row.entry.baseline.keys):
                text += (
                    f" `specbench distribution --drafter {row.cell.drafter} --temperature "
                    f"{row.cell.temperature:g}` tests the distribution."
                )
            lines.append(text)
    return lines


def _self_tests(table: Table) -> list[str]:
    """What an A/A row says about every other row of its suite."""
    lines = []
    for row in table.rows:
        interval = SPEEDUP.of(row).interval if row.cell.is_self_test else None
        if interval is not None:
            largest = max(abs(end - 1) for end in interval)
            lines.append(
                f"Self-test on {row.cell.suite}: the baseline against itself leaves {largest:.1%} "
                "open; this machine cannot resolve smaller differences of speed."
            )
    return lines


def _repeated(table: Table) -> list[str]:
    """Cells that several runs measured."""
    runs: dict[tuple[str, str], list[str]] = {}
    for row in table.rows:
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
    return f"Machine {machine_id(environment)}: {_facts(environment)}."


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
    """Every setting in which two tables under one heading could differ, as short texts."""
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
    return next(line[suite] for line in table.lines.values() if suite in line)


def _model(model: ModelId) -> str:
    """Name, and revision or hash of the weights as far as known."""
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
    """The first ten digits of a hash; any other text as it is."""
    text = str(text)
    return text[:10] if re.fullmatch(r"[0-9a-f]{40,}", text) else text
