"""Which clients of a chunk train together, and that nobody's numbers depend on who has ended."""

from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.data.loader import ClientData
from pflsweep.methods import stock
from pflsweep.methods.batches import FIXED, stretches
from tests.algorithms.helpers import EVERYBODY, FEDERATION, simulate


@pytest.mark.parametrize(
    ("lengths", "again", "expected"),
    [
        ([5, 5], 1, [([0, 1], 0, 5)]),
        ([10, 4, 4], 1, [([0, 1, 2], 0, 4), ([0], 4, 10)]),
        # Six steps of two clients would be saved
        ([10, 4, 4], 11.9, [([0, 1, 2], 0, 4), ([0], 4, 10)]),
        ([10, 4, 4], 12.1, [([0, 1, 2], 0, 10)]),
        # Leaving out one client at step 3 and one at step 5 saves no more than both at step 5
        ([9, 9, 9, 5, 3], 3, [([0, 1, 2, 3, 4], 0, 5), ([0, 1, 2], 5, 9)]),
        ([2, 8, 4, 1], 0, [([0, 1, 2, 3], 0, 1), ([0, 1, 2], 1, 2), ([1, 2], 2, 4), ([1], 4, 8)]),
        ([0, 3], 1, [([1], 0, 3)]),
        ([7], 1, [([0], 0, 7)]),
        ([0, 0], 1, []),
    ],
)
def test_clients_that_have_ended_are_left_out(
    lengths: list[int], again: float, expected: list[tuple[list[int], int, int]]
) -> None:
    assert list(stretches(lengths, again)) == expected


@given(lengths=st.lists(st.integers(0, 12), min_size=1, max_size=6), again=st.integers(0, 40))
def test_no_other_stops_are_cheaper(lengths: list[int], again: int) -> None:
    ends = sorted(set(lengths) - {0})

    def cost(stops: tuple[int, ...]) -> float:
        starts = (0, *stops)[: len(stops)]
        widths = [sum(length > start for length in lengths) for start in starts]
        return sum((stop - start) * (n + FIXED) + again for start, stop, n in zip(starts, stops, widths, strict=True))

    every = [(*some, *ends[-1:]) for n in range(len(ends)) for some in combinations(ends[:-1], n)]
    found = list(stretches(lengths, again))
    assert cost(tuple(stop for _, _, stop in found)) == pytest.approx(min(map(cost, every), default=0.0))
    for at, start, _ in found:
        assert at == [c for c, length in enumerate(lengths) if length > start]


def test_the_batches_of_some_clients_are_theirs_among_all() -> None:
    """The same rows, and the same keys of dropout, in the same steps."""
    clients = list(range(EVERYBODY))

    def batches():
        return ClientData.of(FEDERATION, clients, 1, batch=2, large=16).train(2)

    whole, lengths = list(batches()), batches().lengths
    assert len(whole) == max(lengths) > min(lengths)
    at = [c for c in clients if lengths[c] > 2]
    for step, some in enumerate(batches().part(at, 2, max(lengths)), 2):
        every = whole[step]
        for k, c in enumerate(at):
            assert bool(some.live[k]) is bool(every.live[c]) is (step < lengths[c])
            assert some.key[k] == every.key[c]
            mine, there = some.mask[k], every.mask[c]
            assert torch.equal(some.y[k][mine], every.y[c][there])
            assert torch.equal(some.x[k][mine], every.x[c][there])


def test_a_cohort_trains_alike_whoever_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Client by client, with everybody to the end, and with those left out that have ended."""
    models, widths = [], []
    together = stock._together

    def watched(step, given, work, batches):
        widths.append(len(given.turn.ids))
        return together(step, given, work, batches)

    monkeypatch.setattr(stock, "_together", watched)
    for chunk, copy in ((1, 0), (EVERYBODY, 10**6), (EVERYBODY, 0)):
        widths.clear()
        monkeypatch.setattr(stock, "COPY", copy)
        run = simulate(FedAvg, {}, rounds=2, participation=1.0, chunk=chunk)
        models.append(run.simulation.server.w)
        assert (len(set(widths)) > 1) is (chunk > 1 and copy == 0)
    torch.testing.assert_close(models[1], models[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(models[2], models[0], rtol=1e-12, atol=1e-12)
