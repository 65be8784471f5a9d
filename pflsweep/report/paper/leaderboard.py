"""A leaderboard: which rows of a table are ranked, over which columns, and what a search of fewer points had found."""

import math
from collections.abc import Sequence
from functools import cached_property
from math import comb
from statistics import fmean, median

import numpy as np

from pflsweep.report.paper.comparison import Cell, Comparison, title
from pflsweep.report.paper.store import CellTrials, FinishedTrial
from pflsweep.report.quantities import column as column_of
from pflsweep.report.ranks import Ranking

SHARE = 0.5  # of the methods that are begun: so many have to have a column before it is ranked


class Leaderboard:
    """The rows of a comparison, ranked over the columns that enough of them have.

    A row has a column where all seeds that anybody was asked for there are trained: means over other seeds are not
    compared.
    """

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        self.has: dict[int, set[int]] = {row: set() for row in comparison.layout.rows}  # the columns of each row
        for (row, column), cell in comparison.cells.items():
            if cell.has_number and cell.trials.finished.keys() >= set(comparison.seeds(cell.trials.setting)):
                self.has[row].add(column)
        begun = [columns for columns in self.has.values() if columns]
        every = range(len(comparison.layout.columns))
        self.columns = [at for at in every if begun and sum(at in columns for columns in begun) >= SHARE * len(begun)]
        ranked = set(self.columns)
        self.rows = [row for row, columns in self.has.items() if ranked and columns >= ranked]

    @cached_property
    def ranking(self) -> Ranking:
        """The ranking of the ranked rows, in the order of `rows`."""
        scores = [[self.comparison.cells[row, column].value.mean for row in self.rows] for column in self.columns]
        # means of the same numbers in another order differ in their last bit, and are a tie
        return Ranking(np.round(scores, 6))

    @cached_property
    def ordered(self) -> list[int]:
        """The ranked rows, the best mean rank first."""
        return [self.rows[at] for at in self.ranking.order] if self.rows else []

    @property
    def left_out(self) -> dict[str, list[str]]:
        """The rows that are begun and not ranked, with the ranked columns that they lack; where no column is ranked,
        with all that they lack.
        """
        heads = self.comparison.layout.columns
        return {
            self.label(row): [title(heads[at]) for at in self.columns or range(len(heads)) if at not in columns]
            for row, columns in self.has.items()
            if columns and row not in self.rows
        }

    @property
    def not_begun(self) -> list[str]:
        """The rows without any number."""
        return [self.label(row) for row, columns in self.has.items() if not columns]

    @property
    def other_columns(self) -> list[str]:
        """The columns that are not ranked."""
        return [title(column) for at, column in enumerate(self.comparison.layout.columns) if at not in self.columns]

    @property
    def datasets(self) -> set[str]:
        """The datasets of the ranked columns. Columns that share one are not independent."""
        return {self.comparison.layout.columns[at].dataset for at in self.columns}

    def label(self, row: int) -> str:
        return self.comparison.layout.rows[row]

    def rank(self, row: int, column: int) -> float:
        return float(self.ranking.ranks[self.columns.index(column), self.rows.index(row)])

    def mean_rank(self, row: int) -> float:
        return float(self.ranking.mean[self.rows.index(row)])

    @property
    def best(self) -> list[int]:
        """The ranked rows with the best mean rank."""
        return [self.rows[at] for at in self.ranking.best]

    @property
    def worse(self) -> list[int]:
        """The ranked rows that are significantly worse than the best."""
        return [self.rows[at] for at in self.ranking.worse]

    def cells(self, column: int) -> list[Cell]:
        """Return a column's cells of the ranked rows."""
        return [self.comparison.cells[row, column] for row in self.rows]

    @cached_property
    def images(self) -> dict[int, float]:
        """Training images of a final trial as a multiple of the median of the ranked rows, by row, averaged over the
        columns; empty if not every record says how many they are.
        """
        shares: dict[int, list[float]] = {row: [] for row in self.rows}
        for column in self.columns:
            numbers = [images(next(iter(cell.trials.finished.values()))) for cell in self.cells(column)]
            for row, number in zip(self.rows, numbers, strict=True):
                shares[row].append(number / median(numbers))
        return {row: fmean(each) for row, each in shares.items() if not math.isnan(sum(each))}

    def by_budget(self, row: int) -> list[float]:
        """Return accuracy in [0, 1] after 1, 2, ... points of the search, averaged over the ranked columns; empty if
        not every search has recorded the test accuracy of its points.
        """
        curves = [_expected(self.comparison.cells[row, column].trials) for column in self.columns]
        return [fmean(each) for each in zip(*curves, strict=False)] if all(curves) else []


def images(trial: FinishedTrial) -> float:
    """Return the training images of all rounds; NaN if the record does not have them."""
    return float(column_of(trial.rounds, "images").sum(min_count=1))


def _expected(trials: CellTrials) -> list[float]:
    """Return the expected accuracy by points of the search behind a cell; its ledger counts the points without result
    too. It is not known, and empty, where points were stopped early: pruned, or by hyperband.
    """
    tested, points = trials.tested, int(trials.group.get("points", 0))
    stopped = points - len(tested) - len(trials.failed_points) - len(trials.without_result)
    return expected_best(tested, points) if tested and stopped <= 0 else []


def expected_best(tested: Sequence[tuple[float, float]], points: int) -> list[float]:
    """Return the test accuracy of the point that scores best among k, for k = 1, 2, ..., as the mean over all ways to
    choose k of the points (Dodge et al., EMNLP 2019, who draw with replacement): a search's order is drawn, so that one
    order alone would be noise. Of equal scores each is as likely. A point without a result counts as accuracy 0.

    tested: score and test accuracy of each point that has a result. points: how many were tried.
    """
    scores = sorted({score for score, _ in tested})
    lost = points - len(tested)
    found = []
    for k in range(1, points + 1):
        total = 0.0
        for score in scores:
            below = lost + sum(other < score for other, _ in tested)
            same = [test for other, test in tested if other == score]
            total += (comb(below + len(same), k) - comb(below, k)) / comb(points, k) * math.fsum(same) / len(same)
        found.append(total)
    return found
