"""Every figure of a report, stated once: all formats loop over `FIGURES`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from specbench.records.machine import machine_id
from specbench.records.records import Sample
from specbench.records.traces import PHASES
from specbench.report.cells import Figure, Section, Shown, Value
from specbench.report.comparable import chosen
from specbench.report.summary import Row
from specbench.stats import metrics
from specbench.stats.bootstrap import FEW_PROMPTS, Estimate, prompts_for
from specbench.stats.metrics import Answers

PRECISION = 0.05
NONE = Estimate(None, None, 0)
ONE = Shown("1 (baseline)", number=1.0)


def marks(row: Row) -> tuple[Shown, ...]:
    """What a reader must not overlook."""
    lossy = not row.cell.lossless or row.entry.lossless == "lossy"
    texts = {
        f"{row.failed} failed": row.failed > 0,
        "BROKEN": row.entry.lossless == "broken",
        "LOSSY": lossy,
        "LOOPS": MOSTLY_LOOPS.of(row),
    }
    return tuple(Shown(text, mark=text.split()[-1].lower()) for text, true in texts.items() if true)


def prompts(row: Row) -> str:
    """Prompts with an answer, and how many were chosen if some have none."""
    n = AAL.of(row).n
    return str(n) if n == row.planned else f"{n} of {row.planned}"


def tokens_per_second(row: Row) -> Shown:
    """The speed, with its unit."""
    shown = SPEED.line(SPEED.of(row))
    return replace(shown, text=f"{shown.text} tokens/s")


def _answers(figure: Callable[[Answers], Value]) -> Callable[[Row], Value]:
    """A figure of the answers that count."""
    return lambda row: figure(row.entry.counted)


def _speedup(figure: Callable[[Answers, Answers], Estimate]) -> Callable[[Row], Estimate]:
    """A speedup as it may be shown: that of the baseline is 1, with broken output there is none."""

    def value(row: Row) -> Estimate:
        answers = row.entry.counted
        estimate = figure(row.entry.baseline or Answers.of([]), answers)
        if row.withheld:
            return replace(estimate, value=None, interval=None)
        if row.entry.is_baseline and estimate.value is not None:
            return replace(estimate, value=1.0, interval=None)
        return estimate

    return value


def _show_speedup(row: Row) -> Shown | None:
    """The baseline, which has no speedup, shows the speed that it is measured against."""
    return tokens_per_second(row) if row.entry.is_baseline else _show_withheld(row)


def _show_end_to_end(row: Row) -> Shown | None:
    return ONE if row.entry.is_baseline else _show_withheld(row)


def _show_withheld(row: Row) -> Shown | None:
    return Shown("withheld") if row.withheld else None


def _show_prompts(row: Row) -> Shown:
    return Shown(prompts(row), number=AAL.of(row).n)


def _show_failed(row: Row) -> Shown:
    return Shown(f"{row.failed} of {row.failed + row.answers}", number=row.failed)


def _show_verdict(row: Row) -> Shown:
    if row.entry.is_baseline:
        return Shown("reference", verdict="reference")
    counts = ", ".join(f"{kind} {len(found)}" for kind, found in row.entry.verdicts.items())
    return Shown(row.entry.lossless, note=counts or "no answer", verdict=row.entry.lossless)


def _show_told_apart(row: Row) -> Shown | None:
    n, needed = row.comparison.speed.n if row.comparison else 0, row.prompts_to_decide
    if 0 < n < FEW_PROMPTS:
        return Shown("too few prompts")
    if needed is None:
        return None
    return Shown("yes" if needed <= n else f"no: about {needed} prompts would", number=needed)


def _against(name: str) -> Callable[[Row], Estimate]:
    """A figure of the comparison with the fastest, an attribute of `Comparison`."""
    return lambda row: getattr(row.comparison, name) if row.comparison else NONE


def _compared_prompts(row: Row) -> int | None:
    return row.comparison.aal_ratio.n if row.comparison else None


def _rival(row: Row) -> str | None:
    return row.rival.label if row.rival and row.comparison else None


def _traced(name: str) -> Callable[[Row], Any]:
    """A figure of the traced pass, an attribute of `Split`; None without one."""
    return lambda row: getattr(row.entry.traced, name) if row.entry.traced else None


def largest_gap(answers: list[Sample]) -> float | None:
    """The largest logit gap recorded at a first difference; None if none was."""
    verdicts = [s.verdict for s in answers if s.verdict]
    return max((v.gap for v in verdicts if v.gap is not None), default=None)


def _gaps(row: Row) -> dict[str, float | None]:
    differing = {"broken", "near-tie"}
    return {k: largest_gap(found) for k, found in row.entry.verdicts.items() if k in differing}


def reasons(row: Row) -> list[str]:
    """Why answers were not tested, each reason once."""
    found = row.entry.verdicts.get("untested", [])
    return list(dict.fromkeys(s.verdict.reason for s in found if s.verdict and s.verdict.reason))


def _setting(name: str) -> Figure[Any]:
    return Figure(name, lambda row: getattr(row.cell, name))


def _phase(phase: str) -> Figure[Any]:
    def milliseconds(row: Row) -> float | None:
        return row.entry.traced.milliseconds[phase] if row.entry.traced else None

    return Figure("", milliseconds, phase, TIME, "ms")


DETAILS = Section("Details", lambda row: True)
AGAINST = Section("Against the fastest, paired by prompt", lambda row: row.comparison is not None)
TIME = Section("Where a round's time goes", lambda row: row.entry.traced is not None)
DEPTH = Section("Acceptance by depth", lambda row: row.entry.counted.reached.shape[1] > 1)
SECTIONS = (DETAILS, AGAINST, TIME, DEPTH)

# fmt: off
AAL = Figure("aal_pooled", _answers(metrics.pooled_aal), "AAL pooled", DETAILS, interval="aal_ci")
SPEEDUP = Figure(
    "speedup", _speedup(metrics.speedup), "speedup", unit="x", counted=True, show=_show_speedup
)
SPEED = Figure(
    "tokens_per_second", _answers(metrics.tokens_per_second), "tokens/s", DETAILS, digits=1
)
ACCEPTANCE = Figure(
    "acceptance", _answers(metrics.acceptance), "rounds that reached depth 1, 2, ...", DEPTH, "%"
)
REPEATED = Figure("repeated_4grams", _answers(metrics.repetition), "repeated 4-grams", DETAILS, "%")
CUT = Figure("cut_at_budget", _answers(metrics.cut_at_budget), "cut at budget", DETAILS, "%")
LOOPING = Figure("looping", _answers(metrics.looping), "looping answers", DETAILS, "%")
MOSTLY_LOOPS = Figure("mostly_loops", _answers(metrics.dominated_by_loops))
WITHOUT_LOOPS = Figure(
    "aal_without_loops", _answers(metrics.aal_without_loops), "AAL without loops", DETAILS,
    counted=True,
)
HEADLINE = (SPEEDUP, AAL, WITHOUT_LOOPS, REPEATED, CUT)
"""What a terminal shows first."""

FIGURES: tuple[Figure[Any], ...] = (
    Figure("target", lambda row: row.cell.target.name),
    *map(_setting, ("drafter", "suite", "temperature")),
    Figure("n", lambda row: AAL.of(row).n, "n", DETAILS, show=_show_prompts),
    Figure("", lambda row: AAL.of(row).n, "n", DEPTH, show=_show_prompts),
    Figure("planned", lambda row: row.planned),
    Figure("answers", lambda row: row.answers),
    AAL,
    Figure("aal_macro", _answers(metrics.macro_aal), "AAL macro", DETAILS),
    SPEEDUP,
    Figure(
        "speedup_end_to_end", _speedup(metrics.end_to_end_speedup), "end-to-end speedup",
        DETAILS, "x", show=_show_end_to_end,
    ),
    SPEED,
    ACCEPTANCE,
    Figure(
        "acceptance_conditional", _answers(metrics.conditional_acceptance),
        "the same, given the depth before", DEPTH, "%",
    ),
    Figure(
        "emitted_histogram",
        lambda row: {str(k): n for k, n in metrics.emitted_histogram(row.entry.counted).items()},
    ),
    REPEATED,
    CUT,
    Figure("verdicts", lambda row: {k: len(found) for k, found in row.entry.verdicts.items()}),
    Figure("verdict_gaps", _gaps),
    Figure("verdict_reasons", reasons),
    LOOPING,
    MOSTLY_LOOPS,
    WITHOUT_LOOPS,
    Figure("failed", lambda row: row.failed, "failed answers", DETAILS, show=_show_failed),
    Figure("lossless", lambda row: row.entry.lossless, "losslessness", DETAILS, show=_show_verdict),
    Figure("phase_milliseconds", _traced("milliseconds")),
    Figure("traced_rounds", _traced("rounds"), "traced rounds", TIME, digits=0),
    *map(_phase, PHASES),
    Figure("", _traced("total"), "round", TIME, "ms"),
    Figure("target_rows_per_round", _traced("rows"), "target rows per round", TIME, digits=1),
    Figure("joules_per_token", _traced("joules_per_token"), "joules per token", TIME, digits=3),
    Figure("speedup_withheld", lambda row: row.withheld),
    Figure("prompts_for_5_percent", lambda row: prompts_for(SPEEDUP.of(row), PRECISION)),
    Figure("label", lambda row: row.label),
    Figure("baseline", lambda row: row.entry.is_baseline),
    Figure("run", lambda row: row.entry.manifest.run),
    Figure("cell", lambda row: row.entry.cell_id),
    *map(_setting, ("options", "details")),
    Figure("draft_model", lambda row: row.cell.draft_model.name if row.cell.draft_model else None),
    *map(_setting, (
        "width", "rule", "top_k", "top_p", "max_new_tokens", "seed", "device", "dtype",
        "attention", "template", "thinking", "suite_hash",
    )),
    Figure("sample_choice", lambda row: chosen(row.cell)),
    Figure("lossy_rule", lambda row: not row.cell.lossless),
    Figure("machine", lambda row: machine_id(row.entry.manifest.environment)),
    Figure("environment", lambda row: row.entry.manifest.environment),
    Figure("against", _rival, "fastest", AGAINST),
    Figure("against_n", _compared_prompts, "n", AGAINST, digits=0),
    Figure("against_speed", _against("speed"), "speed over the fastest's", AGAINST),
    Figure("against_aal_ratio", _against("aal_ratio"), "AAL over the fastest's", AGAINST),
    Figure("against_aal_difference", _against("aal_difference"), "AAL difference", AGAINST),
    Figure(
        "against_prompts_to_decide", lambda row: row.prompts_to_decide, "told apart by speed",
        AGAINST, show=_show_told_apart,
    ),
)
