"""Find what a search leaves open: points as good as its winner, and ends of what was tried, beyond which a point may be
better.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pflsweep.config import options
from pflsweep.config.keys import as_override, is_number

# Share of a range, on its own scale, that counts as its end: a draw hardly ever hits the end itself
NEAR = 0.02
# The usual bounds of a method's hyperparameters: of shares, weights and counts. Its class is not asked, since reports
# would have to import PyTorch with it
USUAL = {"smallest": (0, 1), "largest": (1,)}


def equal_points(group: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the points of a search that have the winner's score, the winner first; [] without one.

    group: of a ledger. The winner is the first of them in the order in which the search tries its points.
    """
    winner = group.get("winner")
    if not winner:
        return []
    tried = [each["point"] for each in group.get("tried", []) if each["value"] == group["winner_value"]]
    return [winner, *(point for point in tried if point != winner)]


def find_edges(group: Mapping[str, Any]) -> dict[str, str]:
    """Return by key of a winner "largest" or "smallest" where its value is an end of what its search has tried.

    group: of a ledger. An axis that has a range in `ranges` (older ledgers have none) counts from NEAR of its end on,
    and any other by its grid. Ends that a hyperparameter cannot pass, such as 0 of a weight, are left out, and those
    at which an equal point is not.
    """
    found = {}
    equal = equal_points(group)
    for key, value in (group.get("winner") or {}).items():
        sides = {_side(group, key, point[key]) for point in equal}
        if len(sides) == 1 and (side := sides.pop()):
            ranges = group.get("ranges", {})
            end = ranges[key][side == "largest"] if key in ranges else value
            if not _is_bound(key, end, side):
                found[key] = side
    return found


def describe_equal(group: Mapping[str, Any]) -> str:
    """Return in brackets that a winner is the first of several equal points; "" where it is the only one. group: of a
    ledger.
    """
    count = len(equal_points(group))
    return f" (the first of {count} equal)" if count > 1 else ""


def describe_edge(group: Mapping[str, Any], key: str, side: str) -> str:
    """Return where a winner's value is as a part of a sentence. A draw from a range is near its end, and rarely at it.

    group: of a ledger. side: as `find_edges` returns it.
    """
    return f"near the {side} value of its range" if key in group.get("ranges", {}) else f"the {side} value tried"


def describe_edges(group: Mapping[str, Any]) -> list[str]:
    """Return the values of a winner that are at an end, each as a part of a sentence. group: of a ledger."""
    return [
        f"{key}={as_override(group['winner'][key])} is {describe_edge(group, key, side)}"
        for key, side in find_edges(group).items()
    ]


def _side(group: Mapping[str, Any], key: str, value: Any) -> str:
    """Return which end of what a search has tried of a key a value is; "" if none."""
    ranges = group.get("ranges", {})
    return _side_of_range(value, *ranges[key]) if key in ranges else _side_of_grid(value, group["space"].get(key))


def _side_of_grid(value: Any, grid: Any) -> str:
    """Return which end of a grid a value is; "" if none, or if the grid has no two numbers."""
    numbers = [each for each in grid if is_number(each)] if isinstance(grid, Sequence) else []
    if not is_number(value) or len(numbers) < 2:
        return ""
    return "largest" if value == max(numbers) else "smallest" if value == min(numbers) else ""


def _side_of_range(value: Any, low: float, high: float, log: bool) -> str:
    """Return which end of a range a value is at; "" if none."""
    if not is_number(value):
        return ""
    at, first, last = (math.log(each) if log else each for each in (value, low, high))
    share = (at - first) / (last - first)
    return "largest" if share >= 1 - NEAR else "smallest" if share <= NEAR else ""


def _is_bound(key: str, end: float, side: str) -> bool:
    """Return whether a key cannot have a value beyond an end."""
    rule = options.rules().get(key)
    return end in USUAL[side] if rule is None else end == (rule.high if side == "largest" else rule.low)
