"""The handle through which methods see data: orders, means, holdouts."""

from itertools import chain

import numpy as np
import pytest
import torch

from pflsweep.data.dataset import Dataset, Rows
from pflsweep.data.federation import Data, Federation
from pflsweep.engine.lift import each

SIZES = [1, 2, 3, 7]


def federation(keys: list[int] | None = None) -> Federation:
    n = sum(SIZES)
    x = torch.arange(n, dtype=torch.float32)[:, None]
    data = Dataset("rows", x, torch.zeros(n, dtype=torch.int64), n, 1, 1.0, torch.zeros(1), torch.ones(1), "rows")
    rows = np.split(np.arange(n), np.cumsum(SIZES)[:-1])
    return Federation(data, Rows(rows, rows), validation=0.0, seed=5, device="cpu", dtype=torch.float64, keys=keys)


FEDERATION = federation()
ROWS = FEDERATION.rows["train"]


def data(ids: list[int], round: int = 1, batch: int = 2, large: int = 3) -> Data:
    return FEDERATION.data(ids, round, batch=batch, large=large)


def seen(batches) -> list[list[int]]:
    """Row numbers of each batch of a chunk's only client: x is its own row number."""
    return [batch.x[0, :, 0].int().tolist() for batch in batches]


def flat(lists: list[list[int]]) -> list[int]:
    return list(chain.from_iterable(lists))


class Mean:
    @each
    def x(self, batch):
        weight = torch.ones_like(batch.x[:, 0]) if batch.mask is None else batch.mask.to(batch.x.dtype)
        return (batch.x[:, 0] * weight).sum() / weight.sum().clamp(min=1)


@pytest.mark.parametrize("ids", [[3], [0, 1, 2, 3]])
def test_a_mean_over_uneven_large_batches_is_the_mean(ids):
    got = data(ids).mean(Mean().x)
    expected = torch.tensor([ROWS[i].mean() for i in ids], dtype=torch.float64)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-14)


def test_an_epoch_is_every_row_once_and_the_next_another_order():
    order = seen(data([3]).train(2))
    assert [len(rows) for rows in order] == [2, 2, 2, 1] * 2
    first, second = flat(order[:4]), flat(order[4:])
    assert sorted(first) == sorted(second) == ROWS[3].tolist()
    assert first != second


def test_a_chunk_has_the_batches_of_its_clients():
    together = list(data([0, 1, 2, 3]).train(2))
    for place, i in enumerate([0, 1, 2, 3]):
        mine = [batch.x[place][batch.mask[place]][:, 0].int().tolist() for batch in together if bool(batch.live[place])]
        assert mine == seen(data([i]).train(2))


def test_orders_belong_to_seed_round_stream_and_key():
    base = seen(data([3]).train(1))
    assert base == seen(data([3]).train(1))
    assert base != seen(data([3], round=2).train(1))
    assert base != seen(data([3]).train(1, "other"))
    assert base != seen(federation(keys=[3, 1, 2, 0]).data([3], 1, batch=2, large=3).train(1))


@pytest.mark.parametrize(
    ("i", "count", "steps"),
    [
        (0, 2, [[1, 1]]),  # one sample, used twice
        (1, 2, [[1, 1]]),
        (1, 3, [[1, 1, 1]]),  # two samples for three batches
        (2, 2, [[2, 1]]),
        (3, 2, [[2, 2], [2, 1]]),
        (3, 3, [[2, 2, 2]]),  # the last sample alone is no group of three
    ],
)
def test_groups_of_batches(i, count, steps):
    groups = list(data([i]).batches(count, 1))
    assert [[batch.x.shape[1] for batch in group] for group in groups] == steps
    for group in groups:
        rows = flat(seen(group))
        assert set(rows) <= set(ROWS[i].tolist())
        assert len(set(rows)) == min(len(rows), len(ROWS[i])), "disjoint where there are enough"


@pytest.mark.parametrize("fraction", [0.2, 0.5, 0.99])
def test_a_holdout_is_disjoint_and_the_same_in_every_round(fraction):
    for i, own in enumerate(ROWS):
        rest, held = (part._rows["train"][0].tolist() for part in data([i]).holdout(fraction))
        again = data([i], round=9).holdout(fraction)
        assert [rest, held] == [part._rows["train"][0].tolist() for part in again]
        if len(own) == 1:
            assert rest == held == own.tolist()
        else:
            assert sorted(rest + held) == own.tolist()
            assert len(held) == min(int(np.ceil(fraction * len(own))), len(own) - 1)


def test_a_sample_is_drawn_once_and_used_to_its_last_row():
    handle = data([3], large=5)
    large = list(handle.sample(0.8, "ala"))
    assert [batch.x.shape[1] for batch in large] == [4, 2], "whole mini-batches of 2"
    batches = [small for batch in large for small in handle.cut(batch)]
    assert [batch.x.shape[1] for batch in batches] == [2, 2, 2]
    rows = flat(seen(batches))
    assert len(rows) == len(set(rows)) == 6  # ceil(.8 * 7)
    assert flat(seen(data([3]).sample(0.8, "ala"))) == rows


def test_small_batches_of_a_chunk_are_those_of_its_clients():
    handle = data([0, 1, 2, 3], large=4)
    together = [small for batch in handle.sample(1.0, "ala") for small in handle.cut(batch)]
    for i in range(4):
        alone = data([i], large=4)
        expected = seen(small for batch in alone.sample(1.0, "ala") for small in alone.cut(batch))
        got = [b.x[i][b.mask[i]][:, 0].int().tolist() for b in together if bool(b.live[i])]
        assert got == expected


def test_images_are_the_rows_that_were_trained_on():
    handle = data([2, 3])
    rest, held = handle.holdout(0.3)
    list(rest.train(2))
    list(handle.sample(0.8, "ala"))
    held.mean(Mean().x)
    assert handle.trained == 2 * (2 + 4)
