"""How a client's training rows are cut into the mini-batches of its local training."""

from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import NamedTuple

import numpy as np


class Batching(NamedTuple):
    """The rules by which local epochs are cut into batches. Records from before these keys have the defaults.

    shuffle: "epoch" draws a new order in each epoch; "once" draws one order for the whole trial, so that a client's
    batches are the same in every epoch and round; "never" keeps the order of the dataset.
    last_batch: "keep", or "drop" to leave out a partial last batch of an epoch unless it is the only batch.
    steps: the number of batches in an epoch, whatever the client's size; None: one pass over its rows.
    """

    shuffle: str = "epoch"
    last_batch: str = "keep"
    steps: int | None = None

    def order(self, rows: np.ndarray, generator: Callable[..., np.random.Generator], epoch: int) -> np.ndarray:
        """Return a client's rows in the order of one epoch.

        generator: returns the numpy generator of an epoch, or without an argument that of the whole trial.
        """
        if self.shuffle == "never":
            return rows
        return (generator(epoch) if self.shuffle == "epoch" else generator()).permutation(rows)

    def batches_of(self, epochs: int, one: Callable[[int], list]) -> list:
        """Return the batches of some epochs. one: returns the batches of the k-th pass over the client's rows."""
        if self.steps is None:
            return [batch for epoch in range(epochs) for batch in one(epoch)]
        return list(islice(self._endless(one), epochs * self.steps))

    def _endless(self, one: Callable[[int], list]) -> Iterator:
        for epoch in count():
            batches = one(epoch)
            if not batches:  # a client without rows
                return
            yield from batches

    def cut(self, order: np.ndarray, size: int) -> list[np.ndarray]:
        """Return the batches of an epoch, of `size` rows each, in order."""
        return pieces(order[: self.kept(len(order), size)], size)

    def kept(self, rows: int, size: int) -> int:
        """Return how many of a client's rows are in the batches of an epoch, of `size` rows each."""
        return rows - rows % size if self.last_batch == "drop" and rows > size else rows


def pieces(rows: np.ndarray, size: int) -> list[np.ndarray]:
    """Return rows cut into pieces of `size`, in order. The last one may be shorter."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]


DEFAULT = Batching()
