import numpy as np
import pytest

from pflsweep.report import stats
from pflsweep.report.stats import gain, interval, over_clients, over_seeds, rounded


def test_t_interval_by_hand():
    # mean 0.7, s = 0.1, t(2; 0.975) = 4.302653: half = 4.302653 * 0.1 / sqrt(3)
    found = over_seeds([0.6, 0.7, 0.8])
    assert found.mean == pytest.approx(0.7)
    assert (found.low, found.high) == pytest.approx((0.7 - 0.248414, 0.7 + 0.248414), abs=1e-6)
    assert found.kind == "95% CI over 3 seeds"


@pytest.mark.parametrize(
    ("x", "decimals", "wanted"),
    [(0.4895, 3, 0.49), (np.float64(0.4895), 3, 0.49),
     (0.4895 - 1e-15, 3, 0.49), (-0.4895, 3, -0.49), (0.48949, 3, 0.489), (-0.0001, 3, 0.0),
     (2.5, 0, 3.0), (1e20, 2, 1e20), (float("inf"), 3, float("inf"))],
)  # fmt: skip
def test_halves_are_rounded_away_from_zero(x: float, decimals: int, wanted: float) -> None:
    assert rounded(x, decimals) == wanted
    assert str(rounded(x, decimals)) == str(wanted)


def test_bootstrap_of_two_clients_by_hand():
    # the mean of two draws from {0, 1} is 0, 1/2 or 1 with 1/4, 1/2, 1/4: the quantiles are the extremes
    assert over_clients([0.0, 1.0])[:3] == (0.5, 0.0, 1.0)


def test_one_client_has_no_interval():
    assert over_clients([0.7])[0] == 0.7
    assert np.isnan(over_clients([0.7])[1:3]).all()
    assert over_clients([0.7]).kind == "no interval of one client"


def test_bootstrap_is_close_to_the_normal_interval_and_repeats_itself(monkeypatch):
    x = np.random.default_rng(1).normal(0.5, 0.1, 400)
    found = over_clients(x)
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * x.std() / 20, rel=0.05)
    assert found == over_clients(x)
    monkeypatch.setattr(stats, "BLOCK", 1000)
    assert over_clients(x)[:3] == pytest.approx(found[:3], abs=0.001), "some resamples at a time"


def test_an_interval_of_nothing_is_not_a_number():
    for nothing in (over_seeds([np.nan] * 3), over_clients([np.nan])):
        assert np.isnan(nothing[:3]).all()


def test_what_an_interval_is_over():
    assert interval([np.array([0.2, 0.4])]).kind == "95% CI over clients"
    found = interval([np.array([0.2, 0.4]), np.array([0.4, 0.6])])
    assert found == (pytest.approx(0.4), pytest.approx(0.3), pytest.approx(0.5), "range of 2 seeds")


def test_no_interval_leaves_what_is_possible():
    # of 0.1, 0.5, 0.9 the t-interval would be 0.5 -+ 0.994
    assert over_seeds([0.1, 0.5, 0.9])[:3] == (pytest.approx(0.5), 0.0, 1.0)
    worse, better = np.array([-0.9, -0.5]), np.array([0.1, 0.3])
    assert gain([worse, better, better])[1:3] == (-1.0, 1.0)
    assert gain([better, better + 0.1, better])[1:3] == (
        pytest.approx(0.08991, abs=1e-5),
        pytest.approx(0.37676, abs=1e-5),
    )
    assert gain([worse, better])[1:3] == (pytest.approx(-0.7), pytest.approx(0.2))


def test_without_a_number_there_is_no_interval():
    none = np.array([np.nan, np.nan])
    for by_seed in ([none], [none, none[:0]]):
        found = gain(by_seed)
        assert np.isnan(found[:3]).all()
        assert found.kind == "95% CI over clients"
    assert interval([none, np.array([0.2, 0.4])]) == interval([np.array([0.2, 0.4])])


def test_clients_without_test_data_do_not_count():
    assert over_clients([0.5, np.nan, 0.7]).mean == pytest.approx(0.6)
    assert interval([np.array([0.5, np.nan, 0.7]), np.array([0.8, 0.8, 0.8])]).mean == pytest.approx(0.7)
