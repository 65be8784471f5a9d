"""Keep a method's small matrices over the rounds, beside those of the last round.

For a matrix `P` the file holds `P` of the last round, `P@` [R, a, b], a stack over R rounds, and `P@round` [R], their
numbers. Files of long runs stay small: only rounds that 2^k divides are kept, for the smallest k that leaves at most
FRAMES. This depends on the last round alone, so a run that was stopped and continued keeps the same rounds.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray]
FRAMES = 64
LARGEST = 32  # rows and columns of a matrix that is kept over the rounds: with FRAMES rounds it takes 256 kB


def append_round(before: Mapping[str, NDArray], last: Arrays, round: int) -> Arrays:
    """Return the matrices of a round, `last`, with those that are kept of earlier rounds, from `before`."""
    found: Arrays = dict(last)
    for name, matrix in last.items():
        if max(matrix.shape) <= LARGEST:
            rounds, stack = over_rounds(before, name)
            # The first round, or a number of clusters that has grown
            if stack.shape[1:] != matrix.shape:
                rounds, stack = rounds[:0], np.zeros((0, *matrix.shape), np.float32)
            found[f"{name}@round"] = np.append(rounds, np.int32(round))
            found[f"{name}@"] = np.concatenate([stack, matrix[None].astype(np.float32)])
    return upto(found, round)


def upto(arrays: Arrays, last: int) -> Arrays:
    """Return the matrices without rounds after `last`, thinned as in a run of `last` rounds."""
    found = dict(arrays)
    step = 1
    while last // step > FRAMES:
        step *= 2
    for name in (name for name in arrays if f"{name}@" in arrays):
        rounds, stack = over_rounds(arrays, name)
        kept = (rounds <= last) & (rounds % step == 0)
        found |= {f"{name}@round": rounds[kept], f"{name}@": stack[kept]}
    return found


def cut(arrays: Arrays, last: int) -> Arrays:
    """Return the matrices as of round `last` of a longer run. A matrix of which that round was not kept is left out."""
    found = upto(arrays, last)
    for name in [name for name in arrays if not name.endswith(("@", "@round"))]:
        rounds, stack = over_rounds(arrays, name)
        at = np.flatnonzero(rounds == last)
        if len(at):
            found[name] = stack[at[0]]
        else:
            del found[name]
    return found


def over_rounds(arrays: Mapping[str, NDArray], name: str) -> tuple[NDArray, NDArray]:
    """Return the kept rounds [R] and matrices [R, a, b] in float32. R is 0 if none were kept."""
    none = np.zeros(0, np.int32), np.zeros((0, 0, 0), np.float32)
    return (arrays[f"{name}@round"], arrays[f"{name}@"]) if f"{name}@" in arrays else none
