import pytest
import torch

from pflsweep.algorithms.feddyn import FedDyn
from pflsweep.algorithms.fedprox import FedProx
from pflsweep.config.schema import check_fields
from pflsweep.util.errors import UserError
from tests.algorithms.helpers import EVERYBODY, NETWORK, ONE_AND_TWO, STILL, by_hand, close, simulate

TASK, W0 = NETWORK
TENTH = {"alpha": 0.1}


@pytest.mark.parametrize("participation", [0.4, 1.0])
@pytest.mark.parametrize("chunk", [1, EVERYBODY])
def test_h_is_the_mean_of_all_clients(participation, chunk):
    for rounds in (1, 2, 3):
        run = simulate(FedDyn, TENTH, rounds=rounds, participation=participation, chunk=chunk)
        assert run.server.h.abs().max() > 0.001
        close(run.server.h, run.clients.g.mean(0))


@pytest.mark.parametrize("alpha", [1e-9, 0.1])
def test_first_round_is_fedprox_gone_further(alpha):
    """While g = h = 0 clients train as FedProx's do; then -h / alpha is M / N of the mean step once more. As alpha
    vanishes the clients are FedAvg's.
    """
    settings = {"rounds": 1, "participation": 0.6, "momentum": 0.9, "weight_decay": 0.01}
    prox = simulate(FedProx, {"mu": 0.0 if alpha < 1e-6 else alpha}, weights="uniform", **settings)
    got = simulate(FedDyn, {"alpha": alpha}, **settings).w
    close(got, W0 + (1 + 3 / EVERYBODY) * (prox.w - W0), 1e-7 if alpha < 1e-6 else 1e-10)


def test_means_are_plain_whatever_the_weights():
    shared, uniform = (simulate(FedDyn, TENTH, rounds=3, weights=weights) for weights in ("share", "uniform"))
    assert torch.equal(shared.w, uniform.w)


def test_refuses_to_divide_by_zero():
    with pytest.raises(UserError, match="alpha"):
        check_fields(FedDyn, {"alpha": 0.0}, "feddyn", "")


def test_a_model_each_way():
    assert simulate(FedDyn, TENTH).traffic == (TASK.size, TASK.size)


@pytest.mark.parametrize("chunk", [1, 2])
def test_by_hand(chunk):
    """f = 1/2 (w - m)^2 with m = 4 for A, -4 for B; lr 0.5, alpha 0.5, from w = 0.

    Round 1.  A: -4, w = 2;                                              g = -0.5 * 2 = -1
              B: 4, w = -2; 2 + (-2)/2 = 1, w = -2.5;                    g = 0.5 * 2.5 = 1.25
              h = -0.5/2 (2 - 2.5) = 0.125; w = -0.25 - 0.125/0.5 = -0.5
    Round 2.  A: -4.5 + 1 = -3.5, w = 1.25;                              g = -1 - 1.75/2 = -1.875
              B: 3.5 - 1.25 = 2.25, w = -1.625
                 2.375 - 1.25 - 1.125/2 = 0.5625, w = -1.90625;          g = 1.25 + 1.40625/2 = 1.953125
              h = 0.125 - 0.5/2 (1.75 - 1.40625) = 0.0390625; w = -0.328125 - 0.078125 = -0.40625
    """
    settings = {"epochs": 1, "batch": 1, "lr": 0.5, "chunk": chunk, "network": STILL}
    first, second = (
        simulate(FedDyn, {"alpha": 0.5}, rounds=k, federation=by_hand(ONE_AND_TWO), **settings) for k in (1, 2)
    )
    close(first.w, [-0.5, 7])
    close(first.clients.g, [[-1, 0], [1.25, 0]])
    close(second.clients.g, [[-1.875, 0], [1.953125, 0]])
    close(second.server.h, [0.0390625, 0])
    close(second.w, [-0.40625, 7])
