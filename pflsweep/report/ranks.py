"""Compare methods over several columns by their ranks: Friedman's test and Nemenyi's critical difference.

Demsar: Statistical Comparisons of Classifiers over Multiple Data Sets. JMLR 7 (2006), section 3.2. A column is a
data set of Demsar's: it counts once, however many seeds its accuracies are means of, since seeds of one column are no
independent evidence about another. Columns that are partitions of one dataset are not independent either, though the
test assumes it: the page says so.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
SIGNIFICANCE = 0.05  # of both tests


@dataclass(frozen=True)
class Ranking:
    """Methods over columns in which each of them has a score. scores: [columns, methods], the higher the better.
    Methods are known by their place in it.
    """

    scores: Array

    @cached_property
    def ranks(self) -> Array:
        """[columns, methods]: 1 is the best of a column; equal scores share the mean of their ranks."""
        from scipy.stats import rankdata

        return np.asarray(rankdata(-self.scores, axis=1))

    @cached_property
    def mean(self) -> Array:
        """Mean rank of each method over the columns."""
        return np.asarray(self.ranks.mean(axis=0))

    @property
    def order(self) -> list[int]:
        """The methods, the best mean rank first; of equals as they stand."""
        return [int(method) for method in np.argsort(self.mean, kind="stable")]

    @cached_property
    def friedman(self) -> tuple[float, float]:
        """Friedman's chi-squared, corrected for ties, and its p; NaN if there is nothing to test: fewer than three
        methods or two columns, or all methods equal in each column.
        """
        columns, methods = self.scores.shape
        if methods < 3 or columns < 2 or np.ptp(self.ranks, axis=1).max() == 0:
            return math.nan, math.nan
        from scipy.stats import friedmanchisquare

        found = friedmanchisquare(*self.scores.T)
        return float(found.statistic), float(found.pvalue)

    @property
    def differ(self) -> bool:
        """Return whether Friedman's test finds that not all methods are equal, without which no pair is compared."""
        return self.friedman[1] < SIGNIFICANCE

    @cached_property
    def critical_difference(self) -> float:
        """How far apart two mean ranks have to be; NaN if Friedman's test has nothing to test."""
        columns, methods = self.scores.shape
        return math.nan if math.isnan(self.friedman[1]) else critical_difference(methods, columns)

    @property
    def best(self) -> list[int]:
        """The methods with the best mean rank, most often one."""
        return [method for method in self.order if self.mean[method] == self.mean.min()]

    @property
    def worse(self) -> list[int]:
        """The methods that are significantly worse than the best one: their mean ranks are at least the critical
        difference behind it, and Friedman's test finds a difference at all.
        """
        behind = self.mean - self.mean.min()
        return [method for method in self.order if self.differ and behind[method] >= self.critical_difference]


def critical_difference(methods: int, columns: int) -> float:
    """Return Nemenyi's q * sqrt(k * (k + 1) / (6 * N)) for k methods and N columns (Demsar's page 9). q is the quantile
    of the Studentized range with infinitely many degrees of freedom, divided by the root of 2.
    """
    from scipy.stats import studentized_range

    q = float(studentized_range.isf(SIGNIFICANCE, methods, np.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * columns))
