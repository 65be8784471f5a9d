import torch

from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.algorithms.fedavgm import FedAvgM
from tests.algorithms.helpers import NETWORK, ONE_AND_TWO, STILL, by_hand, close, simulate

TASK, W0 = NETWORK


def test_a_still_server_moves_by_its_rate():
    half = simulate(FedAvgM, {"beta": 0.9, "global_lr": 0.5}, rounds=1)
    close(half.w, W0 + 0.5 * (simulate(FedAvg, rounds=1).w - W0))
    assert torch.equal(simulate(FedAvgM, {"beta": 0.9, "global_lr": 0.0}).w, W0)


def test_a_model_each_way():
    assert simulate(FedAvgM, {"beta": 0.9, "global_lr": 1.0}).traffic == (TASK.size, TASK.size)


def test_by_hand():
    """f = 1/2 (w - m)^2 with m = 4 for A, -4 for B, in equal shares; lr 0.5, beta 0.5, eta 2, from w = 0.

    Round 1.  A: -4, w = 2;  B: 4, w = -2; 2, w = -3;          mean -0.5,    v = 0.5,                 w = -1
    Round 2.  A: -5, w = 1.5;  B: 3, w = -2.5; 1.5, w = -3.25;  mean -0.875,  v = 0.25 - 0.125,        w = -1.25
    """
    settings = {"epochs": 1, "batch": 1, "lr": 0.5, "network": STILL, "weights": "uniform"}
    for rounds, v, w in ((1, 0.5, -1), (2, 0.125, -1.25)):
        run = simulate(
            FedAvgM, {"beta": 0.5, "global_lr": 2.0}, rounds=rounds, federation=by_hand(ONE_AND_TWO), **settings
        )
        close(run.server.v, [v, 0])
        close(run.w, [w, 7])
