"""Communication cost: the size of messages, counted by the types of their fields."""

from typing import Any, NamedTuple

from pflsweep.methods.messages import field_types
from pflsweep.util.errors import BadReturn


class Traffic(NamedTuple):
    """The traffic of a round, for one client of the cohort on average. Down is from the server to the client."""

    floats_down: float  # numbers in vectors of model parameters
    floats_up: float
    others_down: float  # scalars and ids
    others_up: float


def message_size(message: Any) -> tuple[int, int]:
    """Return the numbers in a message, summed over its clients: (in vectors, in scalars and ids).

    Raises BadReturn if a field is none of Vector, Scalars, Ids and Kept, or if Ids are no whole numbers.
    """
    floats = others = 0
    for value, kind in zip(message, field_types(message.__class__).values(), strict=True):
        if value is None or kind == "kept":
            continue
        if kind == "ids" and value.is_floating_point():
            raise BadReturn(f"{type(message).__name__} sends floats as Ids: declare them as Vector or Scalars")
        if kind == "vector":
            floats += value.numel()
        else:
            others += value.numel()
    return floats, others
