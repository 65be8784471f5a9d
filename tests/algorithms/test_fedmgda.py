from itertools import pairwise

import pytest
import torch

from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.algorithms.fedmgda import FedMGDA
from pflsweep.methods import stock
from tests.algorithms.helpers import EVERYBODY, NETWORK, Quadratic, by_hand, close, make, same_in_chunks, simulate

TASK, W0 = NETWORK
HYPER = {"epsilon": 0.1, "global_lr": 0.5}
SHARE = torch.tensor([0.5, 0.2, 0.2, 0.1], dtype=torch.float64)


def directions(seed: int) -> torch.Tensor:
    g = torch.randn(4, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return g / g.norm(dim=1, keepdim=True)


def test_epsilon_0_steps_along_the_weighted_mean_of_the_directions():
    trained = simulate(FedMGDA, HYPER, rounds=1).personal  # a round's uploads
    n = torch.tensor([7, 12, 1, 20, 5]).double()
    updates = W0 - trained
    mean = (n / n.sum()) @ (updates / updates.norm(dim=1, keepdim=True))
    close(simulate(FedMGDA, {**HYPER, "epsilon": 0.0}, rounds=1).w, W0 - 0.5 * mean)


def test_equal_updates_give_fedavgs_direction():
    alike = [[([1.0, 2.0, 3.0, 4.0], 1)]] * 3
    settings = {"rounds": 1, "federation": by_hand(alike, 3)}
    step = simulate(FedAvg, **settings).w - W0
    close(simulate(FedMGDA, HYPER, **settings).w - W0, 0.5 * step / step.norm())


@pytest.mark.parametrize("seed", range(5))
def test_epsilon_1_opposes_nobody(seed):
    """For the shortest mix, with d = -sum lambda_i g_i, g_i . d <= -|d|^2 for every client."""
    g = directions(seed)
    d = -(make(FedMGDA, {**HYPER, "epsilon": 1.0}).weights(g, SHARE) @ g)
    assert d.norm() > 0.01
    assert (g @ d).max() <= -(d @ d) + 1e-9


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.3])
def test_weights_stay_within_epsilon_of_the_shares(epsilon):
    method, lengths = make(FedMGDA, {**HYPER, "epsilon": epsilon}), []
    # float32 shares sum to 1 up to rounding alone
    for share in (SHARE, SHARE.float()):
        weight = method.weights(directions(1), share)
        assert (weight >= -1e-12).all()
        assert (weight - SHARE).abs().max() <= epsilon + 1e-7
        lengths.append(float((weight @ directions(1)).norm()))
    assert lengths[0] == pytest.approx(lengths[1], abs=1e-6)
    assert lengths[0] <= float((SHARE @ directions(1)).norm()) + 1e-9


def test_the_length_of_an_update_does_not_matter():
    """This makes it robust: a client that uploads a hundred times its update has the same influence."""
    method, run = make(FedMGDA, HYPER), simulate(FedMGDA, HYPER, rounds=1)
    turn = run.simulation._turn(torch.arange(EVERYBODY))
    updates = run.personal - run.w
    shouted = updates * torch.tensor([1, 100, 1, 1, 1])[:, None]
    honest, shouting = (method.aggregate(run.server, stock.Up(run.w + u), turn).w for u in (updates, shouted))
    assert (honest - run.w).norm() > 0.01
    close(shouting, honest)


def test_a_client_that_stands_still_has_no_direction():
    method = make(FedMGDA, {**HYPER, "epsilon": 1.0})
    g = method.directions(W0, torch.stack([W0, W0 + 1.0]))
    assert torch.equal(g[0], torch.zeros_like(W0))
    close(g[1].norm(), torch.tensor(1.0).double())
    assert (method.weights(g, SHARE[:2] / SHARE[:2].sum()) @ g).norm() < 1e-6


def test_without_a_rate_of_its_own_the_server_steps_by_the_rounds():
    settings = {"rounds": 3, "lr_decay": 0.5, "lr": 0.1}
    path = [simulate(FedMGDA, {**HYPER, "global_lr": None}, **{**settings, "rounds": t}).w for t in (1, 2, 3)]
    first = simulate(FedMGDA, {**HYPER, "global_lr": 0.1}, rounds=1, lr=0.1).w
    close(path[0], first)
    # The directions of clients with the same rows are one, so that a step is as long as the rate
    alike = by_hand([[([1.0, 2.0, 3.0, 4.0], 1)]] * 3, 3)
    path = [W0] + [
        simulate(FedMGDA, {**HYPER, "global_lr": None}, **{**settings, "rounds": t}, federation=alike).w
        for t in (1, 2, 3)
    ]
    assert [float((b - a).norm()) for a, b in pairwise(path)] == pytest.approx([0.1, 0.05, 0.025])


def test_evaluated_with_the_model_that_was_trained():
    run, fedavg = (simulate(method, hyper, rounds=1) for method, hyper in ((FedMGDA, HYPER), (FedAvg, None)))
    n = torch.tensor([7, 12, 1, 20, 5]).double()
    close((n / n.sum()) @ run.personal, fedavg.w)
    late = simulate(FedMGDA, HYPER, rounds=2, participation=0.2)
    never = late.simulation.last < 0
    assert never.any()
    close(late.personal[never], late.w.expand(int(never.sum()), -1))


def test_twice_the_model_is_communicated():
    assert simulate(FedMGDA, HYPER).traffic == (TASK.size, TASK.size)


def test_any_chunking_is_the_same_round():
    same_in_chunks(FedMGDA, HYPER, momentum=0.9)


SAMPLES = [[([4, 0], 0)], [([0, -1], 0)]]
QUADRATIC = Quadratic([[1, 0], [0, 1]]), torch.tensor([0.0, 0.0], dtype=torch.float64)


def test_by_hand():
    """f = 1/2 |w - m|^2 with m = (4, 0) for A, (0, -1) for B; one step of lr 0.5 from w = 0, eta = 0.4.

    Round 1.  A: w = (2, 0), g_A = (-1, 0). B: w = (0, -0.5), g_B = (0, 1). Orthogonal, so the shortest mix has equal
              weights whatever epsilon: d = (-0.5, 0.5), w = (0.2, -0.2)
    Round 2.  A: w = (0.2, -0.2) + 0.5 (3.8, 0.2) = (2.1, -0.1), g_A = (-1.9, -0.1) / sqrt(3.62)
              B: w = (0.2, -0.2) + 0.5 (-0.2, -0.8) = (0.1, -0.6), g_B = (0.1, 0.4) / sqrt(0.17)
              of unit length both, so equal weights again: w -= 0.2 (g_A + g_B)
    """
    settings = {"epochs": 1, "batch": 1, "lr": 0.5, "federation": by_hand(SAMPLES), "network": QUADRATIC}
    hyper = {"epsilon": 0.5, "global_lr": 0.4}
    for chunk in (1, 2):
        first = simulate(FedMGDA, hyper, rounds=1, chunk=chunk, **settings)
        close(first.personal, [[2, 0], [0, -0.5]])
        close(first.w, [0.2, -0.2])
        second = simulate(FedMGDA, hyper, rounds=2, chunk=chunk, **settings)
        close(second.personal, [[2.1, -0.1], [0.1, -0.6]])
        a, b = 3.62**-0.5, 0.17**-0.5
        close(second.w, [0.2 - 0.2 * (-1.9 * a + 0.1 * b), -0.2 - 0.2 * (-0.1 * a + 0.4 * b)])
