"""The cost model of a pair on a machine, and which draft length pays.

    speedup = AAL * step / (draft + verify(rows))

``step`` is the time of an autoregressive step; AAL, drafting time and rows depend on the depth, the
most levels that a drafter may propose. The model's speedup stands beside the measured one.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specbench.errors import UserError
from specbench.records.records import Sample
from specbench.stats import metrics
from specbench.stats.bootstrap import FEW_PROMPTS, Estimate, shared

TUNING = "tune.json"
SCHEMA = 1


@dataclass(frozen=True)
class VerifyCost:
    """One target forward of ``rows`` tokens behind ``context`` cached ones.

    Attributes:
        milliseconds: the median of ``n`` forwards; ``low`` and ``high`` are the quartiles.
    """

    rows: int
    context: int
    milliseconds: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Depth:
    """A drafter that may propose ``depth`` levels, on the chosen prompts.

    Attributes:
        rows: target rows per round on average, the anchor included.
        draft: milliseconds per round for drafting and its bookkeeping.
        verify: milliseconds of a forward of that many rows, from the curve.
        break_even: the AAL above which drafting at this depth pays.
        model: speedup by the formula; ``measured`` is the speedup by the clock.
        over_best: its speed over that of the fastest depth, paired by prompt; None for the
            fastest itself and in files of older versions.
    """

    depth: int
    rows: float
    aal: Estimate
    draft: float
    verify: float
    break_even: float
    model: float | None
    measured: Estimate
    over_best: Estimate | None = None


@dataclass(frozen=True)
class Tuned:
    """One drafter at several depths."""

    drafter: str
    options: dict[str, Any]
    depths: tuple[Depth, ...]

    @property
    def best(self) -> Depth | None:
        """The depth with the highest measured speedup; None if nothing was measured.

        It is chosen after seeing the data: see `best_speedup` and `undecided`.
        """
        return max(self._known, key=lambda d: d.measured.value or 0.0, default=None)

    @property
    def best_speedup(self) -> Estimate | None:
        """The best depth's speedup, its interval corrected for the choice among the depths."""
        return shared(self.best.measured, len(self._known)) if self.best else None

    @property
    def undecided(self) -> list[int]:
        """Depths that cannot be told apart from the best one by speed.

        As between drafters, the intervals are corrected for all pairs of depths (Bonferroni).
        """
        pairs = math.comb(len(self._known), 2)
        return [
            depth.depth
            for depth in self._known
            if depth is not self.best and not _slower(depth.over_best, pairs)
        ]

    @property
    def _known(self) -> list[Depth]:
        return [d for d in self.depths if d.measured.value is not None]


@dataclass(frozen=True)
class Tuning:
    """What `specbench tune` measured.

    Attributes:
        step: milliseconds of an autoregressive step.
        revision: of the target, if it is a hub id.
    """

    target: str
    suite: str
    device: str
    dtype: str
    prompts: int
    step: float
    verify: tuple[VerifyCost, ...]
    drafters: tuple[Tuned, ...]
    environment: dict[str, Any]
    revision: str | None = None
    schema: int = SCHEMA


def modelled(
    depth: int,
    curve: Sequence[VerifyCost],
    draft: float,
    baseline: Sequence[Sample],
    samples: Sequence[Sample],
) -> Depth:
    """The model beside the measurement, from the answers of both arms at one depth.

    Args:
        draft: milliseconds per round for everything but the target's forward.
    """
    rounds = [r for sample in samples for r in sample.rounds]
    rows = 1 + sum(drafted for drafted, _, _ in rounds) / max(1, len(rounds))
    step, verify = milliseconds_per_token(baseline), interpolated(curve, rows)
    aal = metrics.pooled_aal(samples)
    return Depth(
        depth,
        rows,
        aal,
        draft,
        verify,
        break_even=(draft + verify) / step,
        model=None if aal.value is None else aal.value * step / (draft + verify),
        measured=metrics.speedup(baseline, samples),
    )


def milliseconds_per_token(samples: Iterable[Sample]) -> float:
    """Decode milliseconds per emitted token."""
    kept = metrics.ok(samples)
    return 1e3 * sum(s.decode_seconds or 0.0 for s in kept) / max(1, sum(s.emitted for s in kept))


def interpolated(curve: Sequence[VerifyCost], rows: float) -> float:
    """Milliseconds of a verification: linear between the curve's points, constant beyond them."""
    points = sorted(curve, key=lambda cost: cost.rows)
    known = [cost.rows for cost in points], [cost.milliseconds for cost in points]
    return float(np.interp(rows, *known))


def to_json(tuning: Tuning) -> str:
    """The text that `load_tuning` reads."""
    return json.dumps(asdict(tuning), indent=1) + "\n"


def load_tuning(folder: Path) -> Tuning | None:
    """The tuning in a folder; None if there is none.

    Raises:
        UserError: the file cannot be read.
    """
    path = folder / TUNING
    if not path.exists():
        return None
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        curve = tuple(VerifyCost(**cost) for cost in raw.pop("verify"))
        drafters = tuple(
            Tuned(d["drafter"], d["options"], tuple(_depth(one) for one in d["depths"]))
            for d in raw.pop("drafters")
        )
        return Tuning(**raw, verify=curve, drafters=drafters)
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from error


def _depth(raw: dict[str, Any]) -> Depth:
    figures = {key: raw[key] for key in ("aal", "measured", "over_best") if raw.get(key)}
    return Depth(**{**raw, **{key: _estimate(figure) for key, figure in figures.items()}})


def _estimate(raw: dict[str, Any]) -> Estimate:
    low, high = raw["interval"] or (0.0, 0.0)
    return Estimate(raw["value"], (low, high) if raw["interval"] else None, raw["n"])


def _slower(ratio: Estimate | None, pairs: int) -> bool:
    """Whether the interval of a ratio, as one of so many, excludes 1; never with few prompts."""
    if ratio is None or ratio.n < FEW_PROMPTS:
        return False
    interval = shared(ratio, pairs).interval
    return interval is not None and interval[1] < 1
