"""When our number agrees with the published one, and when an order of methods does.

The published std is often over clients or models, and then far larger than what another seed would change: FedMGDA+'s
0.208 would pass for FedPG's published 0.364. So only standard errors over seeds widen what counts as the same number.
"""

import math
import re
from itertools import combinations

from pflsweep.report.paper.published import Printed
from pflsweep.report.stats import standard_error

POINTS = {"percent": 1.0, "fraction": 0.01}  # one point, in each unit of an accuracy
NEAR = 2  # points within which two numbers agree
EPS = 1e-9  # printed decimals are not exact in binary


def in_points(difference: float, unit: str) -> float | None:
    """Return a difference in points; None if the unit is that of no accuracy."""
    return difference / POINTS[unit] if unit in POINTS else None


def tolerance(printed: Printed, decimals: int, std: float | None, seeds: int) -> float:
    """Return how far our number may be from the published one and agree with it.

    That is 2 points, or half of the last of `decimals` where the unit is that of no accuracy; or twice the standard
    error of the difference, where both stds are known over seeds and that is more. std: our std over `seeds` seeds.
    """
    least = NEAR * POINTS[printed.unit] if printed.unit in POINTS else 0.5 * 10**-decimals
    runs = re.fullmatch(r"(?:runs|seeds)(\d+)", printed.std_over)
    if runs is None or printed.std is None or std is None:
        return least + EPS
    return max(least, 2 * standard_error(std, seeds, printed.std, int(runs[1]))) + EPS


def kendall(pairs: list[tuple[float, float]], apart: float) -> float:
    """Return Kendall's tau of (ours, printed) over the pairs that the paper separates by more than `apart`.

    That is the share in our order minus the share in the reverse one; NaN if the paper separates none.
    """
    signs = []
    for (ours, printed), (other, printed_other) in combinations(pairs, 2):
        if abs(printed - printed_other) > apart + EPS:  # False for two that are both infinite
            higher, lower = (ours, other) if printed > printed_other else (other, ours)
            # Means of as many right answers may differ in the last bit
            signs.append((higher > lower + EPS) - (higher < lower - EPS))
    return sum(signs) / len(signs) if signs else math.nan
