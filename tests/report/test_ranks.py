"""Ranks, Friedman's test and Nemenyi's critical difference, compared with hand calculations and Demsar's numbers."""

import math

import numpy as np
import pytest
from scipy.stats import friedmanchisquare

from pflsweep.report.ranks import Ranking, critical_difference

# Demsar (JMLR 2006), table 6: AUC of C4.5, C4.5+m, C4.5+cf and C4.5+m+cf on 14 datasets; of voting the last is printed
# as 0.975, with a rank of 3: its tie is one of rounding
TABLE_6 = np.array([
    [0.763, 0.768, 0.771, 0.798], [0.599, 0.591, 0.590, 0.569], [0.954, 0.971, 0.968, 0.967],
    [0.628, 0.661, 0.654, 0.657], [0.882, 0.888, 0.886, 0.898], [0.936, 0.931, 0.916, 0.931],
    [0.661, 0.668, 0.609, 0.685], [0.583, 0.583, 0.563, 0.625], [0.775, 0.838, 0.866, 0.875],
    [1.000, 1.000, 1.000, 1.000], [0.940, 0.962, 0.965, 0.962], [0.619, 0.666, 0.614, 0.669],
    [0.972, 0.981, 0.975, 0.9749], [0.957, 0.978, 0.946, 0.970],
])  # fmt: skip
# three methods in four columns; their ranks are 1 2 3, 1 3 2, 2 1 3, 1 2 3
BY_HAND = np.array([[0.9, 0.8, 0.7], [0.6, 0.4, 0.5], [0.5, 0.7, 0.1], [0.3, 0.2, 0.1]])


def test_ranks_and_friedman_by_hand() -> None:
    of = Ranking(BY_HAND)
    assert of.ranks.tolist() == [[1, 2, 3], [1, 3, 2], [2, 1, 3], [1, 2, 3]]
    assert of.mean.tolist() == [1.25, 2.0, 2.75]
    # 12 * 4 / (3 * 4) * (1.25^2 + 2^2 + 2.75^2 - 3 * 4^2 / 4) = 4 * 1.125; p of two degrees of freedom is exp(-x / 2)
    assert of.friedman == (pytest.approx(4.5), pytest.approx(math.exp(-2.25)))
    assert of.friedman == tuple(friedmanchisquare(*BY_HAND.T))
    assert (of.order, of.best, of.differ, of.worse) == ([0, 1, 2], [0], False, [])


def test_equal_scores_share_their_ranks() -> None:
    of = Ranking(np.array([[0.5, 0.5, 0.2, 0.5], [0.1, 0.4, 0.4, 0.0]]))
    assert of.ranks.tolist() == [[2, 2, 4, 2], [3, 1.5, 1.5, 4]]


def test_demsars_example() -> None:
    of = Ranking(TABLE_6)
    assert of.mean.round(3).tolist() == [3.143, 2.000, 2.893, 1.964]
    assert of.friedman == tuple(friedmanchisquare(*TABLE_6.T))
    assert 12 * 14 / (4 * 5) * (sum(of.mean**2) - 4 * 5**2 / 4) == pytest.approx(9.28, abs=0.005), "as he prints it"
    assert 9.28 < of.friedman[0] == pytest.approx(10.23, abs=0.005), "corrected for the ties of three datasets"
    assert of.critical_difference == pytest.approx(1.25, abs=0.005)
    assert of.order == [3, 1, 2, 0]
    assert of.worse == [], "of C4.5 he says, too, that it is 1.18 away: not enough against the best alone"


@pytest.mark.parametrize(("methods", "q"), [(2, 1.960), (3, 2.343), (4, 2.569), (5, 2.728), (9, 3.102), (10, 3.164)])
def test_the_quantiles_are_those_of_demsars_table_5(methods: int, q: float) -> None:
    assert critical_difference(methods, 1) / math.sqrt(methods * (methods + 1) / 6) == pytest.approx(q, abs=1e-3)


def test_the_worse_are_those_beyond_the_critical_difference() -> None:
    columns = 12
    scores = np.tile([0.9, 0.8, 0.7, 0.6], (columns, 1))
    of = Ranking(scores)
    assert of.differ
    assert of.critical_difference == pytest.approx(2.569 * math.sqrt(4 * 5 / (6 * columns)), abs=1e-3)  # 1.354
    assert of.worse == [2, 3]


@pytest.mark.parametrize("scores", [np.ones((1, 4)), np.eye(3)[:, :2], np.ones((5, 4)), np.array([[0.1, 0.2, 0.3]])])
def test_what_cannot_be_tested_is_not(scores: np.ndarray) -> None:
    of = Ranking(scores)
    assert math.isnan(of.friedman[0])
    assert math.isnan(of.critical_difference)
    assert (of.differ, of.worse) == (False, [])
    assert of.best == [method for method, rank in enumerate(of.mean) if rank == min(of.mean)]
