from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from pflsweep.report.quantities import at_last, mean_curve, new_clients_accuracy, rounds_to, summary
from tests.report.records import finished


def test_summary_by_hand(tmp_path):
    found = summary(finished(tmp_path, "fedavg", [2, 4, 6, 8]))
    assert found.last == pytest.approx(0.5)
    assert (found.best, found.best_round) == (pytest.approx(0.6), 2)
    assert found.std == pytest.approx(np.sqrt(0.05))
    assert found.worst10 == pytest.approx(0.2)
    assert found.global_last == pytest.approx(0.25)
    assert found.images_per_second == pytest.approx(400)
    assert (found.floats_down, found.floats_up, found.rounds) == (1000, 1000, 3)
    assert found.seconds == pytest.approx(1.8)


def test_a_curve_of_seeds_has_what_all_of_them_have_and_the_band_that_is_asked_for():
    seeds = [pd.Series([0.1, 0.5, 0.9], index=[1, 2, 3]), pd.Series([0.7, 0.3, 0.2], index=[2, 3, 4])]
    curve = mean_curve("fedavg", seeds, lambda values: (float(min(values)) - 0.1, float(max(values)) + 0.1))
    assert [part.tolist() for part in curve[1:]] == [
        [2, 3],
        pytest.approx([0.6, 0.6]),
        pytest.approx([0.4, 0.2]),
        pytest.approx([0.8, 1.0]),
    ]
    single = mean_curve("fedavg", [each.loc[:2] for each in seeds], lambda values: (0.0, 1.0))
    assert (single.low, single.high) == (single.mean, single.mean), "a band at a single round has no area"
    for plain in (mean_curve("fedavg", seeds), mean_curve("fedavg", seeds[:1], lambda values: (0.0, 1.0))):
        assert plain.low.tolist() == plain.mean.tolist() == plain.high.tolist()


def test_the_last_number_is_that_of_the_last_evaluated_round():
    rounds = pd.DataFrame({"round": [1, 2, 3], "personal_accuracy": [0.1, 0.5, np.nan], "epsilon": [1.0, 2.0, 3.0]})
    assert at_last(SimpleNamespace(rounds=rounds), "epsilon") == 2.0


def test_a_goal_is_reached_by_a_mean_that_rounding_has_left_a_last_bit_below_it():
    thrice = np.mean([0.7, 0.7, 0.7])
    assert thrice < 0.7
    rounds = pd.DataFrame({"round": [1, 2, 3], "personal_accuracy": [0.6, thrice, 0.8]})
    assert rounds_to(SimpleNamespace(rounds=rounds), 0.7) == 2


def test_new_clients_count_alike_whatever_their_test_rows():
    """Accuracies 25% of 4 rows and 100% of 20."""
    table = pd.DataFrame({"epoch": [0, 0], "client": [7, 9], "n": [4, 20], "correct": [1, 20]})
    assert new_clients_accuracy(SimpleNamespace(new_clients=table)).tolist() == [0.625]
