"""The handle by which methods see data: orders, means, holdouts."""

from itertools import chain

import numpy as np
import pytest
import torch

from pflsweep.data.batching import Batching
from pflsweep.data.dataset import Dataset, Rows
from pflsweep.data.federation import Federation
from pflsweep.data.loader import ClientData
from pflsweep.ops.vmap import per_client

SIZES = [1, 2, 3, 7]


LABELS = torch.tensor([0] * 7 + [1] * 5 + [2])


def federation(keys: list[int] | None = None, order: list[int] | None = None, seed: int = 5) -> Federation:
    n = sum(SIZES)
    x = torch.arange(n, dtype=torch.float32)[:, None]
    data = Dataset("rows", x, LABELS, n, 3, 1.0, torch.zeros(1), torch.ones(1), "rows")
    rows = np.split(np.arange(n), np.cumsum(SIZES)[:-1])
    rows = [rows[i] for i in order or range(len(rows))]
    return Federation(
        data, Rows(rows, rows), validation=0.0, seed=seed, device="cpu", dtype=torch.float64, stable_ids=keys
    )


FEDERATION = federation()
ROWS = FEDERATION.rows["train"]


def data(ids: list[int], round: int = 1, batch: int = 2, large: int = 3) -> ClientData:
    return ClientData.of(FEDERATION, ids, round, batch=batch, large=large)


def seen(batches) -> list[list[int]]:
    """Return the row numbers of each batch of a chunk's only client; x is its own row number."""
    return [batch.x[0, :, 0].int().tolist() for batch in batches]


def flat(lists: list[list[int]]) -> list[int]:
    return list(chain.from_iterable(lists))


class Mean:
    @per_client
    def x(self, batch):
        weight = torch.ones_like(batch.x[:, 0]) if batch.mask is None else batch.mask.to(batch.x.dtype)
        return (batch.x[:, 0] * weight).sum() / weight.sum().clamp(min=1)


@pytest.mark.parametrize("ids", [[3], [0, 1, 2, 3]])
def test_a_mean_over_uneven_large_batches_is_the_mean(ids):
    got = data(ids).mean(Mean().x)
    expected = torch.tensor([ROWS[i].mean() for i in ids], dtype=torch.float64)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-14)


def test_the_batches_of_a_mean_are_drawn_since_a_dataset_may_be_sorted_by_class():
    def batches(round: int) -> list[list[int]]:
        found = []

        def look(batch):
            found.append(batch.x[0, :, 0].int().tolist())
            return torch.zeros(1, dtype=torch.float64)

        data([3], round).mean(look)
        return found

    order = batches(1)
    assert [len(rows) for rows in order] == [3, 3, 1]
    assert sorted(flat(order)) == ROWS[3].tolist() != flat(order)
    assert batches(1) == order != batches(2)


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
    assert base != seen(ClientData.of(federation(keys=[3, 1, 2, 0]), [3], 1, batch=2, large=3).train(1))


@pytest.mark.parametrize(
    ("i", "count", "steps"),
    [
        # One sample, used twice
        (0, 2, [[1, 1]]),
        (1, 2, [[1, 1]]),
        # Two samples for three batches
        (1, 3, [[1, 1, 1]]),
        (2, 2, [[2, 1]]),
        (3, 2, [[2, 2], [2, 1]]),
        # The last sample alone makes no group of three
        (3, 3, [[2, 2, 2]]),
    ],
)
def test_groups_of_batches(i, count, steps):
    groups = list(data([i]).batches(count, 1))
    assert [[batch.x.shape[1] for batch in group] for group in groups] == steps
    for group in groups:
        rows = flat(seen(group))
        assert set(rows) <= set(ROWS[i].tolist())
        assert len(set(rows)) == min(len(rows), len(ROWS[i])), "disjoint where there are enough"


@pytest.mark.parametrize("fraction", [1e-12, 0.2, 0.5, 0.99])
def test_a_holdout_is_disjoint_and_the_same_in_every_round(fraction):
    for i, own in enumerate(ROWS):
        rest, held = (part._chunk.rows["train"][0].tolist() for part in data([i]).holdout(fraction))
        again = data([i], round=9).holdout(fraction)
        assert [rest, held] == [part._chunk.rows["train"][0].tolist() for part in again]
        if len(own) == 1:
            assert rest == held == own.tolist()
        else:
            assert sorted(rest + held) == own.tolist()
            assert len(held) == min(int(np.ceil(fraction * len(own))), len(own) - 1)


@pytest.mark.parametrize(
    ("share", "counts"),
    # For clients of 7, 5 and 1 samples
    [(0.0, [0, 0, 0]), (0.01, [1, 1, 1]), (0.5, [2, 2, 1]), (0.8, [3, 3, 1]), (1.0, [4, 4, 1])],
)
def test_a_public_set_has_as_many_of_each_class_as_there_are(share, counts):
    public = FEDERATION.public(share)
    assert public.tolist() == sorted(set(public.tolist()))
    assert torch.bincount(LABELS[torch.from_numpy(public)], minlength=3).tolist() == counts
    assert set(public) <= set(FEDERATION.public(1.0)), "a larger set contains it"


def test_a_public_set_belongs_to_the_seed_and_not_to_the_clients_order():
    public = FEDERATION.public(0.5).tolist()
    assert federation(keys=[3, 1, 0, 2], order=[3, 1, 0, 2]).public(0.5).tolist() == public
    assert any(federation(seed=seed).public(0.5).tolist() != public for seed in (6, 7))


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_public_rows_join_those_of_each_client(share):
    public = FEDERATION.public(share).tolist()
    everybody, sizes = [0, 1, 2, 3], []
    together = list(data(everybody).public(share)[1].train(2))
    for i, own in enumerate(ROWS):
        private, joined = data([i]).public(share)
        order = seen(joined.train(2))
        half = len(order) // 2
        for epoch in (order[:half], order[half:]):
            assert sorted(flat(epoch)) == sorted({*own.tolist(), *public}), "every row once"
        assert sorted(flat(seen(private.train(1)))) == [row for row in own.tolist() if row not in public]
        assert order == [b.x[i][b.mask[i]][:, 0].int().tolist() for b in together if bool(b.live[i])]
        sizes.append(len(set(own.tolist()) - set(public)))
    assert data(everybody).public(share)[0].sizes.tolist() == sizes
    if not share:
        assert seen(data([3]).public(share)[1].train(2)) == seen(data([3]).train(2))


def test_a_client_may_have_nothing_private():
    lone = Federation(
        FEDERATION.dataset, Rows([ROWS[3], np.array([12])], [ROWS[3]] * 2), validation=0.0, seed=5, device="cpu"
    )
    private, joined = ClientData.of(lone, [1], 1, batch=2, large=3).public(0.1)
    assert private.sizes.tolist() == [0]
    assert list(private.train(2)) == []
    assert joined.sizes.tolist() == [len(lone.public(0.1))]
    with pytest.raises(ValueError, match="no samples"):
        private.mean(Mean().x)


def test_a_sample_is_drawn_once_and_used_to_its_last_row():
    handle = data([3], large=5)
    large = list(handle.sample(0.8, "ala"))
    assert [batch.x.shape[1] for batch in large] == [4, 2], "whole mini-batches of 2"
    batches = [small for batch in large for small in handle.cut(batch)]
    assert [batch.x.shape[1] for batch in batches] == [2, 2, 2]
    rows = flat(seen(batches))
    assert len(rows) == len(set(rows)) == 6  # ceil(.8 * 7)
    assert flat(seen(data([3]).sample(0.8, "ala"))) == rows


@pytest.mark.parametrize("shuffle", ["once", "never"])
def test_a_block_is_a_run_of_the_order_of_training(shuffle):
    """Of 7 rows, 3 in a row are taken from one of 5 places; all places occur."""

    def handle(round):
        return ClientData.of(FEDERATION, [3], round, batch=2, large=3, batching=Batching(shuffle=shuffle))

    order, starts = flat(seen(handle(1).train(1))), set()
    for round in range(1, 60):
        block = flat(seen(handle(round).sample(0.4, "ala", block=True)))
        assert flat(seen(handle(round).sample(0.4, "ala", block=True))) == block
        starts.add(order.index(block[0]))
        assert order[order.index(block[0]) :][:3] == block
    assert starts == {0, 1, 2, 3, 4}


def test_small_batches_of_a_chunk_are_those_of_its_clients():
    handle = data([0, 1, 2, 3], large=4)
    together = [small for batch in handle.sample(1.0, "ala") for small in handle.cut(batch)]
    for i in range(4):
        alone = data([i], large=4)
        expected = seen(small for batch in alone.sample(1.0, "ala") for small in alone.cut(batch))
        got = [b.x[i][b.mask[i]][:, 0].int().tolist() for b in together if bool(b.live[i])]
        assert got == expected


@pytest.mark.parametrize("ids", [[1], [0, 1, 2, 3]])
def test_test_rows_stand_for_training_rows(ids):
    dataset = FEDERATION.dataset
    few, many = [np.arange(k, k + 1) for k in range(4)], [np.arange(k + 4, k - 1, -1) for k in range(1, 5)]
    federation = Federation(dataset, Rows(few, many), validation=0.0, seed=0, device="cpu", dtype=torch.float32)
    handle = ClientData.of(federation, ids, 1, batch=2, large=3).test()
    batches = list(handle.train(1))
    for c, client in enumerate(ids):
        got = [b.x[c, :, 0] if b.mask is None else b.x[c][b.mask[c]][:, 0] for b in batches]
        wanted = dataset.x[many[client]].reshape(5, -1)[:, 0]
        assert sorted(torch.cat(got).tolist()) == sorted(wanted.tolist())


def test_images_are_the_rows_that_were_trained_on():
    handle = data([2, 3])
    rest, held = handle.holdout(0.3)
    list(rest.train(2))
    list(handle.sample(0.8, "ala"))
    held.mean(Mean().x)
    assert handle.trained == 2 * (2 + 4)
    private, _ = handle.public(0.5)
    list(private.train(1))
    assert handle.trained == 2 * (2 + 4) + int(private.sizes.sum())


def test_texts_are_handed_out_as_they_are() -> None:
    x = torch.tensor([[5, 3, 0], [70_000, 0, 0]], dtype=torch.int32)
    texts = Dataset("texts", x, torch.tensor([0, 1]), 2, 2, 1.0, torch.zeros(1), torch.ones(1), "t", vocabulary=70_001)
    rows = [np.array([0]), np.array([1])]
    federation = Federation(texts, Rows(rows, rows), validation=0.0, seed=0, device="cpu")
    assert torch.equal(federation.gather(torch.tensor([1, 0]))[0], x[[1, 0]])
    for ids in ([1], [0, 1]):
        batch = next(ClientData.of(federation, ids, 1, batch=2, large=2).train(1))
        assert batch.x.dtype == torch.int32
        assert batch.x[-1, 0].tolist() == [70_000, 0, 0]


def split(validation: float, order: list[int] | None = None, **seeds: int) -> Federation:
    rows = [ROWS[i] for i in order or range(len(ROWS))]
    return Federation(
        FEDERATION.dataset, Rows(rows, rows), validation=validation, device="cpu", stable_ids=order, **seeds
    )


@pytest.mark.parametrize(("validation", "counts"), [(0.25, [0, 0, 1, 2]), (0.9, [0, 1, 2, 6])])
def test_validation_rows_are_a_rounded_share_that_leaves_a_row_for_training(validation, counts):
    """Of clients of 1, 2, 3 and 7 rows."""
    federation = split(validation, seed=5)
    assert [len(own) for own in federation.rows["validation"]] == counts
    for kept, held, own in zip(federation.rows["train"], federation.rows["validation"], ROWS, strict=True):
        assert sorted([*kept, *held]) == own.tolist()


def test_validation_rows_follow_the_client_and_not_its_place():
    order = [3, 1, 0, 2]
    plain, moved = (split(0.5, order, seed=5).rows["validation"] for order in (None, order))
    assert [own.tolist() for own in moved] == [plain[i].tolist() for i in order]


def test_what_is_drawn_before_training_belongs_to_the_datas_seed():
    def drawn(seed: int, data_seed: int) -> list[list[int]]:
        federation = split(0.5, seed=seed, data_seed=data_seed)
        new = federation.split_new_clients(2)[1].stable_ids
        return [*(own.tolist() for own in federation.rows["validation"]), new.tolist(), federation.public(0.5).tolist()]

    assert drawn(0, 7) == drawn(1, 7)
    found = [drawn(0, data_seed) for data_seed in range(8)]
    assert all(len({tuple(each[k]) for each in found}) > 1 for k in (3, 4, 5))


def test_features_are_standardised_by_rows_and_not_by_who_has_them():
    """x is 0, 1 and 5; the second row is of two clients."""
    rows = Rows([np.array([0, 1]), np.array([1, 5])], [ROWS[3]] * 2)
    federation = Federation(FEDERATION.dataset, rows, validation=0.0, seed=0, device="cpu")
    federation.standardise()
    x = federation.gather(torch.tensor([0, 1, 5]))[0]
    torch.testing.assert_close(x.mean(0), torch.zeros(1), atol=1e-6, rtol=0)


def test_shares_of_a_hundredth_are_exact():
    """0.28 of 25 rows is a little more than 7 in binary."""
    x = torch.arange(25, dtype=torch.float32)[:, None]
    rows = Rows([np.arange(25)], [np.arange(25)])
    dataset = Dataset("rows", x, torch.zeros(25, dtype=torch.int64), 25, 2, 1.0, torch.zeros(1), torch.ones(1), "rows")
    handle = ClientData.of(Federation(dataset, rows, validation=0, seed=0, device="cpu"), [0], 1, batch=5, large=50)
    assert len(flat(seen(handle.sample(0.28, "ala")))) == 7
    assert handle.holdout(0.28)[1].sizes.tolist() == [7]
