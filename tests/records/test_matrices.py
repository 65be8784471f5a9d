"""Small matrices that are kept over the rounds."""

import numpy as np
import pytest

from pflsweep.records import matrices


def run(rounds: range, arrays: dict[str, np.ndarray] | None = None, size: int = 3) -> dict[str, np.ndarray]:
    arrays = arrays or {}
    for round in rounds:
        arrays = matrices.append_round(arrays, {"P": np.full((size, size), float(round))}, round)
    return arrays


def test_all_rounds_of_a_short_run() -> None:
    rounds, stack = matrices.over_rounds(run(range(1, 21)), "P")
    assert rounds.tolist() == list(range(1, 21))
    assert stack[:, 0, 0].tolist() == list(range(1, 21))
    assert (stack.dtype, stack.shape) == (np.float32, (20, 3, 3))


def test_a_long_run_is_thinned_evenly() -> None:
    for last, step in ((64, 1), (65, 2), (129, 2), (130, 4), (300, 8)):
        rounds, stack = matrices.over_rounds(run(range(1, last + 1)), "P")
        assert rounds.tolist() == list(range(step, last + 1, step)), last
        assert stack[:, 0, 0].tolist() == rounds.tolist()


@pytest.mark.parametrize(("stopped", "checkpoint"), [(70, 64), (64, 64), (200, 130), (299, 1), (140, 0)])
def test_a_run_that_was_stopped_ends_like_one_that_was_not(stopped: int, checkpoint: int) -> None:
    """A stopped run has tables ahead of its checkpoint, which have been thinned already."""
    whole = run(range(1, 301))
    torn = run(range(checkpoint + 1, 301), matrices.upto(run(range(1, stopped + 1)), checkpoint))
    assert whole.keys() == torn.keys()
    for name, array in whole.items():
        assert array.tobytes() == torn[name].tobytes(), name


def test_large_matrices_and_those_that_change_shape() -> None:
    arrays = run(range(1, 4), size=33)
    assert set(arrays) == {"P"}
    assert len(matrices.over_rounds(arrays, "P")[0]) == 0
    grown = matrices.append_round(run(range(1, 4), size=3), {"P": np.ones((3, 4))}, 4)
    assert grown["P@round"].tolist() == [4]


def test_a_run_that_is_read_as_of_an_earlier_round_shows_that_rounds_matrix() -> None:
    # With 100 rounds every other one is kept
    arrays = run(range(1, 101))
    cut = matrices.cut(arrays, 50)
    assert cut["P"].tolist() == np.full((3, 3), 50.0).tolist()
    assert matrices.over_rounds(cut, "P")[0].tolist() == list(range(2, 51, 2))
    assert "P" not in matrices.cut(arrays, 51), "not kept, so not known"
    assert matrices.cut(run(range(1, 4), size=33), 2) == {}
