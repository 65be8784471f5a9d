"""Helpers of the partitions: checks of their options, and the split of a client's rows into training and test rows."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pflsweep.data.dataset import Dataset, Rows
from pflsweep.ops.random import generator
from pflsweep.util.errors import UserError


def require(right: bool, option: str, value: Any, rule: str) -> None:
    """Raise UserError with an option's full name and value unless `right`. rule: what would be right."""
    if not right:
        raise UserError(f"partition.{option} is {value!r}: {rule}.")


def check_clients(clients: int, samples: int, counted: str) -> None:
    """Raise UserError unless there is at least one client, and at least one of what is `counted` for each."""
    require(clients >= 1, "clients", clients, "it must be at least 1")
    require(clients <= samples, "clients", clients, f"there are only {samples} {counted}, and each client needs one")


def check_alpha(alpha: float) -> None:
    """Raise UserError unless a Dirichlet distribution can have this concentration: positive and finite."""
    right = 0 < alpha < math.inf
    require(right, "alpha", alpha, "it must be greater than 0 (small: uneven; large: all alike)")


def check_least(least: int, samples: int, clients: int) -> None:
    """Raise UserError unless each client can have at least `least` samples, and `least` is positive."""
    even = samples // clients
    rule = f"it must be 1 to {even} ({samples} samples, {clients} clients)"
    if 1 <= least <= samples:
        rule += f". With so many samples each there are at most {samples // least} clients (partition.clients)"
    require(1 <= least <= even, "least", least, rule)


def check_owner(dataset: Dataset, option: str, what: str) -> np.ndarray:
    """Return the natural client of each row, [n] int64. Raises UserError if the dataset has none.

    option: the partition's name. what: what the owners are, such as clients or domains.
    """
    if dataset.owner is None:
        raise UserError(
            f"partition={option} needs a dataset with {what} of its own, which {dataset.name} has not. Use another "
            f"dataset, name the column of the {what} (partition.column, with dataset=csv, npz or huggingface), or use "
            "another partition, such as dirichlet (`pflsweep list partitions`)."
        )
    return dataset.owner


def check_test_split(dataset: Dataset, option: str) -> None:
    """Raise UserError on a dataset without a test split, which this partition keeps. option: the partition's name."""
    if dataset.train == len(dataset.y):
        lacks = f"{dataset.name} has none" if dataset.limit is None else f"data.limit={dataset.limit} leaves none of it"
        larger = "" if dataset.limit is None else "a larger limit, or "
        raise UserError(
            f"partition={option} keeps the dataset's own test split, and {lacks}: use {larger}a partition that cuts "
            "one, such as dirichlet."
        )


def redraw_until_least(cut: Callable[[], list[np.ndarray]], least: int, tries: int, what: str) -> list[np.ndarray]:
    """Return the first result of `cut` in which each client has at least `least` rows.

    Raises UserError if none of `tries` draws is such. what: what is drawn, for the message.
    """
    require(tries >= 1, "tries", tries, "it must be at least 1")
    best = 0
    for _ in range(tries):
        parts = cut()
        smallest = min(map(len, parts))
        if smallest >= least:
            return parts
        best = max(best, smallest)
    raise UserError(
        f"partition.least is {least}, but in {tries} draws (partition.tries) with {what} the smallest client never "
        f"had more than {best}. Use fewer clients (partition.clients), a larger partition.alpha or a smaller "
        "partition.least."
    )


def labels(dataset: Dataset) -> np.ndarray:
    """Return the class of each row, [n] int64."""
    return dataset.y.numpy()


def rows_of_classes(dataset: Dataset, split: slice, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the row numbers of each class within a split, in random order: K arrays."""
    y = labels(dataset)[split]
    start = split.start or 0
    return [start + rng.permutation(np.flatnonzero(y == k)) for k in range(dataset.classes)]


# What also helps where a client has a part of its rows for testing
OF_CUT = "; or a partition.test_fraction nearer to 0.5, or for natural clients a larger partition.least"


def pooled(parts: Sequence[np.ndarray], test_fraction: float, seed: int) -> Rows:
    """Return each client's rows cut into training and test rows at random, not stratified.

    parts: the rows of each client, from both splits of the dataset. A client with n samples is tested on
    ceil(n * test_fraction - 0.01) of them. Raises UserError if a client is left without training data.
    """
    train, test = [], []
    for client, own in enumerate(parts):
        shuffled = generator(seed, "partition test", client).permutation(own)
        held = _held(len(own), test_fraction)
        train.append(shuffled[held:])
        test.append(shuffled[:held])
    return sorted_rows(train, test, OF_CUT)


def consecutive(dataset: Dataset, parts: Sequence[np.ndarray], test_fraction: float) -> Rows:
    """Return each client's rows, in order, cut into training rows, rows that share text with both, and test rows.

    For rows that are windows of a text, as LEAF cuts Shakespeare. parts and test_fraction: as in `pooled`. Raises
    UserError where a client is left without training data.
    """
    kept = [len(own) - _held(len(own), test_fraction) for own in parts]
    train = [dataset.before(own, n) for own, n in zip(parts, kept, strict=True)]
    return sorted_rows(train, [own[n:] for own, n in zip(parts, kept, strict=True)], OF_CUT)


def _held(samples: int, test_fraction: float) -> int:
    """Return how many of a client's samples are its test rows. Raises UserError unless it is a true fraction."""
    require(0 < test_fraction < 1, "test_fraction", test_fraction, "it must lie between 0 and 1, both excluded")
    # the slack lets 0.166667 mean one sixth
    return math.ceil(samples * test_fraction - 0.01)


def sorted_rows(train: Sequence[np.ndarray], test: Sequence[np.ndarray], advice: str = "") -> Rows:
    """Return the Rows of a partition, each array sorted.

    Raises UserError if a client has no training or no test data. advice: what else would help, for the message.
    """
    for name, parts in (("training", train), ("test", test)):
        empty = [client for client, own in enumerate(parts) if not len(own)]
        if empty:
            raise UserError(
                f"partition: client {empty[0]} of {len(parts)} is left without {name} data ({len(empty)} in all). Use "
                f"fewer clients (partition.clients), or a less uneven partition{advice}."
            )
    return Rows(_in_order(train), _in_order(test))


def _in_order(parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [np.sort(own).astype(np.int64) for own in parts]
