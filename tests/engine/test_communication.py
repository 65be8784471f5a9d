"""Traffic is counted by the types of messages' fields."""

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
from torch import Tensor

from pflsweep.engine.communication import message_size
from pflsweep.methods.protocol import Empty, Ids, Kept, Scalars, Vector
from pflsweep.util.errors import BadReturn

if TYPE_CHECKING:
    from pflsweep.methods.protocol import Vector as Unknown


class Message(NamedTuple):
    w: Vector
    many: Vector
    loss: Scalars
    scores: Scalars
    ids: Ids
    extra: Vector | None
    own: Kept  # is not sent


def message(clients: int = 3) -> Message:
    ids = torch.zeros(clients, 4, dtype=torch.int64)
    w, many = torch.zeros(clients, 10), torch.zeros(clients, 2, 10)
    return Message(w, many, torch.zeros(clients), torch.zeros(clients, 5), ids, None, w)


@pytest.mark.parametrize("clients", [1, 3])
def test_a_message_is_counted_by_the_types_of_its_fields(clients: int) -> None:
    assert message_size(message(clients)) == (clients * (10 + 20), clients * (1 + 5 + 4))
    more = message(clients)._replace(extra=torch.zeros(clients, 7))
    assert message_size(more) == (clients * 37, clients * 10)


def test_an_expanded_tensor_counts_as_what_it_stands_for() -> None:
    assert message_size(message()._replace(w=torch.zeros(10).expand(3, 10))) == (3 * 30, 3 * 10)


def test_a_message_with_nothing_in_it_is_free() -> None:
    assert message_size(Empty()) == (0, 0)
    nothing = torch.zeros(3, 0)
    assert message_size(message()._replace(w=nothing, many=nothing)) == (0, 3 * 10)


def test_floats_are_not_counted_as_ids() -> None:
    with pytest.raises(TypeError, match="Message sends floats as Ids"):
        message_size(message()._replace(ids=torch.zeros(3, 4)))


class Untyped(NamedTuple):
    w: Tensor


@pytest.mark.parametrize("bad", [Untyped(torch.zeros(2, 3)), torch.zeros(2, 3), (torch.zeros(2, 3),), None])
def test_what_cannot_be_counted_is_refused(bad: Any) -> None:
    with pytest.raises(BadReturn, match="Vector"):
        message_size(bad)


class Unreadable(NamedTuple):
    w: "Unknown"


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (Untyped, r"`w` of tests\.engine\.test_communication\.Untyped has to be a Vector"),
        (Unreadable, r"fields of tests\.engine\.test_communication\.Unreadable .*'Unknown' is not defined"),
    ],
)
def test_a_message_that_is_refused_is_named_with_its_module(bad: Any, said: str) -> None:
    with pytest.raises(BadReturn, match=said):
        message_size(bad(torch.zeros(2, 3)))
