"""A summary as text: markdown for people, csv and json for programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any, Literal, get_args

from specbench.errors import UserError
from specbench.metrics import Estimate
from specbench.report import text
from specbench.report.summary import Row, Summary

REPORT_SCHEMA = 1
Format = Literal["markdown", "csv", "json"]


def render(summary: Summary, format: str) -> str:  # noqa: A002 (the option's own name)
    """The report as one text that ends with a newline.

    Raises:
        UserError: another format than markdown, csv or json.
    """
    writers = {"markdown": _markdown, "csv": _csv, "json": _json}
    if format not in writers:
        raise UserError(f"--format is {', '.join(get_args(Format))}, not {format!r}.")
    return writers[format](summary)


def _markdown(summary: Summary) -> str:
    blocks = []
    for heading, table in zip(text.headings(summary), summary.tables, strict=True):
        blocks += [f"## {_escape(heading)}", _grid(text.headline(table))]
        for grid in (text.details(table), text.acceptance(table)):
            if grid is not None:
                blocks += [f"### {grid.title}", _grid(grid)]
        blocks += ["\n".join(f"- {line}" for line in text.caption(table))]
    return "\n\n".join([*blocks, text.METHOD]) + "\n"


def _grid(grid: text.Grid) -> str:
    lines = [grid.header, ("---",) * len(grid.header), *grid.rows]
    return "\n".join("| " + " | ".join(_escape(cell) for cell in line) + " |" for line in lines)


def _escape(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", "<br>")


def _json(summary: Summary) -> str:
    report = {"schema": REPORT_SCHEMA, "rows": _objects(summary)}
    return json.dumps(report, indent=2, allow_nan=False) + "\n"


def _csv(summary: Summary) -> str:
    """The json rows, an interval in two columns, and JSON where there is more than one value."""
    rows = [_flat(row) for row in _objects(summary)]
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


def _objects(summary: Summary) -> list[dict[str, Any]]:
    return [_object(label, row) for table in summary.tables for label, row in table.rows]


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
    }


def _ci(estimate: Estimate) -> list[float] | None:
    return list(estimate.interval) if estimate.interval else None


def _values(estimates: Sequence[Estimate]) -> list[float | None]:
    return [estimate.value for estimate in estimates]
