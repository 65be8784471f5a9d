"""train.shuffle, train.last_batch and train.steps: how local epochs are cut into batches."""

from itertools import chain

import numpy as np
import pytest
import torch

from pflsweep.data.batching import Batching
from pflsweep.data.dataset import Dataset, Rows
from pflsweep.data.federation import Federation
from pflsweep.data.loader import ClientData

SIZES = [1, 3, 4, 9]  # with batches of 4: less than one, less than one, exactly one, two and a rest of one


def federation(seed: int = 5) -> Federation:
    n = sum(SIZES)
    x = torch.arange(n, dtype=torch.float32)[:, None]
    data = Dataset("rows", x, torch.zeros(n, dtype=torch.int64), n, 2, 1.0, torch.zeros(1), torch.ones(1), "rows")
    rows = np.split(np.arange(n), np.cumsum(SIZES)[:-1])
    return Federation(data, Rows(rows, rows), validation=0.0, seed=seed, device="cpu", dtype=torch.float64)


def batches(client: int, batching: Batching, round: int = 1, epochs: int = 2, seed: int = 5) -> list[list[int]]:
    """Return the row numbers of a client's batches; x is its own row number."""
    data = ClientData.of(federation(seed), [client], round, batch=4, large=8, batching=batching)
    found = [batch.x[0, :, 0].int().tolist() for batch in data.train(epochs)]
    assert data.trained == sum(map(len, found)), "what is counted is what was given out"
    return found


def sizes(client: int, batching: Batching, epochs: int = 1) -> list[int]:
    return [len(batch) for batch in batches(client, batching, epochs=epochs)]


def test_a_partial_last_batch_is_dropped_unless_it_is_the_only_one() -> None:
    assert [sizes(client, Batching()) for client in range(4)] == [[1], [3], [4], [4, 4, 1]]
    assert [sizes(client, Batching(last_batch="drop")) for client in range(4)] == [[1], [3], [4], [4, 4]]


def test_what_is_dropped_is_drawn_anew_in_each_epoch() -> None:
    seen = [batches(3, Batching(last_batch="drop"), round=round, epochs=1) for round in range(8)]
    assert len({frozenset(chain.from_iterable(round)) for round in seen}) > 1


def test_a_rating_has_each_row_once_whatever_training_takes() -> None:
    """But for code that drops its last batch there, too."""

    def rated(batching: Batching, **how: bool) -> list[list[int]]:
        data = ClientData.of(federation(), [3], 1, batch=4, large=8, batching=batching)
        found = [batch.x[0, :, 0].int().tolist() for batch in data.rating("rating", **how)]
        assert data.trained == 0
        return found

    whole = rated(Batching())
    assert [len(batch) for batch in whole] == [4, 4, 1]
    assert sorted(chain.from_iterable(whole)) == list(range(8, 17))
    assert rated(Batching(last_batch="drop", steps=1)) == rated(Batching(steps=20)) == whole
    assert rated(Batching(last_batch="drop", steps=1), drop=True) == whole[:2]
    assert rated(Batching(steps=20), drop=True) == whole


@pytest.mark.parametrize("shuffle", ["once", "never"])
def test_batches_that_are_cut_once_are_the_same_in_every_epoch_and_round(shuffle: str) -> None:
    first = batches(3, Batching(shuffle=shuffle))
    assert first[:3] == first[3:]
    assert batches(3, Batching(shuffle=shuffle), round=7) == first
    in_order = list(range(8, 17))
    assert (list(chain.from_iterable(first[:3])) == in_order) == (shuffle == "never")
    assert sorted(chain.from_iterable(first[:3])) == in_order


def test_an_order_that_is_drawn_once_is_the_seeds() -> None:
    assert batches(3, Batching(shuffle="once"), seed=6) != batches(3, Batching(shuffle="once"))


def test_by_default_every_epoch_and_round_has_an_order_of_its_own() -> None:
    first = batches(3, Batching())
    assert first[:3] != first[3:]
    assert batches(3, Batching(), round=2) != first


def test_steps_are_counted_whatever_a_client_holds() -> None:
    """With train.steps an epoch has that many batches, which go through the data epoch by epoch."""
    assert [sizes(client, Batching(steps=5)) for client in range(4)] == [[1] * 5, [3] * 5, [4] * 5, [4, 4, 1, 4, 4]]
    assert sizes(3, Batching(steps=5, last_batch="drop")) == [4] * 5
    assert sizes(3, Batching(steps=2), epochs=3) == [4, 4, 1, 4, 4, 1], "three epochs of two steps"
    assert batches(3, Batching(steps=3), epochs=1) == batches(3, Batching(), epochs=1)


def test_one_step_on_batches_cut_once_sees_the_first_batch_alone() -> None:
    """FedPG's platform trains FedProx and pFedMe in this way."""
    one = Batching(shuffle="once", steps=1)
    assert batches(3, one, epochs=1) == batches(3, one, epochs=1, round=9) == batches(3, Batching(shuffle="once"))[:1]


def test_groups_of_batches_follow_the_same_rules() -> None:
    """Per-FedAvg takes two batches a step: with 9 samples a step of 4 + 4, and the last batch is dropped."""

    def groups(batching: Batching, client: int = 3) -> list[list[int]]:
        data = ClientData.of(federation(), [client], 1, batch=4, large=8, batching=batching)
        return [[batch.y.shape[1] for batch in group] for group in data.batches(2, 1)]

    assert groups(Batching(last_batch="drop")) == [[4, 4]]
    assert groups(Batching(steps=3)) == [[4, 4]] * 3
    assert groups(Batching(last_batch="drop"), client=1) == [[2, 1]], "fewer samples than a step's are split"


def test_several_clients_in_a_chunk_get_what_each_gets_alone() -> None:
    how = Batching(shuffle="once", last_batch="drop", steps=3)
    data = ClientData.of(federation(), [0, 1, 2, 3], 4, batch=4, large=8, batching=how)
    together: list[list[list[int]]] = [[], [], [], []]
    for batch in data.train(1):
        for client, rows in enumerate(together):
            mask = batch.mask[client]
            rows.append(batch.x[client, mask, 0].int().tolist())
    assert together == [batches(client, how, round=4, epochs=1) for client in range(4)]


def test_private_epochs_may_be_of_steps_too() -> None:
    data = ClientData.of(federation(), [3], 1, batch=4, large=8, batching=Batching(steps=6)).poisson(1.0, 1.0)
    assert len(list(data.train(2))) == 12
