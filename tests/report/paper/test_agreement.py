"""When a number agrees with the published one, by hand."""

import math

import pytest

from pflsweep.report.paper.agreement import in_points, kendall, tolerance
from pflsweep.report.paper.published import Printed


def line(unit: str = "percent", std: float | None = None, std_over: str = "") -> Printed:
    return Printed(1, "A", "cifar10", "cnn", "pat2", "acc", "a", "50", 50.0, std, str(std), unit, False, std_over)


@pytest.mark.parametrize(
    ("printed", "std", "seeds", "wanted"),
    [
        (line(), None, 1, 2.0),
        (line("fraction"), None, 1, 0.02),
        # A printed std that is not over seeds
        (line("fraction", 0.14, "personalized_models"), 0.1, 5, 0.02),
        (line("percent", 6.0, "clients"), 10.0, 4, 2.0),
        # 2 sqrt(16 + 9)
        (line("percent", 8.0, "runs4"), 6.0, 4, 10.0),
        # One seed of ours has no std
        (line("percent", 8.0, "seeds4"), None, 1, 2.0),
        # 0.5 is less than the least limit of 2 points
        (line("percent", 0.4, "seeds4"), 0.3, 4, 2.0),
        # Numbers have to be the same with one decimal
        (line("rounds"), None, 3, 0.05),
    ],
)
def test_what_is_near_enough(printed: Printed, std: float | None, seeds: int, wanted: float) -> None:
    assert tolerance(printed, 1, std, seeds) == pytest.approx(wanted, abs=1e-8)


def test_points_are_of_accuracies() -> None:
    assert (in_points(3.0, "percent"), in_points(0.03, "fraction"), in_points(3.0, "min")) == (3.0, 0.03 / 0.01, None)


def test_kendalls_tau_is_over_pairs_that_print_tells_apart() -> None:
    """Of six pairs print separates five by more than a point; of these one is reversed, and one is a tie in ours."""
    pairs = [(10.0, 50.0), (20.0, 50.9), (30.0, 60.0), (30.0, 70.0)]  # ours, printed
    assert kendall(pairs, 1.0) == pytest.approx(4 / 5)
    # The third is now below the second
    pairs[2] = (15.0, 60.0)
    assert kendall(pairs, 1.0) == pytest.approx((4 - 1) / 5)
    assert kendall(pairs, 0.5) == pytest.approx((5 - 1) / 6)
    assert math.isnan(kendall(pairs[:2], 1.0))
    pairs[2] = (30.0 - 1e-14, 60.0)
    assert kendall(pairs, 1.0) == pytest.approx(4 / 5), "a tie, but for the last bit"
    assert kendall([(1.0, math.inf), (2.0, math.inf), (3.0, 4.0)], 0.0) == -1.0
