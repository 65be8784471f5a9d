import torch

from pflsweep.algorithms.fedprox import FedProx

from .helpers import Quadratic, by_hand, close, simulate


def test_by_hand():
    """f(w) = (w - m)^2 / 2 in both coordinates, mu = 0.5, lr 0.1, two steps from w^t = (0, 0).

    A, one sample m = (1, 2):  g = w - m + mu w
      step 1   g = (-1, -2),                          w = (0.1, 0.2)
      step 2   g = (-0.9 + 0.05, -1.8 + 0.1),         w = (0.185, 0.37)
    B, three samples m = (-1, 0):
      step 1   g = (1, 0),                            w = (-0.1, 0)
      step 2   g = (0.9 - 0.05, 0),                   w = (-0.185, 0)
    server     w = (0.185 - 3 * 0.185, 0.37) / 4 = (-0.0925, 0.0925)
    """
    task = Quadratic([[1.0, 0.0], [0.0, 1.0]])
    clients = [[([1.0, 2.0], 0)], [([-1.0, 0.0], 0)] * 3]
    run = simulate(
        FedProx, {"mu": 0.5}, rounds=1, epochs=2, lr=0.1,
        federation=by_hand(clients), network=(task, torch.zeros(2, dtype=torch.float64)),
    )  # fmt: skip
    close(run.w, [-0.0925, 0.0925])
