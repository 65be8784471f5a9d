"""Refuse a partition in which a client trains on its own test rows or on text that overlaps with test rows.

Other rows that are both trained and tested on are a warning.
"""

import logging

import numpy as np

from pflsweep.data.dataset import Dataset, Rows
from pflsweep.util.errors import UserError

log = logging.getLogger(__name__)


def require_apart(dataset: Dataset, rows: Rows) -> None:
    """Raise UserError if a client is tested on rows that it trains on, or rows overlap with test rows, and warn
    where test rows of one client are training rows of another, or validation rows are either.
    """
    for client, (train, test) in enumerate(zip(rows.train, rows.test, strict=True)):
        if len(both := np.intersect1d(train, test)):
            raise UserError(
                f"partition: client {client} trains on {len(both)} of its {len(test)} test rows, such as row {both[0]}."
                " Give it test rows of their own."
            )
    train, test = (np.unique(np.concatenate(parts)) for parts in (rows.train, rows.test))
    found = test[_overlap(dataset, train, test)]
    if len(found) and dataset.overlap:
        raise UserError(
            f"partition: {len(found)} test rows, such as row {found[0]}, are windows of text that overlap with "
            f"training rows of {dataset.name}: clients would train on the text that they are tested on. Use "
            "partition=natural, which cuts each client's text once."
        )
    if len(found):
        log.warning(
            "partition: %d rows, such as row %d, are test rows of one client and training rows of another: models that "
            "clients share are tested on what they were trained on",
            len(found),
            found[0],
        )
    if rows.validation is None:
        return
    held = np.unique(np.concatenate(rows.validation))
    for split, known in (("training", train), ("test", test)):
        both = held[_overlap(dataset, known, held)]
        if len(both):
            log.warning(
                "partition: %d validation rows, such as row %d, are %s rows or overlap with them: what "
                "is chosen on them is chosen on data that it should not have seen",
                len(both), both[0], split,
            )  # fmt: skip


def _overlap(dataset: Dataset, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Return which test rows are training rows or, where rows overlap, are too near to one of the same owner and split.

    train, test: sorted row numbers. -> [len(test)] bool.
    """
    owner = np.zeros(len(dataset.y)) if dataset.owner is None else dataset.owner
    place = np.searchsorted(train, test)
    found = np.zeros(len(test), dtype=bool)
    for at in (place - 1, place):  # the nearest training row below, and the nearest that is not below
        there = (at >= 0) & (at < len(train))
        near = train[np.where(there, at, 0)]
        same = (owner[near] == owner[test]) & ((near < dataset.train) == (test < dataset.train))
        found |= there & same & (abs(dataset.places(near) - dataset.places(test)) <= dataset.overlap)
    return found
