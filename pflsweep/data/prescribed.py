"""Partition, cohorts and batches that a user prescribes instead of letting the trial draw them."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pflsweep.data.dataset import Dataset, Rows
from pflsweep.data.federation import Federation
from pflsweep.data.participation import draw_cohort
from pflsweep.util.errors import UserError, require_known

SPLITS = ("train", "validation", "test")


class Prescribed(NamedTuple):
    """The partition, cohorts and batches that a user prescribes to a trial; None for each that the trial draws.

    Row and client numbers are int64, and sorted where their order has no meaning.
    """

    partition: Rows | None = None
    cohorts: list[np.ndarray] | None = None  # clients of rounds 1, 2, ..
    batches: dict[tuple[int, int], list[np.ndarray]] | None = None  # by (round, client): rows of its batches, in order

    @property
    def digest(self) -> str | None:
        """A hash of all that is prescribed, 16 hex digits and part of the trial's identity; None if nothing is."""
        if all(part is None for part in self):
            return None
        found = hashlib.blake2b(digest_size=8)
        for name, array in self._arrays():
            found.update(f"{name} {len(array)}:".encode())
            found.update(array.astype("<i8").tobytes())
        return found.hexdigest()

    def _arrays(self) -> Iterator[tuple[str, np.ndarray]]:
        if self.partition is not None:
            for split in SPLITS:
                yield from ((split, own) for own in getattr(self.partition, split) or [])
        yield from (("cohort", ids) for ids in self.cohorts or [])
        for (round, client), given in sorted((self.batches or {}).items(), key=lambda each: each[0]):
            yield from ((f"batch {round} {client}", rows) for rows in given)

    def rows_of(self, dataset: Dataset, clients: int | None) -> Rows:
        """Return the prescribed partition. clients: partition.clients, or None if the config does not state it.

        Raises UserError if the partition does not fit the dataset or the number of clients.
        """
        assert self.partition is not None
        there = len(self.partition.train)
        if clients not in (None, there):
            raise UserError(f"partition has {there} clients, and partition.clients is {clients}: set it to {there}.")
        for split in SPLITS:
            for client, own in enumerate(getattr(self.partition, split) or []):
                _require_inside(own, len(dataset.y), f"partition: {split} of client {client}", "row", dataset.name)
        return self.partition

    def require_fit(self, federation: Federation, sizes: Sequence[int], kind: str) -> None:
        """Raise UserError if cohorts or batches do not fit a federation.

        sizes: clients of each round's cohort. kind: how cohorts are drawn that are not prescribed.
        """
        rounds = len(sizes)
        for at, (ids, size) in enumerate(zip(self.cohorts or [], sizes, strict=False), 1):
            _require_inside(ids, federation.clients, f"cohorts: round {at}", "client", "the federation")
            if len(ids) != size:
                raise UserError(
                    f"cohorts: round {at} has {len(ids)} clients, and {size} of {federation.clients} by "
                    "train.participation: say the share that takes part."
                )
        if self.cohorts is not None and len(self.cohorts) < rounds:
            raise UserError(f"cohorts has {len(self.cohorts)} rounds, and train.rounds is {rounds}: give one each.")
        if self.batches is None:
            return
        asked = {(at, int(i)) for at, size in enumerate(sizes, 1) for i in draw_cohort(federation, size, at, kind)}
        given = {place for place in self.batches if place[0] <= rounds}
        for places, what in ((asked - given, "has none for"), (given - asked, "has some for")):
            if places:
                at, client = min(places)
                no = "not " if what == "has some for" else ""
                raise UserError(
                    f"batches {what} round {at} and client {client}, who is {no}in that round's cohort: give those of "
                    "each client of each cohort, of rounds from 1 on, and no others."
                )
        for (at, client), steps in self.batches.items():
            for rows in steps:
                where = f"batches: round {at}, client {client}"
                _require_inside(rows, len(federation.dataset.y), where, "row", federation.dataset.name)


def prescribed(
    partition: Mapping[str, Sequence[Any]] | None = None,
    cohorts: Sequence[Any] | None = None,
    batches: Mapping[tuple[int, int], Sequence[Any]] | None = None,
) -> Prescribed:
    """Return the arguments of `pflsweep.run` as a Prescribed. Raises UserError if they have another form."""
    rounds = None if cohorts is None else _list(cohorts, "cohorts")
    return Prescribed(
        None if partition is None else _partition(partition),
        None if rounds is None else [_set(ids, f"cohorts: round {at}") for at, ids in enumerate(rounds, 1)],
        None if batches is None else _batches(batches),
    )


def checked_partition(found: Any, dataset: Dataset) -> Rows:
    """Return what a partition's function has returned, with sorted arrays of int64.

    Raises UserError if it is not a partition of the dataset.
    """
    if not isinstance(found, Rows):
        raise UserError(
            f"it returned {type(found).__name__}, and a partition returns Rows(train, test) of pflsweep.data.dataset, "
            "with an array of row numbers a client."
        )
    parts = {split: getattr(found, split) for split in SPLITS if getattr(found, split) is not None}
    prescribed(parts).rows_of(dataset, None)
    whole: dict[str, Any] = {split: [np.sort(_indices(own, split)) for own in rows] for split, rows in parts.items()}
    return found._replace(**whole)


def _partition(partition: Mapping[str, Sequence[Any]]) -> Rows:
    if not isinstance(partition, Mapping) or not {"train", "test"} <= partition.keys():
        raise UserError('partition has to be {"train": [...], "test": [...]}, each with an array of rows a client.')
    require_known(dict(partition), SPLITS, "partition")
    rows = {
        split: [_set(own, f"partition: {split} of client {i}") for i, own in enumerate(_list(parts, split))]
        for split, parts in partition.items()
    }
    counts = {split: len(parts) for split, parts in rows.items()}
    if len(set(counts.values())) > 1 or not counts["train"]:
        said = ", ".join(f"{split} {count}" for split, count in counts.items())
        raise UserError(f"partition must have one array per client in each of its parts, but their numbers are {said}.")
    for client, parts in enumerate(zip(*rows.values(), strict=True)):
        found, times = np.unique(np.concatenate(parts), return_counts=True)
        if (times > 1).any():
            raise UserError(f"partition: client {client} has row {found[times > 1][0]} in two of {', '.join(rows)}.")
    if not any(map(len, rows["test"])):
        raise UserError("partition: no client has a test row: there would be nothing to score.")
    return Rows(rows["train"], rows["test"], validation=rows.get("validation"))


def _batches(batches: Mapping[tuple[int, int], Sequence[Any]]) -> dict[tuple[int, int], list[np.ndarray]]:
    if not isinstance(batches, Mapping):
        raise UserError("batches has to be {(round, client): [rows, ...]}, with an array of rows a step.")
    found = {}
    for place, steps in batches.items():
        if not isinstance(place, tuple) or len(place) != 2 or not all(isinstance(n, int | np.integer) for n in place):
            raise UserError(f"batches: {place!r} is no (round, client), such as (1, 0).")
        where = f"batches: round {place[0]}, client {place[1]}"
        arrays = [_indices(rows, where) for rows in _list(steps, where)]
        if not arrays or not all(map(len, arrays)):
            what = "a batch without a row" if arrays else "no batch"
            raise UserError(f"{where} has {what}: local training takes at least one, and each has a row.")
        found[int(place[0]), int(place[1])] = arrays
    return found


def _list(value: Any, where: str) -> list[Any]:
    if isinstance(value, str | Mapping) or not hasattr(value, "__iter__"):
        raise UserError(f"{where} is {type(value).__name__}: it has to be a list of arrays.")
    return list(value)


def _indices(value: Any, where: str) -> np.ndarray:
    """Return a list of whole numbers as an array [n] int64. Raises UserError on anything else."""
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:  # ValueError for a ragged list, TypeError for a tensor on a GPU
        raise UserError(f"{where} cannot be read as an array of whole numbers ({error}).") from error
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise UserError(f"{where} is of shape {array.shape} and {array.dtype}: it has to be a list of whole numbers.")
    return array.astype(np.int64)


def _set(value: Any, where: str) -> np.ndarray:
    """Return a list of whole numbers as a sorted array. Raises UserError if one is repeated."""
    array = np.sort(_indices(value, where))
    twice = array[1:][array[1:] == array[:-1]]
    if len(twice):
        raise UserError(f"{where} names {twice[0]} twice.")
    return array


def _require_inside(numbers: np.ndarray, count: int, where: str, what: str, owner: str) -> None:
    """Raise UserError on a number outside 0 to count - 1. where, what, owner: words of the message."""
    outside = numbers[(numbers < 0) | (numbers >= count)]
    if len(outside):
        raise UserError(f"{where} names {what} {outside[0]}, and {owner} has {what}s 0 to {count - 1}.")
