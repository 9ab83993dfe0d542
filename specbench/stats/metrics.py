"""From records to numbers: AAL, acceptance and speed with their intervals.

Every figure is a ratio of sums over prompts, never a mean of rates, so one bootstrap serves all:
prompts (a sample id with all its turns) are drawn with replacement, their sums are added up, and
the ratio is computed again. Only answers with status "ok" count. A figure that cannot be computed
is None, never 0 or NaN.

Every function accepts samples or `Answers`; count a cell once to compute several figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from specbench.records.records import Sample
from specbench.stats.bootstrap import Array, Estimate, Statistic, estimates
from specbench.stats.exact import MOST_PROMPTS, SwapTest, swap_test

LOOP_SHARE = 0.5
"""An answer loops if more than this share of its 4-grams repeat an earlier one.

Proper text stays below: above it are none of the solutions of GSM8K's training set, 0.2 % of those
of MATH's, and 0.6 % of the functions of Python's standard library (embedded tokenizer).
"""


@dataclass(frozen=True)
class Comparison:
    """Two drafters on the answers that both have; a prompt is drawn with both.

    Attributes:
        speed: seconds per emitted token of the second over the first's: above 1 if the first is
            faster.
        aal_ratio: pooled AAL of the first over the second's; ``aal_difference`` first minus
            second.
    """

    speed: Estimate
    aal_ratio: Estimate
    aal_difference: Estimate


@dataclass(frozen=True)
class Change:
    """A figure of one run over the same figure of another, on the answers both have.

    Attributes:
        exact: the exact test of "no change"; None beyond `MOST_PROMPTS` prompts, where the
            interval can be trusted, and below two.
    """

    ratio: Estimate
    exact: SwapTest | None


@dataclass(frozen=True, eq=False)
class Answers:
    """The ok answers of a cell in a fixed order, counted once; arrays have one row per answer.

    Attributes:
        keys: sample id and turn.
        emitted, rounds, output: tokens of all rounds, rounds, and tokens with the prefill's.
        prefill, decode: seconds, NaN if not measured.
        repeated, grams: 4-grams of token ids that repeat an earlier one, and all of them.
        cut: 1 if the budget ended it.
        reached: ``[answers, 1 + deepest]`` rounds whose kept path reached depth 0, 1, ...
        lengths: ``[answers, 1 + longest]`` rounds that emitted 0, 1, ... tokens.
    """

    keys: tuple[tuple[str, int], ...]
    emitted: Array
    rounds: Array
    output: Array
    prefill: Array
    decode: Array
    repeated: Array
    grams: Array
    cut: Array
    reached: Array
    lengths: Array

    @classmethod
    def of(cls, samples: Samples) -> Answers:
        """Count the ok ones among ``samples``."""
        if isinstance(samples, Answers):
            return samples
        answers = ok(samples)
        rounds = [np.array(s.rounds, dtype=np.int64).reshape(-1, 3) for s in answers]
        accepted = _histograms([r[:, 1] for r in rounds])
        lengths = _histograms([r[:, 2] for r in rounds])
        grams = np.array([repeated_4grams(s.output) for s in answers]).reshape(-1, 2)
        return cls(
            keys=tuple((s.sample, s.turn) for s in answers),
            emitted=lengths @ np.arange(lengths.shape[1]),
            rounds=lengths.sum(1),
            output=np.array([float(len(s.output)) for s in answers]),
            prefill=np.array([s.prefill_seconds for s in answers], dtype=np.float64),
            decode=np.array([s.decode_seconds for s in answers], dtype=np.float64),
            repeated=grams[:, 0].astype(np.float64),
            grams=grams[:, 1].astype(np.float64),
            cut=np.array([float(s.finish == "length") for s in answers]),
            reached=accepted[:, ::-1].cumsum(1)[:, ::-1],
            lengths=lengths,
        )

    @property
    def looping(self) -> NDArray[np.bool_]:
        """Which answers loop, by `LOOP_SHARE`."""
        return self.repeated > LOOP_SHARE * self.grams

    def where(self, chosen: NDArray[np.bool_]) -> Answers:
        """Only the chosen answers."""
        keys = tuple(key for key, keep in zip(self.keys, chosen, strict=True) if keep)
        return Answers(keys, *(getattr(self, f.name)[chosen] for f in fields(self)[1:]))

    def sums(self, *columns: Array) -> Array:
        """``[prompts, columns]``: sums over the answers of each prompt."""
        numbers: dict[str, int] = {}
        prompts = [numbers.setdefault(sample, len(numbers)) for sample, _ in self.keys]
        table = np.column_stack(columns)
        sums = np.zeros((len(numbers), table.shape[1]))
        np.add.at(sums, prompts, table)
        return sums


Samples = Iterable[Sample] | Answers


def ok(samples: Iterable[Sample]) -> list[Sample]:
    """The answers that count, in an order that does not depend on the input's."""
    return sorted((s for s in samples if s.status == "ok"), key=lambda s: (s.sample, s.turn))


def pooled_aal(samples: Samples) -> Estimate:
    """Emitted tokens per round over all rounds."""
    answers = Answers.of(samples)
    return _estimate(answers.sums(answers.emitted, answers.rounds))


def macro_aal(samples: Samples) -> Estimate:
    """Mean over answers of each answer's emitted tokens per round.

    Answers without a round (their first token ended them) are left out.
    """
    answers = Answers.of(samples)
    answers = answers.where(answers.rounds > 0)
    return _mean(answers, answers.emitted / answers.rounds)


def tokens_per_second(samples: Samples) -> Estimate:
    """Emitted tokens over decode seconds; the prefill and its token are excluded."""
    timed = _timed(samples)
    return _estimate(timed.sums(timed.emitted, timed.decode))


def speedup(baseline: Samples, samples: Samples) -> Estimate:
    """Decode-only speedup on the (sample, turn) pairs that both arms have.

    A prompt is drawn with both arms.
    """
    arm, drafter = _paired(_timed(baseline), _timed(samples))
    sums = arm.sums(arm.decode, arm.emitted, drafter.decode, drafter.emitted)
    return _estimate(sums, _quotient_of_ratios)


def end_to_end_speedup(baseline: Samples, samples: Samples) -> Estimate:
    """Speedup with the prefill: seconds of prefill and decode per output token.

    The prefill's own token is counted here, since its seconds are.
    """
    arm, drafter = _paired(_timed(baseline, prefill=True), _timed(samples, prefill=True))
    sums = arm.sums(
        arm.prefill + arm.decode, arm.output, drafter.prefill + drafter.decode, drafter.output
    )
    return _estimate(sums, _quotient_of_ratios)


def acceptance(samples: Samples) -> tuple[Estimate, ...]:
    """Share of all rounds whose kept path reached depth 1, 2, ... up to the deepest reached."""
    return _by_depth(samples, lambda sums: _ratio(sums[..., 1:], sums[..., :1]))


def conditional_acceptance(samples: Samples) -> tuple[Estimate, ...]:
    """Share of the rounds that reached depth k - 1 which reached depth k too, for k = 1, 2, ..."""
    return _by_depth(samples, lambda sums: _ratio(sums[..., 1:], sums[..., :-1]))


def emitted_histogram(samples: Samples) -> dict[int, int]:
    """Number of rounds that emitted 1, 2, ... tokens."""
    counts = Answers.of(samples).lengths.sum(0)
    return {length: int(count) for length, count in enumerate(counts) if count}


def repetition(samples: Samples) -> Estimate:
    """Share of 4-grams of token ids that repeat an earlier one of their answer.

    Text in a loop is easy to draft, so a high share means that AAL is lower on proper text.
    """
    answers = Answers.of(samples)
    return _estimate(answers.sums(answers.repeated, answers.grams))


def looping(samples: Samples) -> Estimate:
    """Share of answers that loop, by `LOOP_SHARE`."""
    answers = Answers.of(samples)
    return _mean(answers, answers.looping.astype(np.float64))


def aal_without_loops(samples: Samples) -> Estimate:
    """Pooled AAL over the answers that do not loop."""
    answers = Answers.of(samples)
    return pooled_aal(answers.where(~answers.looping))


def dominated_by_loops(samples: Samples) -> bool:
    """Whether more than half of the emitted tokens are from answers that loop."""
    answers = Answers.of(samples)
    return bool(answers.emitted[answers.looping].sum() > answers.emitted.sum() / 2)


def cut_at_budget(samples: Samples) -> Estimate:
    """Share of answers that the budget ended."""
    answers = Answers.of(samples)
    return _mean(answers, answers.cut)


def compare(first: Samples, second: Samples) -> Comparison:
    """Compare two drafters on the (sample, turn) pairs that both have.

    Use ``speed`` only if one run measured both.
    """
    one, other = _paired(first, second)
    aal = one.sums(one.emitted, one.rounds, other.emitted, other.rounds)
    return Comparison(
        speed=speedup(second, first),
        aal_ratio=_estimate(aal, _quotient_of_ratios),
        aal_difference=_estimate(aal, _difference_of_ratios),
    )


def aal_change(after: Samples, before: Samples) -> Change:
    """Pooled AAL of one run over that of another."""
    one, other = (part.sums(part.emitted, part.rounds) for part in _paired(after, before))
    return _change(one, other, _first_over_second)


def speedup_change(arm: Samples, samples: Samples, other_arm: Samples, other: Samples) -> Change:
    """Speedup of one run over that of another, each against its own baseline.

    On the answers that all four have; a prompt is drawn, or swapped, with all of them.
    """
    parts = _paired(*(_timed(one) for one in (arm, samples, other_arm, other)))
    base, drafter, other_base, other_drafter = (p.sums(p.decode, p.emitted) for p in parts)
    after, before = np.hstack([base, drafter]), np.hstack([other_base, other_drafter])
    return _change(after, before, _quotient_of_ratios)


def _change(after: Array, before: Array, figure: Statistic) -> Change:
    columns = after.shape[1]

    def ratio(sums: Array) -> Array:
        return _ratio(figure(sums[..., :columns]), figure(sums[..., columns:]))

    few = 1 < len(after) <= MOST_PROMPTS
    exact = swap_test(after, before, figure) if few else None
    return Change(_estimate(np.hstack([after, before]), ratio), exact)


def _by_depth(samples: Samples, statistic: Statistic) -> tuple[Estimate, ...]:
    """A statistic of rounds, then rounds that reached depth 1, 2, ..., up to the deepest."""
    answers = Answers.of(samples)
    return tuple(estimates(answers.sums(answers.reached), statistic))


def _timed(samples: Samples, *, prefill: bool = False) -> Answers:
    answers = Answers.of(samples)
    known = answers.decode + answers.prefill if prefill else answers.decode
    return answers.where(np.isfinite(known))


def _paired(*arms: Samples) -> list[Answers]:
    """All of them on the answers that all have, row by row."""
    parts = [Answers.of(arm) for arm in arms]
    common = set.intersection(*(set(part.keys) for part in parts))
    return [part.where(np.array([k in common for k in part.keys], dtype=bool)) for part in parts]


def _histograms(values: Sequence[NDArray[np.int64]]) -> Array:
    """``[len(values), 1 + largest]``: how often each holds 0, 1, ..."""
    width = 1 + max((int(v.max()) for v in values if v.size), default=0)
    counts = [np.bincount(v, minlength=width) for v in values]
    return np.array(counts, dtype=np.float64).reshape(-1, width)


def repeated_4grams(tokens: Sequence[int]) -> tuple[int, int]:
    """Count the 4-grams that stood in the answer before, and all of them."""
    grams = max(0, len(tokens) - 3)
    return grams - len(set(zip(tokens, tokens[1:], tokens[2:], tokens[3:], strict=False))), grams


def _ratio(over: Array, under: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return over / under


def _first_over_second(sums: Array) -> Array:
    return _ratio(sums[..., :1], sums[..., 1:])


def _quotient_of_ratios(sums: Array) -> Array:
    return _ratio(_first_over_second(sums[..., :2]), _first_over_second(sums[..., 2:]))


def _difference_of_ratios(sums: Array) -> Array:
    return _first_over_second(sums[..., :2]) - _first_over_second(sums[..., 2:])


def _mean(answers: Answers, values: Array) -> Estimate:
    return _estimate(answers.sums(values, np.ones_like(values)))


def _estimate(sums: Array, statistic: Statistic = _first_over_second) -> Estimate:
    return estimates(sums, statistic)[0]
