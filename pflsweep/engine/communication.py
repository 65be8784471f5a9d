"""What crosses the wire, counted by the types of a message's fields."""

from functools import cache
from typing import Any, NamedTuple, get_args, get_type_hints


class Traffic(NamedTuple):
    """What crossed the wire in a round, for one client of the cohort on average."""

    floats_down: float  # multiples of model parts
    floats_up: float
    others_down: float  # scalars and ids
    others_up: float


def message_size(message: Any) -> tuple[int, int]:
    """(floats, scalars and ids) of a message, all its clients together, by the types of its fields.

    Raises TypeError where a field is none of Vector, Scalars, Ids and Kept.
    """
    floats = others = 0
    for value, kind in zip(message, _kinds(message.__class__), strict=True):
        if value is None or kind == "kept":
            continue
        if kind == "vector":
            floats += value.numel()
        else:
            others += value.numel()
    return floats, others


@cache
def _kinds(message: Any) -> list[str]:
    """What each field of a message is: vector, scalars or ids."""
    if not hasattr(message, "_fields"):
        raise TypeError(f"a message is a NamedTuple of Vector, Scalars and Ids, not {message.__name__}")
    kinds = []
    for name, hint in get_type_hints(message, include_extras=True).items():
        annotated = [a for a in (hint, *get_args(hint)) if hasattr(a, "__metadata__")]
        if not annotated:
            raise TypeError(f"{message.__name__}.{name} has to be a Vector, Scalars or Ids: it crosses the wire")
        kinds.append(annotated[0].__metadata__[0])
    return kinds
