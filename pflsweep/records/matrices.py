"""A method's small matrices over the rounds, kept beside the last ones: under `P@` a stack, under `P@round` of which
rounds. So that long runs stay small, rounds are thinned: those that a power of two divides, the smallest that leaves at
most FRAMES. That depends on the last round alone, not on when a run was stopped.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray]
FRAMES = 64
LARGEST = 32  # rows and columns: such a matrix over all rounds takes 256 kB


def grown(before: Mapping[str, NDArray], last: Arrays, round: int) -> Arrays:
    """The matrices of a round, with what is kept of those before it."""
    found: Arrays = dict(last)
    for name, matrix in last.items():
        if max(matrix.shape) <= LARGEST:
            rounds, stack = over_rounds(before, name)
            if stack.shape[1:] != matrix.shape:  # the first, or clusters that have split
                rounds, stack = rounds[:0], np.zeros((0, *matrix.shape), np.float32)
            found[f"{name}@round"] = np.append(rounds, np.int32(round))
            found[f"{name}@"] = np.concatenate([stack, matrix[None].astype(np.float32)])
    return upto(found, round)


def upto(arrays: Arrays, last: int) -> Arrays:
    """Without rounds after `last`, and thinned as a run is that has come so far."""
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
    """What is left when a run of more rounds is read as of `last`: of matrices that were not kept then, nothing."""
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
    """Rounds [R] and matrices [R, a, b] in float32; R = 0 where none were kept, as in older records."""
    none = np.zeros(0, np.int32), np.zeros((0, 0, 0), np.float32)
    return (arrays[f"{name}@round"], arrays[f"{name}@"]) if f"{name}@" in arrays else none
