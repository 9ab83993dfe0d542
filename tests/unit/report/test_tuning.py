"""What `specbench tune` prints."""

from dataclasses import replace
from io import StringIO

from rich.console import Console

from specbench.report.labels import configuration_labels
from specbench.report.tuning import conclusion, tuning_tables
from specbench.stats.bootstrap import Estimate
from specbench.stats.costs import Depth, Tuned, Tuning, VerifyCost


def depth(k: int, speed: float, over_best: Estimate | None = None, n: int = 20) -> Depth:
    measured = Estimate(speed, (speed - 0.1, speed + 0.1), n)
    return Depth(k, k + 1.0, Estimate(2.0, None, n), 1.0, 2.0, 1.5, 1.3, measured, over_best)


def tuning(*depths: Depth) -> Tuning:
    curve = (VerifyCost(1, 128, 2.0, 1.5, 2.5, 5), VerifyCost(4, 128, 3.0, 2.5, 3.5, 5))
    return Tuning(
        "t", "smoke", "cpu", "float32", 20, 2.0, curve, (Tuned("x", {"a": 1}, depths),), {}
    )


CLEAR, NEAR = Estimate(0.7, (0.65, 0.75), 20), Estimate(0.97, (0.9, 1.05), 20)


def test_the_choice_among_depths_is_said() -> None:
    text = conclusion(tuning(depth(1, 1.2, CLEAR), depth(2, 1.5), depth(4, 1.45, NEAR)))
    first, second = text.split("\n")
    assert first == "20 prompts of smoke; an autoregressive step takes 2.00 ms here."
    assert second.startswith("x: depth 2 is best, 1.50 [1.38, 1.63]x")
    assert "(interval corrected for the choice among 3 depths)" in second
    assert second.endswith("; not told apart from depth 4.")


def test_clear_slow_and_uncertain_choices() -> None:
    assert conclusion(tuning(depth(1, 1.2, CLEAR), depth(2, 1.5))).endswith(
        "; told apart from every other depth."
    )
    assert "slower than no drafter" in conclusion(tuning(depth(1, 0.8)))
    few = conclusion(tuning(depth(1, 1.2, replace(CLEAR, n=8), 8), depth(2, 1.5, n=8)))
    assert few.endswith("; too few prompts to tell it apart from other depths.")


def test_the_tables_hold_the_curve_and_mark_the_best() -> None:
    console = Console(width=80, record=True, file=StringIO())
    console.print(*tuning_tables(tuning(depth(1, 1.2), depth(2, 1.5))))
    text = console.export_text()
    assert "2.00 [1.50, 2.50]" in text
    assert "2*" in text
    assert "1.50x" not in text
    assert "[1.40, 1.60]" in text


def test_configurations_of_one_drafter_are_told_apart() -> None:
    options = ({"tokens": 4, "n": 2}, {"tokens": 8, "n": 2})
    found = configuration_labels([*(("x", one) for one in options), ("y", {})])
    assert found == ["x (tokens=4)", "x (tokens=8)", "y"]
