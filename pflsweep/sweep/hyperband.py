"""Hyperband (Li et al., JMLR 2018): many points for few rounds, the best of them for three times as many, and so on.

A bracket is one such successive halving. Brackets differ in the number of rounds that they begin with, since accuracy
after few rounds may mislead. The slots of a search are the first rungs of all brackets, then all second rungs, and so
on. A rung waits for the one below it in its bracket, so the order in which trials finish changes nothing. Its trials
continue from the checkpoints of the rung below.
"""

from collections.abc import Sequence
from typing import NamedTuple

from optuna.trial import FrozenTrial, TrialState

from pflsweep.sweep import attributes

ETA = 3  # one in ETA points is promoted, to ETA times the rounds


class Rung(NamedTuple):
    """Slots of a search that train the same number of rounds and are compared with each other."""

    rounds: int
    numbers: range  # of its slots in the search
    below: range  # numbers of the slots from which the best are promoted; empty in the first rung of a bracket


def points_of(brackets: int) -> list[int]:
    """Return how many points each bracket begins with, the one with the fewest rounds first."""
    return [-(-brackets * ETA**s // (s + 1)) for s in reversed(range(brackets))]


def brackets_of(points: int, rounds: int) -> int:
    """Return the number of brackets that fit into `points` points and trials of `rounds` rounds; at least 1."""
    count = 1
    while sum(points_of(count + 1)) <= points and ETA**count <= rounds:
        count += 1
    return count


def rounds_of(brackets: int, rounds: int) -> list[int]:
    """Return the numbers of rounds after which points are compared, ascending. All but the last are multiples of the
    first.
    """
    first = rounds // ETA ** (brackets - 1)
    return [*(first * ETA**level for level in range(brackets - 1)), rounds]


def rungs(points: int, rounds: int) -> list[Rung]:
    """Return the rungs of a search in the order of their slots.

    points: the most that all brackets together may begin with. rounds: of a whole trial.
    """
    brackets = brackets_of(points, rounds)
    compared, begins = rounds_of(brackets, rounds), points_of(brackets)
    found: list[Rung] = []
    below: dict[int, range] = {}  # by bracket
    first = 0
    for step in range(brackets):
        for bracket in range(brackets - step):
            count = begins[bracket] // ETA**step
            numbers = range(first, first + count)
            found.append(Rung(compared[bracket + step], numbers, below.get(bracket, range(0))))
            below[bracket], first = numbers, first + count
    return found


def rung_of(number: int, points: int, rounds: int) -> Rung:
    """Return the rung that the slot `number` of a search is in."""
    return next(rung for rung in rungs(points, rounds) if number in rung.numbers)


def promoted(rung: Rung, trials: Sequence[FrozenTrial], number: int) -> int:
    """Return which slot of the rung below is promoted to slot `number`: the best that no earlier slot of this rung has
    taken or will take by these results. Of equal ones it is the earlier; diverged ones come last, before failed ones.

    A point below may get its result late, when it is tried again after a crash, so that earlier slots continue others
    than the best.
    """

    def rank(k: int) -> tuple[float, int]:
        trial = trials[k]
        lost = 1.0 if trial.user_attrs.get(attributes.DIVERGED) else 2.0
        return (-(trial.value or 0.0) if trial.state == TrialState.COMPLETE else lost), k

    left = sorted(rung.below, key=rank)
    earlier = [trials[k].params for k in range(rung.numbers.start, number)]
    leased = [params for params in earlier if params]
    for params in leased:
        left.remove(next((k for k in left if trials[k].params == params), left[0]))
    return left[number - rung.numbers.start - len(leased)]
