"""A summary for programs: the json contract, and the same rows as csv."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from specbench.report.captions import PRECISION
from specbench.report.comparable import chosen
from specbench.report.runs import machine
from specbench.report.summary import Row, Summary, Table, Versus
from specbench.stats.bootstrap import Estimate, prompts_for

REPORT_SCHEMA = 1


def json_text(summary: Summary) -> str:
    """An object with ``schema`` and ``rows``."""
    report = {"schema": REPORT_SCHEMA, "rows": objects(summary)}
    return json.dumps(report, indent=2, allow_nan=False) + "\n"


def csv_text(summary: Summary) -> str:
    """The json rows, an interval in two columns, and JSON where there is more than one value."""
    rows = [_flat(row) for row in objects(summary)]
    file = io.StringIO()
    if rows:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return file.getvalue()


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if key.endswith("_ci"):
            low, high = value or (None, None)
            flat |= {f"{key.removesuffix('_ci')}_low": low, f"{key.removesuffix('_ci')}_high": high}
        elif isinstance(value, dict | list):
            flat[key] = json.dumps(value, sort_keys=True)
        else:
            flat[key] = value
    return flat


def objects(summary: Summary) -> list[dict[str, Any]]:
    """The rows of the json report."""
    return [
        _object(label, row) | _against(table, label, row) | {"unlike": list(table.unlike)}
        for table in summary.tables
        for label, row in table.rows
    ]


def _object(label: str, row: Row) -> dict[str, Any]:
    """A row of the json report; the keys are a contract: more may come, none may change."""
    cell = row.cell
    return {
        "target": cell.target.name,
        "drafter": cell.drafter,
        "suite": cell.suite,
        "temperature": cell.temperature,
        "n": row.aal_pooled.n,
        "failed": row.failed,
        "aal_pooled": row.aal_pooled.value,
        "aal_macro": row.aal_macro.value,
        "aal_ci": _ci(row.aal_pooled),
        "speedup": row.speedup.value,
        "speedup_ci": _ci(row.speedup),
        "speedup_end_to_end": row.speedup_end_to_end.value,
        "tokens_per_second": row.tokens_per_second.value,
        "lossless": row.lossless,
        **_more_figures(row),
        **_settings(label, row),
    }


def _more_figures(row: Row) -> dict[str, Any]:
    traced = row.entry.traced
    return {
        "planned": row.planned,
        "answers": row.answers,
        "aal_macro_ci": _ci(row.aal_macro),
        "speedup_n": row.speedup.n,
        "speedup_end_to_end_ci": _ci(row.speedup_end_to_end),
        "tokens_per_second_ci": _ci(row.tokens_per_second),
        "acceptance": _values(row.acceptance),
        "acceptance_intervals": [_ci(estimate) for estimate in row.acceptance],
        "acceptance_conditional": _values(row.conditional),
        "acceptance_conditional_intervals": [_ci(estimate) for estimate in row.conditional],
        "emitted_histogram": {str(k): n for k, n in row.emitted.items()},
        "repeated_4grams": row.repeated_4grams.value,
        "repeated_4grams_ci": _ci(row.repeated_4grams),
        "cut_at_budget": row.cut_at_budget.value,
        "cut_at_budget_ci": _ci(row.cut_at_budget),
        "verdicts": row.verdicts,
        "looping": row.looping.value,
        "looping_ci": _ci(row.looping),
        "mostly_loops": row.mostly_loops,
        "aal_without_loops": row.aal_without_loops.value,
        "aal_without_loops_ci": _ci(row.aal_without_loops),
        "aal_without_loops_n": row.aal_without_loops.n,
        "phase_milliseconds": traced.milliseconds if traced else None,
        "traced_rounds": traced.rounds if traced else None,
        "target_rows_per_round": traced.rows if traced else None,
        "joules_per_token": traced.joules_per_token if traced else None,
        "speedup_withheld": row.withheld,
        "prompts_for_5_percent": prompts_for(row.speedup, PRECISION),
    }


def _against(table: Table, label: str, row: Row) -> dict[str, Any]:
    """The row against the fastest one of its suite; null where it is that, or there is but one."""
    place = label, row.cell.suite
    found: Versus | None = next((v for v in table.versus if (v.label, v.suite) == place), None)
    none = Estimate(None, None, 0)
    pair = found.comparison if found else None
    speed, ratio = (pair.speed, pair.aal_ratio) if pair else (none, none)
    difference = pair.aal_difference if pair else none
    return {
        "against": found.fastest if found else None,
        "against_n": ratio.n if found else None,
        "against_speed": speed.value,
        "against_speed_ci": _ci(speed),
        "against_aal_ratio": ratio.value,
        "against_aal_ratio_ci": _ci(ratio),
        "against_aal_difference": difference.value,
        "against_aal_difference_ci": _ci(difference),
        "against_prompts_to_decide": found.prompts_to_decide if found else None,
    }


def _settings(label: str, row: Row) -> dict[str, Any]:
    cell, draft = row.cell, row.cell.draft_model
    return {
        "label": label,
        "baseline": row.is_baseline,
        "run": row.entry.manifest.run,
        "cell": row.entry.cell_id,
        "options": cell.options,
        "details": cell.details,
        "draft_model": draft.name if draft else None,
        "width": cell.width,
        "rule": cell.rule,
        "top_k": cell.top_k,
        "top_p": cell.top_p,
        "max_new_tokens": cell.max_new_tokens,
        "seed": cell.seed,
        "device": cell.device,
        "dtype": cell.dtype,
        "attention": cell.attention,
        "template": cell.template,
        "thinking": cell.thinking,
        "suite_hash": cell.suite_hash,
        "sample_choice": chosen(cell),
        "lossy_rule": not cell.lossless,
        "machine": machine(row.entry.manifest.environment),
        "environment": row.entry.manifest.environment,
    }


def _ci(estimate: Estimate) -> list[float] | None:
    return list(estimate.interval) if estimate.interval else None


def _values(estimates: Sequence[Estimate]) -> list[float | None]:
    return [estimate.value for estimate in estimates]
