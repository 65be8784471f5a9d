"""Winners of searches that are at an end of what was tried."""

from typing import Any

import pytest

from pflsweep.records.edges import describe_edge, describe_equal, equal_points, find_edges


def group(key: str, value: Any, grid: Any, span: list[Any] | None = None) -> dict[str, Any]:
    ranges = {} if span is None else {"ranges": {key: span}}
    return {"winner": {key: value}, "space": {key: grid}, **ranges}


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (group("train.lr", 0.1, [0.01, 0.1, 0.03]), "largest"),
        (group("train.lr", 0.01, [0.01, 0.1, 0.03]), "smallest"),
        (group("train.lr", 0.03, [0.01, 0.1, 0.03]), None),
        (group("train.lr", 0.1, [0.1]), None),
        (group("train.lr_of", "round", ["round", "last_turn"]), None),
        (group("algorithm.mu", 0, [0, 1]), None),
        (group("algorithm.layers", 1, [1, 2]), None),
        (group("algorithm.layers", 2, [1, 2]), "largest"),
        (group("train.participation", 1.0, [0.5, 1.0]), None),
        (group("algorithm.beta", 1.0, [0.5, 1.0]), None),
        (group("algorithm.beta", 0.5, [0.5, 1.0]), "smallest"),
        (group("algorithm.on", True, [True, False]), None),
        (group("algorithm.mu", 10, [None, 10, 5]), "largest"),
        (group("train.lr", 0.095, [0.001, 0.1], [0.001, 0.1, True]), "largest"),
        (group("train.lr", 0.09, [0.001, 0.1], [0.001, 0.1, True]), None),
        (group("train.lr", 0.0015, [0.001, 0.1], [0.001, 0.1, False]), "smallest"),
        (group("train.lr", 0.0015, [0.001, 0.1], [0.001, 0.1, True]), None),
        (group("train.participation", 0.99, [0.1, 1.0], [0.1, 1.0, False]), None),
    ],
)
def test_a_winner_at_an_end_that_could_be_widened_is_found(found: dict[str, Any], wanted: str | None) -> None:
    assert next(iter(find_edges(found).values()), None) == wanted


@pytest.mark.parametrize(
    ("equal", "wanted"),
    [((1, 2), {}), ((1, 2, 3), {}), ((2, 1, 3), {}), ((1, 3), {}), ((1,), {"train.lr": "smallest"})],
)
def test_an_end_is_none_where_a_point_elsewhere_is_as_good(equal: tuple[int, ...], wanted: dict[str, str]) -> None:
    tried = [{"point": {"train.lr": lr}, "value": 0.5 if lr in equal else 0.4} for lr in (1, 2, 3)]
    searched = {**group("train.lr", equal[0], [1, 2, 3]), "tried": tried, "winner_value": 0.5}
    assert find_edges(searched) == wanted
    assert [point["train.lr"] for point in equal_points(searched)] == [equal[0], *sorted(equal[1:])]
    assert describe_equal(searched) == ("" if len(equal) == 1 else f" (the first of {len(equal)} equal)")


def test_points_that_agree_in_a_key_share_its_end() -> None:
    points = [{"train.lr": lr, "algorithm.mu": mu} for lr in (1, 2) for mu in (3, 4)]
    searched = {
        "space": {"train.lr": [1, 2], "algorithm.mu": [3, 4]},
        "tried": [{"point": point, "value": 0.5 if point["train.lr"] == 2 else 0.4} for point in points],
        "winner": {"train.lr": 2, "algorithm.mu": 3},
        "winner_value": 0.5,
    }
    assert find_edges(searched) == {"train.lr": "largest"}


def test_a_draw_from_a_range_is_near_its_end_and_not_the_largest_that_was_tried() -> None:
    drawn, listed = group("train.lr", 0.0874, [0.1], [0.001, 0.1, True]), group("train.lr", 0.1, [0.01, 0.1])
    assert describe_edge(drawn, "train.lr", "largest") == "near the largest value of its range"
    assert describe_edge(listed, "train.lr", "largest") == "the largest value tried"


def test_a_search_without_a_winner_has_no_end() -> None:
    assert find_edges({"winner": None, "space": {"train.lr": [1, 2]}, "config": {}}) == {}
