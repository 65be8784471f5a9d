"""The mini-batches of a chunk of clients, of which some have more than others."""

from collections.abc import Callable, Iterator
from typing import Any

# (positions in the chunk, first step, step after the last) -> the batches of these clients in these steps
Part = Callable[[list[int], int, int], Iterator[Any]]


class Batches(Iterator[Any]):
    """An iterator over the batches of a chunk: in each step one for every client, x [C, B, ...].

    lengths: the number of batches of each client. A client that has fewer than another has batches of padding at the
    end. part: returns the batches of some clients alone, which have less padding.
    """

    def __init__(self, lengths: list[int], part: Part) -> None:
        self.lengths, self.part = lengths, part
        self._whole: Iterator[Any] | None = None

    def __next__(self) -> Any:
        if self._whole is None:
            self._whole = self.part(list(range(len(self.lengths))), 0, max(self.lengths, default=0))
        return next(self._whole)


def stretches(lengths: list[int], least: int) -> Iterator[tuple[list[int], int, int]]:
    """Yield (positions, first step, step after the last): which clients of a chunk train together from when to when.

    It begins with all. Those that have ended are left out as soon as they are a quarter of those that train, if at
    least so many steps remain.
    """
    now, start, last = list(range(len(lengths))), 0, max(lengths, default=0)
    for stop in sorted(set(lengths)):
        left = [c for c in now if lengths[c] > stop]
        if stop == last or (4 * len(left) <= 3 * len(now) and last - stop >= least):
            yield now, start, stop
            now, start = left, stop
