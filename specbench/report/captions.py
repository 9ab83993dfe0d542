"""The text above and below a table: what was run on what, how, and how far to trust it."""

from collections.abc import Iterator
from itertools import product
from typing import Any

from specbench.inputs.options import as_typed
from specbench.records.machine import machine_id
from specbench.records.records import Cell, ModelId
from specbench.report.comparable import chosen
from specbench.report.figures import AAL, PRECISION, SPEEDUP, largest_gap, reasons
from specbench.report.labels import distinguish, noted, short
from specbench.report.runs import group_by
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


def headed(summary: Summary) -> list[tuple[str, Table]]:
    """Every table under its heading: target and sampling, then what distinguishes namesakes."""
    tables = summary.tables
    names = [f"{t.rows[0].cell.target.name}, {_sampling(t.rows[0].cell)}" for t in tables]
    notes = distinguish(names, list(map(_differences, tables)))
    return list(zip(map(noted, names, notes), tables, strict=True))


def caption(table: Table) -> list[str]:
    """What was run on what, one sentence per line; `METHOD` says how, once for all tables."""
    settings = dict.fromkeys(_settings(row.cell) for row in table.rows)
    lines = [f"Target: {_model(table.rows[0].cell.target)}; {'; or '.join(settings)}."]
    if table.unlike:
        lines.append(f"NOT ALIKE, side by side because of --force: {'; '.join(table.unlike)}.")
    for suite in table.suites:
        texts = dict.fromkeys(_suite(row) for row in table.rows if row.cell.suite == suite)
        lines.append(f"Suite {suite}: {'; or '.join(texts)}.")
    for label, line in table.lines.items():
        row = next(iter(line.values()))
        if not row.entry.is_baseline:
            lines.append(f"Drafter {label}: {_drafter(row.cell)}.")
    lines += remarks(table)
    lines += [f"Run {k} of {m.created}: `{m.command}`." for k, m in table.manifests.items()]
    return [*lines, *dict.fromkeys(_machine(m.environment) for m in table.manifests.values())]


def remarks(table: Table) -> list[str]:
    """What a reader of the figures should know about them beside `METHOD`."""
    rules = (_few_prompts, _least_certain, _differing, _untested, _self_tests, _repeated)
    return [line for rule in rules for line in rule(table)]


def _few_prompts(table: Table) -> Iterator[str]:
    few: dict[str, int] = {}
    for row in table.rows:
        n = AAL.of(row).n
        if 0 < n < FEW_PROMPTS:
            few[row.cell.suite] = min(n, few.get(row.cell.suite, n))
    if few:
        suites = ", ".join(f"{suite} ({n})" for suite, n in few.items())
        yield (
            f"Few prompts: {suites}. With fewer than {FEW_PROMPTS}, a {CONFIDENCE:.0%} interval "
            f"covers less than {CONFIDENCE:.0%}."
        )


def _least_certain(table: Table) -> Iterator[str]:
    """How many prompts would be enough for the widest interval of a speedup."""
    methods = [row for row in table.rows if row.entry.is_method]
    wanted = [(prompts_for(SPEEDUP.of(row), PRECISION) or 0, row) for row in methods]
    most, row = max(wanted, key=lambda one: one[0], default=(0, None))
    if row is not None and most > SPEEDUP.of(row).n:
        yield (
            f"Least certain speedup: {row.label} on {row.cell.suite}; about {most} prompts instead "
            f"of {SPEEDUP.of(row).n} would narrow it to ±{PRECISION:.0%}."
        )


def _differing(table: Table) -> Iterator[str]:
    """Answers that leave the target's own text: where, and by how much."""
    for kind, (label, line) in product(("broken", "near-tie"), table.lines.items()):
        found = [_differences_on(row, kind) for row in line.values() if kind in row.entry.verdicts]
        if found:
            yield f"{kind.capitalize()}: {label}: {', '.join(found)}."


def _differences_on(row: Row, kind: str) -> str:
    verdicts = [s.verdict for s in row.entry.verdicts[kind] if s.verdict]
    places = [v.position for v in verdicts if v.position is not None]
    gap = largest_gap(row.entry.verdicts[kind])
    facts = [f"first at output token {min(places) + 1}"] if places else []
    facts += [] if gap is None else [f"largest logit gap {gap:.2g}"]
    text = f"{len(verdicts)} of {row.answers} answers on {row.cell.suite}"
    return f"{text} ({', '.join(facts)})" if facts else text


def _untested(table: Table) -> Iterator[str]:
    """Answers whose text was not compared, why, and what tests them instead."""
    for row in table.rows:
        known = set(row.entry.baseline.keys) if row.entry.baseline else set()
        untested = row.entry.verdicts.get("untested", [])
        for reason in reasons(row):
            answers = [s for s in untested if s.verdict and s.verdict.reason == reason]
            text = f"Untested: {row.label} on {row.cell.suite}, {len(answers)} answers: {reason}."
            if {(s.sample, s.turn) for s in answers} <= known:
                text += (
                    f" `specbench distribution --drafter {row.cell.drafter} --temperature "
                    f"{row.cell.temperature:g}` tests the distribution."
                )
            yield text


def _self_tests(table: Table) -> Iterator[str]:
    """What an A/A row says about every other row of its suite."""
    for row in table.rows:
        interval = SPEEDUP.of(row).interval if row.cell.is_self_test else None
        if interval is not None:
            largest = max(abs(end - 1) for end in interval)
            yield (
                f"Self-test on {row.cell.suite}: the baseline against itself leaves {largest:.1%} "
                "open; this machine cannot resolve smaller differences of speed."
            )


def _repeated(table: Table) -> Iterator[str]:
    """Cells that several runs measured."""
    drafted = [row for row in table.rows if not row.entry.is_baseline]
    for rows in group_by(drafted, lambda row: row.entry.cell_id).values():
        if len(rows) > 1:
            yield (
                f"Measured more than once: {rows[0].cell.drafter} on {rows[0].cell.suite} by "
                f"{' and '.join(row.entry.run for row in rows)}; --newest keeps the last one."
            )


def _settings(cell: Cell) -> str:
    template = f"chat template {short(cell.template)}"
    if cell.template is None:
        template = "raw prompt: the target has no chat template"
    return (
        f"{cell.dtype} on {cell.device}, attention {cell.attention}, {template}, thinking "
        f"{cell.thinking}, {_sampling(cell)}, seed {cell.seed}"
    )


def _machine(environment: dict[str, Any]) -> str:
    facts = ", ".join(_known(environment)) or "not recorded"
    return f"Machine {machine_id(environment)}: {facts}."


def _sampling(cell: Cell) -> str:
    if cell.temperature == 0:
        return "greedy"
    filters = f", top-k {cell.top_k}" if cell.top_k else ""
    filters += f", top-p {cell.top_p:g}" if cell.top_p < 1 else ""
    return f"temperature {cell.temperature:g}{filters}"


def _differences(table: Table) -> dict[str, str]:
    """Every setting in which two tables under one heading could differ, as short texts."""
    cell = table.rows[0].cell
    shared = ("dtype", "device", "attention", "template", "thinking", "seed")
    first = {row.cell.suite: row for row in reversed(table.rows)}
    environment = next(iter(table.manifests.values())).environment
    return {
        "target": _model(cell.target),
        **{name: short(getattr(cell, name)) for name in shared},
        **{suite: _suite(first[suite]) for suite in table.suites},
        **{key: _fact(value) for key, value in environment.items()},
    }


def _suite(row: Row) -> str:
    cell = row.cell
    return (
        f"hash {short(cell.suite_hash)}, {row.planned} prompts (choice {chosen(cell)}), at "
        f"most {cell.max_new_tokens} new tokens"
    )


def _drafter(cell: Cell) -> str:
    draft = cell.draft_model
    named = draft.name if draft else None
    facts = [f"draft model {_model(draft)}"] if draft else []
    facts += [f"{k}={as_typed(v)}" for k, v in sorted(cell.options.items()) if v != named]
    return ", ".join([*facts, *_known(cell.details), f"width {cell.width}", f"rule {cell.rule}"])


def _model(model: ModelId) -> str:
    """Name, and revision or hash of the weights as far as known."""
    known = _known({"revision": model.revision, "weights": model.sha256})
    return f"{model.name} ({', '.join(known)})" if known else model.name


def _known(facts: dict[str, Any]) -> list[str]:
    return [f"{key} {_fact(value)}" for key, value in facts.items() if value is not None]


def _fact(value: Any) -> str:
    return " ".join(_known(value)) if isinstance(value, dict) else short(value)
