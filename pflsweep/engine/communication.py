"""Communication cost: the size of messages, counted by the types of their fields."""

from functools import cache
from typing import Any, NamedTuple, get_args, get_type_hints

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
    for value, kind in zip(message, _kinds(message.__class__), strict=True):
        if value is None or kind == "kept":
            continue
        if kind == "ids" and value.is_floating_point():
            raise BadReturn(f"{type(message).__name__} sends floats as Ids: declare them as Vector or Scalars")
        if kind == "vector":
            floats += value.numel()
        else:
            others += value.numel()
    return floats, others


@cache
def _kinds(message: Any) -> list[str]:
    """Return the type of each field of a message: vector, scalars, ids or kept. Raises BadReturn."""
    if not hasattr(message, "_fields"):
        raise BadReturn(f"a message is a NamedTuple of Vector, Scalars and Ids, not {message.__name__}")
    kinds, full_name = [], f"{message.__module__}.{message.__qualname__}"
    try:
        hints = get_type_hints(message, include_extras=True)
    except NameError as error:
        raise BadReturn(
            f"the fields of {full_name} cannot be read: {error}. Import it outside `if TYPE_CHECKING`"
        ) from error
    for name, hint in hints.items():
        annotated = [a for a in (hint, *get_args(hint)) if hasattr(a, "__metadata__")]
        if not annotated:
            raise BadReturn(f"`{name}` of {full_name} has to be a Vector, Scalars or Ids: it is sent")
        kinds.append(annotated[0].__metadata__[0])
    return kinds
