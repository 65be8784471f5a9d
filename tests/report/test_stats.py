import numpy as np
import pytest

from pflsweep.report.stats import interval, over_clients, over_seeds


def test_t_interval_by_hand():
    # mean 0.7, s = 0.1, t(2; 0.975) = 4.302653: half = 4.302653 * 0.1 / sqrt(3)
    found = over_seeds([0.6, 0.7, 0.8])
    assert found.mean == pytest.approx(0.7)
    assert found.half == pytest.approx(0.248414, abs=1e-6)
    assert found.over == "seeds"


def test_bootstrap_of_two_clients_by_hand():
    # the mean of two draws from {0, 1} is 0, 1/2 or 1 with 1/4, 1/2, 1/4: the quantiles are the extremes
    assert over_clients([0.0, 1.0])[:3] == (0.5, 0.0, 1.0)


def test_bootstrap_is_close_to_the_normal_interval_and_repeats_itself():
    x = np.random.default_rng(1).normal(0.5, 0.1, 400)
    found = over_clients(x)
    assert found.half == pytest.approx(1.96 * x.std() / 20, rel=0.05)
    assert found == over_clients(x)


def test_what_an_interval_is_over():
    assert interval([np.array([0.2, 0.4])]).over == "clients"
    assert interval([np.array([0.2, 0.4]), np.array([0.4, 0.6])]).over == "seeds"


def test_clients_without_test_data_do_not_count():
    assert over_clients([0.5, np.nan, 0.7]).mean == pytest.approx(0.6)
