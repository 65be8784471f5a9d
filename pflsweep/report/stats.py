"""Means, intervals and paired differences: the few numbers a comparison rests on."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEVEL = 0.95
RESAMPLES = 10_000


class Interval(NamedTuple):
    """A mean with its 95% confidence interval, and what the interval is over."""

    mean: float
    low: float
    high: float
    over: str  # "clients" (bootstrap) or "seeds" (Student's t)

    @property
    def half(self) -> float:
        """Half the width: what stands after the plus-minus sign."""
        return (self.high - self.low) / 2


def over_clients(values: ArrayLike, seed: int = 0) -> Interval:
    """Percentile bootstrap of the mean over clients: how much it hangs on which clients there are."""
    x = _finite(values)
    picks = np.random.default_rng(seed).integers(len(x), size=(RESAMPLES, len(x)))
    means = x[picks].mean(axis=1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(x.mean()), float(low), float(high), "clients")


def over_seeds(values: ArrayLike) -> Interval:
    """t-interval of the mean over seeds: mean +- t(n - 1) * s / sqrt(n), s with n - 1 in the denominator."""
    from scipy.special import stdtrit  # scipy.stats would cost a second to import

    x = _finite(values)
    half = float(stdtrit(len(x) - 1, (1 + LEVEL) / 2)) * x.std(ddof=1) / len(x) ** 0.5
    return Interval(float(x.mean()), float(x.mean() - half), float(x.mean() + half), "seeds")


def interval(by_seed: list[NDArray[np.float64]]) -> Interval:
    """Of the per-client values of each seed: over seeds where there are several, else over clients."""
    if len(by_seed) > 1:
        return over_seeds([_finite(values).mean() for values in by_seed])
    return over_clients(by_seed[0])


def _finite(values: ArrayLike) -> NDArray[np.float64]:
    x = np.asarray(values, dtype=np.float64)
    return x[~np.isnan(x)]
