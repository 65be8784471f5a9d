"""Winners of searches that are at an end of what was tried."""

from typing import Any

import pytest

from pflsweep.records.edges import find_edges


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


def test_a_search_without_a_winner_has_no_end() -> None:
    assert find_edges({"winner": None, "space": {"train.lr": [1, 2]}, "config": {}}) == {}
