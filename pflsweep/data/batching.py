"""How a client's training rows become the mini-batches of a turn."""

from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import NamedTuple

import numpy as np


class Batching(NamedTuple):
    """The rules by which local epochs are cut into batches; the defaults are those of all records before these keys.

    shuffle: "epoch" draws a new order in each epoch; "once" draws one order for the whole trial, so that a client's
    batches are the same in every epoch and round; "never" leaves the rows in the order of the dataset.
    last_batch: "drop" leaves out an epoch's last batch where it is partial; a client that has no other keeps it.
    steps: the batches that count as one epoch, whatever the client holds; None: a pass over its rows.
    """

    shuffle: str = "epoch"
    last_batch: str = "keep"
    steps: int | None = None

    def order(self, rows: np.ndarray, generator: Callable[..., np.random.Generator], epoch: int) -> np.ndarray:
        """Return a client's rows in the order of one epoch.

        generator: returns the source of draws of this turn for an epoch, or of the whole trial without an argument.
        """
        if self.shuffle == "never":
            return rows
        return (generator(epoch) if self.shuffle == "epoch" else generator()).permutation(rows)

    def passes(self, epochs: int, one: Callable[[int], list]) -> list:
        """Return the batches of some epochs. one: returns those of a pass over the client's rows, by its number."""
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
        """Return one epoch's batches of `size` rows, in order."""
        batches = pieces(order, size)
        partial = len(batches) > 1 and len(batches[-1]) < size
        return batches[:-1] if partial and self.last_batch == "drop" else batches


def pieces(rows: np.ndarray, size: int) -> list[np.ndarray]:
    """Return rows in pieces of `size`, in order; the last one may be shorter."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]


DEFAULT = Batching()
