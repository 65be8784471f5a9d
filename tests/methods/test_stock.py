"""Parts that the server sends to the clients of a turn."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pflsweep.methods import stock

THREE: Any = SimpleNamespace(ids=torch.tensor([4, 0, 2]))


@pytest.mark.parametrize("shape", [(), (7,), (2, 7), (3, 7)])
def test_each_client_is_given_the_whole_of_a_shared_part(shape: tuple[int, ...]) -> None:
    """Without `for_each`, prototypes [K, D] with K = C clients would be split by client."""
    part = torch.rand(shape)
    assert torch.equal(stock.for_each(part, THREE), torch.stack([part] * 3))


def test_models_that_differ_already_are_sent_as_they_are() -> None:
    w, mixes = torch.rand(7), torch.rand(3, 7)
    assert torch.equal(stock.to_all(w, THREE), torch.stack([w] * 3))
    assert stock.to_all(mixes, THREE) is mixes
