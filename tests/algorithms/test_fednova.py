import pytest
import torch

from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.algorithms.fednova import FedNova
from tests.algorithms.helpers import EVERYBODY, NETWORK, ONE_AND_TWO, STILL, by_hand, close, opened, simulate

TASK, W0 = NETWORK
NONE = {"mu": 0.0}
STEPS = torch.tensor([4.0, 6.0, 2.0, 10.0, 4.0]).double()  # two epochs of ceil(n / 4), n = 7, 12, 1, 20, 5


@pytest.mark.parametrize("ids", [[3], list(range(EVERYBODY))])
@pytest.mark.parametrize(("momentum", "mu"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.5)])
def test_norms_are_those_of_the_paper(ids, momentum, mu):
    """||a||_1 is tau; with momentum rho (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho); with a proximal term and
    alpha = eta mu (1 - (1 - alpha)^tau) / alpha.
    """
    run = simulate(FedNova, {"mu": mu}, momentum=momentum)
    given, data, work = opened(run, ids)
    expected, rho, alpha = STEPS, momentum, given.turn.lr * mu
    if rho:
        expected = (STEPS - rho * (1 - rho**STEPS) / (1 - rho)) / (1 - rho)
    if alpha:
        expected = (1 - (1 - alpha) ** STEPS) / alpha
    close(run.method.fit(given, data, work).norm, expected[ids])


def test_equal_steps_are_fedavg():
    a_step_an_epoch = {"rounds": 3, "participation": 0.6, "batch": 20, "momentum": 0.9, "weight_decay": 0.01}
    close(simulate(FedNova, NONE, **a_step_an_epoch).w, simulate(FedAvg, **a_step_an_epoch).w)


def test_a_client_with_more_steps_has_no_more_say():
    """Two clients pull in opposite directions with equal strength; one of them takes ten steps."""
    clients = by_hand([[([1, 0], 0)], [([-1, 0], 0)] * 10])
    settings = {"rounds": 1, "epochs": 1, "batch": 1, "lr": 1e-6, "weights": "uniform", "network": STILL}
    nova, fedavg = (simulate(m, h, federation=clients, **settings).w[0] for m, h in ((FedNova, NONE), (FedAvg, {})))
    close(nova / 1e-6, torch.tensor(0.0).double(), 1e-4)
    close(fedavg / 1e-6, torch.tensor(-4.5).double(), 1e-4)


def test_a_model_each_way():
    assert simulate(FedNova, NONE).traffic == (TASK.size, TASK.size)


@pytest.mark.parametrize("chunk", [1, 2])
def test_by_hand(chunk):
    """f = 1/2 (w - m)^2 with m = 4 for A, -4 for B, in equal shares; lr 0.5, a round from w = 0. A: -4, w = 2, norm 1.

    plain           B: -2, -3, norm 2;                       tau_eff 1.5,    w = 1.5 (1 - 1.5 / 2) = 0.375
    momentum 0.5    B: 4, w = -2; 2 + 2, w = -4, norm 2.5;   tau_eff 1.75,   w = 1.75 (1 - 2 / 2.5) = 0.35
    mu 0.5          B: 4, w = -2; 2 - 1, w = -2.5,
                       norm 1 + (1 - 0.25) = 1.75;           tau_eff 1.375,  w = 1.375 (1 - 1.25 / 1.75) = 2.75 / 7
    """
    settings = {"epochs": 1, "batch": 1, "lr": 0.5, "chunk": chunk, "network": STILL, "weights": "uniform"}
    for mu, momentum, w in ((0.0, 0.0, 0.375), (0.0, 0.5, 0.35), (0.5, 0.0, 2.75 / 7)):
        run = simulate(FedNova, {"mu": mu}, rounds=1, momentum=momentum, federation=by_hand(ONE_AND_TWO), **settings)
        close(run.w, [w, 7])
