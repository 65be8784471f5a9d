import pytest
import torch

from pflsweep.algorithms.ditto import Ditto
from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.algorithms.local import Local
from tests.algorithms.helpers import NETWORK, ONE_AND_TWO, STILL, by_hand, close, newest_until_sampled, simulate

TASK, _ = NETWORK
HALF = {"lam": 0.5, "own_epochs": None}


@pytest.mark.parametrize("own_epochs", [0, 1, 3])
def test_each_model_has_epochs_of_its_own(own_epochs):
    run = simulate(Ditto, {"lam": 0.0, "own_epochs": own_epochs}, rounds=3, momentum=0.9)
    assert torch.equal(run.w, simulate(FedAvg, rounds=3, momentum=0.9).w)
    alone = simulate(Local, rounds=3, momentum=0.9, epochs=own_epochs)  # on the same batches
    assert torch.equal(run.personal, alone.personal)


def test_never_sampled_client_has_the_newest_global_model():
    newest_until_sampled(simulate(Ditto, HALF, participation=0.2, rounds=1))


def test_a_model_each_way():
    assert simulate(Ditto, HALF).traffic == (TASK.size, TASK.size)


@pytest.mark.parametrize("chunk", [1, 2])
def test_by_hand(chunk):
    """f = 1/2 (w - m)^2 with m = 4 for A, -4 for B; lr 0.5, lambda 0.5, a plain mean, from w = v = 0.

    Round 1, w^t = 0.     A: g = -4, w = 2;                       v: -4, v = 2
                          B: g = 4, w = -2; g = 2, w = -3;        v: 4, v = -2; 2 + (-2)/2 = 1, v = -2.5
                          w = (2 - 3) / 2 = -0.5
    Round 2, w^t = -0.5.  A: g = -4.5, w = 1.75;                  v: -2 + 2.5/2 = -0.75, v = 2.375
                          B: g = 3.5, w = -2.25; 1.75, -3.125;    v: 1.5 - 2/2 = 0.5, v = -2.75
                                                                  v: 1.25 - 2.25/2 = 0.125, v = -2.8125
                          w = (1.75 - 3.125) / 2 = -0.6875
    """
    settings = {"epochs": 1, "batch": 1, "lr": 0.5, "weights": "uniform", "chunk": chunk}
    run = simulate(Ditto, HALF, rounds=2, federation=by_hand(ONE_AND_TWO), network=STILL, **settings)
    close(run.w, [-0.6875, 7])
    close(run.personal, [[2.375, 7], [-2.8125, 7]])
