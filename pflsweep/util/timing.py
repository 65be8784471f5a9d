"""The time that a piece of work takes, such as a gradient step."""

from collections.abc import Callable
from time import perf_counter
from typing import Any


def shortest(work: Callable[[], Any], clock: Callable[[], float] = perf_counter, least: float = 0.0) -> float:
    """Return the seconds of the fastest of at least three calls, which take `least` seconds together."""
    took: list[float] = []
    while len(took) < 3 or sum(took) < least:  # the first call is slow: memory is allocated, kernels are chosen
        began = clock()
        work()
        took.append(clock() - began)
    return min(took)


def rate(images: float, seconds: float) -> float:
    """Return images a second, a number also where the clock has seen no time pass."""
    return images / max(seconds, 1e-9)
