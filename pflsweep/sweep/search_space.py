"""Search spaces: the axes along which a method's hyperparameters are tried."""

import itertools
import math
from collections import Counter
from typing import Any, NamedTuple

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from pflsweep.config.keys import is_number
from pflsweep.util.errors import UserError, nearest

KEYS = ("grid", "range", "log", "source")
LARGEST_GRID = 1_000_000  # combinations of values, of which `tune.points` may take some


class Axis(NamedTuple):
    """One hyperparameter. A grid search tries `grid`; other samplers draw from `range` where there is one."""

    grid: list[Any]
    range: tuple[float, float] | None  # None: only values of the grid are possible
    log: bool
    source: str  # the paper and place that state it, or `ours`

    @property
    def distribution(self) -> BaseDistribution:
        """Return the distribution that samplers draw from. Axes of whole numbers give whole numbers."""
        if self.range is None:
            return CategoricalDistribution([_label(value) for value in self.grid])
        if all(isinstance(value, int) for value in (*self.grid, *self.range)):
            return IntDistribution(int(self.range[0]), int(self.range[1]), log=self.log)
        return FloatDistribution(float(self.range[0]), float(self.range[1]), log=self.log)

    def value(self, drawn: Any) -> Any:
        """Convert a draw to a value of the config."""
        if self.range is None:
            return next(value for value in self.grid if _label(value) == drawn)
        # Optuna makes 1.0 of the whole number 1 of a grid such as [1, 0.5], which may be another trial
        if drawn in self.grid:
            return self.grid[self.grid.index(drawn)]
        if not isinstance(drawn, float):
            return drawn
        # Four digits keep names short, and no result depends on a fifth
        low, high = self.range
        return min(max(float(f"{drawn:.4g}"), low), high)


Space = dict[str, Axis]  # by full config key
Point = dict[str, Any]  # by full config key, the values of a config


def parse_axis(key: Any, content: Any, file: str) -> Axis:
    """Parse an axis of a sweep file. Raises UserError if it is not valid."""
    where = f"{file}: {key}"
    if not isinstance(key, str):
        raise UserError(
            f"{where} is not a key, such as train.lr (YAML reads on, off, yes, no as true and false: quote it)."
        )
    if not isinstance(content, dict):
        raise UserError(f"{where}: an axis is written as `grid: [values]`, with range, log and source beside it.")
    for name in content:
        if name not in KEYS:
            raise UserError(
                f"{where}.{name} is unknown.{nearest(str(name), list(KEYS))} It may have: {', '.join(KEYS)}."
            )
    grid = content.get("grid")
    if not isinstance(grid, list) or not grid:
        raise UserError(f"{where}.grid is {grid!r}: it has to be a list of at least one value.")
    if len({repr(value) for value in grid}) < len(grid):
        raise UserError(f"{where}.grid names a value twice: {grid}.")
    numeric = all(map(is_number, grid))
    span = content.get("range") or ([min(grid), max(grid)] if numeric and len(grid) > 1 else None)
    log = content.get("log", False)
    if span is not None:
        _check_span(span, log, where, numeric)
        outside = [value for value in grid if not span[0] <= value <= span[1]]
        if outside:
            raise UserError(f"{where}.range is {span}, but its grid has {outside[0]}: it has to hold the whole grid.")
    if not isinstance(log, bool):
        raise UserError(f"{where}.log is {log!r}: it has to be true or false.")
    return Axis(grid, tuple(span) if span else None, log, str(content.get("source", "ours")))


def _check_span(span: Any, log: bool, where: str, numeric: bool) -> None:
    """Raise UserError if a range is not valid. numeric: whether all values of the grid are numbers."""
    pair = isinstance(span, list) and len(span) == 2 and all(type(v) in (int, float) for v in span)
    if not pair or not span[0] < span[1] or not all(map(math.isfinite, span)):
        raise UserError(f"{where}.range is {span!r}: it has to be two numbers [lowest, highest].")
    if not numeric:
        raise UserError(f"{where}.range: its grid has values that are no numbers, so there is nothing between them.")
    if log and span[0] <= 0:
        raise UserError(f"{where}.log is true, so its range has to be above 0, not from {span[0]:g}.")


def grid_points(space: Space, limit: int | None = None) -> list[Point]:
    """Return all combinations of the axes' grids, the last axis fastest; with `limit`, that many of them, spread.

    Raises UserError on more than LARGEST_GRID combinations.
    """
    grids = [axis.grid for axis in space.values()]
    if (count := math.prod(map(len, grids))) > LARGEST_GRID:
        sizes = ", ".join(f"{len(axis.grid)} of {key}" for key, axis in space.items())
        raise UserError(
            f"tune=grid: {count:,} combinations ({sizes}) are more than {LARGEST_GRID:,}. Give the axes fewer values, "
            "or use tune=random with tune.points."
        )
    found = [dict(zip(space, values, strict=True)) for values in itertools.product(*grids)]
    if limit is None or limit >= len(found):
        return found
    places = _spread([len(grid) for grid in grids], limit)
    return [{key: grid[k] for key, grid, k in zip(space, grids, place, strict=True)} for place in places]


def _spread(sizes: list[int], count: int) -> list[tuple[int, ...]]:
    """Return `count` places of a grid in which the values of each axis occur equally often, as nearly as that can be,
    and then the pairs of values of two axes. Every k-th place would leave values out, or try one only beside another.

    sizes: numbers of values, by axis. An axis with more values than places is thinned evenly.
    """
    import numpy as np

    shown = [np.linspace(0, size - 1, min(size, count)).round().astype(int) for size in sizes]
    # Of places that are equally good the first is taken: in the grid's order the values of all axes would rise together
    places = np.random.default_rng(0).permutation(np.array(list(itertools.product(*shown))))
    groups = [(axis,) for axis in range(len(sizes))], list(itertools.combinations(range(len(sizes)), 2))
    used = {axes: np.zeros([sizes[axis] for axis in axes], int) for group in groups for axes in group}
    left = np.ones(len(places), bool)
    for _ in range(count):
        nothing = np.zeros(len(places), int)
        values, pairs = (sum((used[axes][tuple(places[:, axes].T)] for axes in group), nothing) for group in groups)
        best = np.lexsort((pairs, values, ~left))[0]
        left[best] = False
        for axes in used:
            used[axes][tuple(places[best, axes])] += 1
    return sorted(tuple(map(int, place)) for place in places[~left])


def params_of(space: Space, point: Point) -> dict[str, Any]:
    """Convert a point to Optuna's params."""
    return {key: _label(point[key]) if axis.range is None else point[key] for key, axis in space.items()}


def _label(value: Any) -> Any:
    """Return a value in a form that Optuna accepts as a category: lists become text."""
    return str(value) if isinstance(value, list) else value


def point_text(point: Point) -> str:
    """Return a point as short text: `lr=0.1 share=0.8`, with full keys where two short ones would be the same.

    Numbers have four digits: samplers draw all 17, which would make names long.
    """
    times = Counter(key.rpartition(".")[2] for key in point)
    words = {key: key if times[short := key.rpartition(".")[2]] > 1 else short for key in point}
    return " ".join(f"{words[k]}={f'{v:.4g}' if isinstance(v, float) else v}" for k, v in point.items())


def ranges(space: Space, sampler: str) -> dict[str, list[Any]]:
    """Return by key [lowest, highest, log] of the axes that a sampler draws from; {} for a grid search."""
    if sampler in ("grid", "none"):
        return {}
    return {key: [*axis.range, axis.log] for key, axis in space.items() if axis.range is not None}


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """Return by key the distribution that Optuna's samplers draw from."""
    return {key: axis.distribution for key, axis in space.items()}
