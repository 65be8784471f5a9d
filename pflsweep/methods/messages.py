"""The types of a message's fields, by which communication is counted and attacks know what to forge."""

from functools import cache
from typing import Annotated, Any, get_args, get_type_hints

from torch import Tensor

from pflsweep.util.errors import BadReturn

Vector = Annotated[Tensor, "vector"]
"""Model parameters [C, P], a slice of P, or several of them; counted in floats."""
Scalars = Annotated[Tensor, "scalars"]
"""A few numbers for each client."""
Ids = Annotated[Tensor, "ids"]
"""Whole numbers, such as client ids or class counts."""
Kept = Annotated[Tensor, "kept"]
"""Not sent: the receiver has it from earlier rounds. The simulation stores one copy, on the server, for all clients."""


@cache
def field_types(message: Any) -> dict[str, str]:
    """Return the type of each field of a message's class by the field's name: vector, scalars, ids or kept.

    Raises BadReturn if the class is no NamedTuple, or a field has none of these types.
    """
    if not hasattr(message, "_fields"):
        raise BadReturn(f"a message is a NamedTuple of Vector, Scalars and Ids, not {message.__name__}")
    full_name = f"{message.__module__}.{message.__qualname__}"
    try:
        hints = get_type_hints(message, include_extras=True)
    except NameError as error:
        raise BadReturn(
            f"the fields of {full_name} cannot be read: {error}. Import it outside `if TYPE_CHECKING`"
        ) from error
    types = {}
    for name, hint in hints.items():
        annotated = [a for a in (hint, *get_args(hint)) if hasattr(a, "__metadata__")]
        if not annotated:
            raise BadReturn(f"`{name}` of {full_name} has to be a Vector, Scalars or Ids: it is sent")
        types[name] = annotated[0].__metadata__[0]
    return types
