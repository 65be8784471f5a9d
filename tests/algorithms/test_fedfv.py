import pytest
import torch

from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.algorithms.fedfv import FedFV
from pflsweep.data.loader import ClientData
from pflsweep.methods import stock
from pflsweep.methods.protocol import Given
from tests.algorithms.helpers import (
    EVERYBODY,
    FEDERATION,
    NETWORK,
    Quadratic,
    by_hand,
    close,
    make,
    same_in_chunks,
    simulate,
)

TASK, W0 = NETWORK
PLAIN = {"alpha": 0.0, "tau": 0, "external": "paper"}
HYPER = {"alpha": 0.4, "tau": 2, "external": "paper"}
KEYS = torch.arange(6)


def vectors(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def internal(deltas, loss, alpha=0.0, key=KEYS):
    return make(FedFV, {**PLAIN, "alpha": alpha}).without_internal(deltas, vectors(*loss), key[: len(loss)])


def test_two_clients_end_without_conflict():
    deltas = vectors([1, 0, 2], [-2, 1, 0.5])
    assert deltas[0] @ deltas[1] < 0
    g = internal(deltas, [0.3, 0.1])
    assert (deltas @ g).min() >= -1e-12
    close(g, deltas_projected(deltas, [1, 0], set()).mean(0))


def test_without_conflicts_it_is_uniform_fedavg():
    alike = [[([1.0, 2.0, 3.0, 4.0], 1), ([1.0, 2.0, 2.0, 4.0], 1)][:n] for n in (1, 2, 2)]
    settings = {"rounds": 3, "federation": by_hand(alike, 3)}
    fedavg = simulate(FedAvg, weights="uniform", **settings)
    close(simulate(FedFV, {**PLAIN, "tau": 1}, **settings).w, fedavg.w)


def test_switched_off_it_is_uniform_fedavg():
    ours = simulate(FedFV, {**PLAIN, "alpha": 1.0}, rounds=3, participation=0.6)
    close(ours.w, simulate(FedAvg, rounds=3, participation=0.6, weights="uniform").w)
    on = simulate(FedFV, PLAIN, rounds=3, participation=0.6)
    assert (on.w - ours.w).abs().max() > 1e-3, "there are conflicts to mitigate"


def deltas_projected(deltas, order, kept):
    """Algorithm 2 as printed: one client after the other."""
    out = deltas.clone()
    for i in range(len(deltas)):
        for j in order:
            if i in kept or i == j:
                continue
            inner = out[i] @ deltas[j]
            if inner < 0:
                out[i] -= inner / (deltas[j] @ deltas[j]) * deltas[j]
    return out


@pytest.mark.parametrize(("alpha", "kept"), [(0.0, 0), (0.1, 1), (0.2, 1), (0.5, 3), (1.0, 5)])
def test_projections_follow_the_loss_and_spare_the_highest(alpha, kept):
    """Of five updates M - ceil((M - 1) (1 - alpha)) are kept."""
    deltas = torch.randn(5, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    order = [2, 4, 0, 3, 1]
    loss = [float(order.index(i)) for i in range(5)]
    wanted = deltas_projected(deltas, order, set(order[5 - kept :]) if kept else set()).mean(0)
    close(internal(deltas, loss, alpha), wanted)
    turned = deltas_projected(deltas, order[::-1], set(order[5 - kept :]) if kept else set()).mean(0)
    assert kept >= 4 or (wanted - turned).abs().max() > 1e-3, "the order matters here"


def test_equal_losses_stand_in_the_order_of_keys():
    deltas = torch.randn(4, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    key, place = torch.tensor([7, 3, 9, 1]), [2, 0, 3, 1]
    g = internal(deltas, [0.5] * 4, 0.3, key)
    close(internal(deltas[place], [0.5] * 4, 0.3, key[place]), g)
    assert (internal(deltas[place], [0.5] * 4, 0.3) - g).abs().max() > 1e-3


@pytest.mark.parametrize("external", ["paper", "code"])
def test_external_conflicts_are_with_clients_not_seen_since(external):
    """Client 1 of round t - 2 is in round t - 1 too, so its older update does not count."""
    ids = torch.tensor([[0, 1], [1, 2], [3, 4]])
    deltas = vectors([[-1, 0, 0], [-9, -9, 0]], [[0, -1, 0], [1, 1, 1]], [[0, 0, -1], [1, 1, 0]])
    g = make(FedFV, {**HYPER, "external": external}).without_external(vectors(2, 3, 4), ids, deltas)
    close(g, [0, 0, 4] if external == "paper" else [2, 0, 0])


def test_a_rounds_conflicting_updates_are_summed():
    ids = torch.tensor([[0, 1, 2], [3, 4, 5]])
    deltas = vectors([[-1, 0], [0, -1], [1, 1]], [[1, 0], [1, 0], [1, 0]])
    g = make(FedFV, {**HYPER, "tau": 1}).without_external(vectors(3, 1), ids, deltas)
    close(g, [1, -1])  # off (-1, -1): (3, 1) - 2 (1, 1); one by one it would be (0, 0)


def test_history_is_read_once_it_is_tau_rounds_long():
    """It is read from round tau + 1 on: in round 2 for tau = 1, not yet for tau = 2."""
    none, one, two = (simulate(FedFV, {**PLAIN, "tau": t}, rounds=2, participation=0.4).w for t in (0, 1, 2))
    assert (one - none).abs().max() > 1e-3
    assert torch.equal(two, none)


def test_the_step_is_as_long_as_the_mean_update():
    run = simulate(FedFV, {**PLAIN, "tau": 1}, rounds=1)
    close((run.w - W0).norm(), (run.personal.mean(0) - W0).norm())


def test_the_loss_is_that_of_the_received_model():
    run = simulate(FedFV, HYPER, rounds=1)
    data = ClientData.of(FEDERATION, list(range(EVERYBODY)), 1, batch=4, large=16)
    wanted = data.mean(run.method.loss, W0.expand(EVERYBODY, -1))
    given = Given(stock.Down(W0.expand(EVERYBODY, -1)), None, None, None)
    close(run.method.finish(given, data, run.method.start(given, data))[0].loss, wanted)


def test_communication_and_history():
    run = simulate(FedFV, HYPER, rounds=3, participation=0.4)
    assert run.traffic == (TASK.size, TASK.size)
    assert run.results[-1].traffic.others_up == 1
    assert torch.equal(run.server.ids, torch.stack([result.ids for result in run.results[1:]]))
    latest = run.results[-1].ids
    before = simulate(FedFV, HYPER, rounds=2, participation=0.4).w
    close(run.server.deltas[-1], before - run.personal[latest])


def test_a_first_round_of_all_clients_is_remembered():
    run = simulate(FedFV, HYPER | {"tau": 2}, rounds=3, participation=0.4, first_round="all")
    assert len(run.results[0].ids) == run.server.ids.shape[1] == EVERYBODY
    small = len(run.results[2].ids)
    assert run.server.ids[1].tolist() == [*run.results[2].ids.tolist(), *[-1] * (EVERYBODY - small)]
    assert not run.server.deltas[1][small:].any()


def test_any_chunking_is_the_same_round():
    same_in_chunks(FedFV, HYPER, momentum=0.9)


SAMPLES = [[([4, 0], 0)], [([-2, 2], 0)]]
QUADRATIC = Quadratic([[1, 0], [0, 1]]), torch.tensor([0.0, 0.0], dtype=torch.float64)


def test_by_hand():
    """f = 1/2 |w - m|^2 with m = (4, 0) for A, (-2, 2) for B; one step of lr 0.5 from w = 0.

    Round 1.  A: f = 8, w = (2, 0), Delta = (-2, 0). B: f = 4, w = (-1, 1), Delta = (1, -1). Delta_A . Delta_B = -2
              A off B: (-2, 0) + 2/2 (1, -1) = (-1, -1). B off A: (1, -1) + 2/4 (-2, 0) = (0, -1)
              mean (-0.5, -1), of length sqrt(1.25); the mean update (-0.5, -0.5) has sqrt(0.5)
              w = sqrt(0.4) (0.5, 1)
    Round 1, alpha = 0.1: A, of the higher loss, stays: mean of (-2, 0) and (0, -1) = (-1, -0.5)
              w = sqrt(0.4) (1, 0.5)
    """
    settings = {"epochs": 1, "batch": 1, "lr": 0.5, "federation": by_hand(SAMPLES), "network": QUADRATIC}
    for chunk in (1, 2):
        first = simulate(FedFV, PLAIN, rounds=1, chunk=chunk, **settings)
        close(first.personal, [[2, 0], [-1, 1]])
        close(first.w, [0.5 * 0.4**0.5, 0.4**0.5])
        close(simulate(FedFV, {**PLAIN, "alpha": 0.1}, rounds=1, chunk=chunk, **settings).w, [0.4**0.5, 0.5 * 0.4**0.5])
