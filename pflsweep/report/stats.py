"""Means, intervals and paired differences: the few numbers a comparison rests on."""

import math
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

CONFIDENCE = 0.95
RESAMPLES = 10_000
BLOCK = 1 << 24  # numbers that are drawn at once: all resamples of up to 1,677 clients
# With two seeds t(1) is 12.7: the interval of two accuracies 25 points apart would be 317 points wide
FEW = 3  # seeds; of fewer there is no interval over seeds, only their range


class Interval(NamedTuple):
    """A mean with an interval of possible values, and what the interval is."""

    mean: float
    low: float
    high: float
    kind: str  # what a table's heading says


def mean_std(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the sample standard deviation (n - 1): of seeds, wherever a page shows them.

    The deviation of one value, or where a value is infinite, is NaN; of no value the mean is NaN too.
    """
    mean = fmean(values) if len(values) else math.nan
    return mean, stdev(values) if len(values) > 1 and math.isfinite(mean) else math.nan


def rounded(x: float, decimals: int) -> float:
    """Return a number with so many decimals, halves away from zero.

    Two means of the same numbers may differ in the last bit, so that one is below a half and one above. So what counts
    are nine decimals.
    """
    if not abs(x) < 1e15:  # NaN, infinite, or without decimals
        return x
    exact = Decimal(repr(round(float(x), 9)))
    return float(exact.quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP)) + 0.0  # no minus zero


def standard_error(std: float, n: int, other_std: float, other_n: int) -> float:
    """Return the standard error of the difference of two means, of n and other_n values; NaN if a std is."""
    return math.hypot(std / math.sqrt(n), other_std / math.sqrt(other_n))


def over_clients(values: ArrayLike) -> Interval:
    """Return the percentile bootstrap of the mean over clients: how much it hangs on which clients there are. Without
    a number all three are NaN, and of a single client the bounds.
    """
    x, kind = _without_nan(values), f"{CONFIDENCE:.0%} CI over clients"
    if len(x) == 1:
        return Interval(float(x[0]), math.nan, math.nan, "no interval of one client")
    if not len(x):
        return Interval(math.nan, math.nan, math.nan, kind)
    draws, means = np.random.default_rng(0), np.empty(RESAMPLES)
    # Some resamples at a time where there are many clients, since all together take 160 kB a client
    rows = max(1, BLOCK // len(x))
    for start in range(0, RESAMPLES, rows):
        part = means[start : start + rows]
        part[:] = x[draws.integers(len(x), size=(len(part), len(x)))].mean(axis=1)
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(float(x.mean()), float(low), float(high), kind)


def over_seeds(values: ArrayLike, least: float = 0.0, most: float = 1.0) -> Interval:
    """Return the t-interval of the mean over seeds: mean +- t(n - 1) * s / sqrt(n), s with n - 1 in the denominator; of
    fewer than FEW seeds their range. least, most: possible values of a mean, which the interval does not leave. Without
    a number all three are NaN.
    """
    from scipy.special import stdtrit  # scipy.stats would cost a second to import

    x = _without_nan(values)
    mean, std = mean_std(x.tolist())
    if len(x) < FEW:
        low, high = (x.min(), x.max()) if len(x) else (math.nan, math.nan)
        return Interval(mean, float(low), float(high), f"range of {len(x)} seeds")
    half = float(stdtrit(len(x) - 1, (1 + CONFIDENCE) / 2)) * std / len(x) ** 0.5
    return Interval(mean, max(mean - half, least), min(mean + half, most), f"{CONFIDENCE:.0%} CI over {len(x)} seeds")


def interval(by_seed: list[NDArray[np.float64]], least: float = 0.0, most: float = 1.0) -> Interval:
    """Return the interval of a mean of per-client values, one array per seed: over seeds where several have a number,
    else over clients. least, most: as for `over_seeds`.
    """
    known = [x for values in by_seed if len(x := _without_nan(values))]
    if len(known) > 1:
        return over_seeds([x.mean() for x in known], least, most)
    return over_clients(known[0] if known else [])


def gain(by_seed: list[NDArray[np.float64]]) -> Interval:
    """Return the interval of a mean difference of accuracies, which lies in [-1, 1]."""
    return interval(by_seed, -1.0, 1.0)


def _without_nan(values: ArrayLike) -> NDArray[np.float64]:
    """Return the values without NaN, as an array. Infinite ones stay."""
    x = np.asarray(values, dtype=np.float64)
    return x[~np.isnan(x)]
