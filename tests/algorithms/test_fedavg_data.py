import numpy as np
import pytest
import torch

from pflsweep.algorithms.fedavg_data import FedAvgData
from pflsweep.data.federation import Federation
from tests.algorithms.helpers import FEDERATION, NETWORK, Quadratic, by_hand, close, same_in_chunks, simulate

TASK, _ = NETWORK
SOME = {"share": 0.2}


def test_clients_train_on_their_own_rows_and_the_public_ones():
    public = set(FEDERATION.public(0.2).tolist())
    assert 0 < len(public) < 45
    both = [len(public | set(rows.tolist())) for rows in FEDERATION.rows["train"]]
    assert simulate(FedAvgData, SOME, rounds=1, epochs=2).results[0].images == 2 * sum(both)


def test_one_model_each_way_and_a_count():
    run = simulate(FedAvgData, SOME)
    assert run.traffic == (TASK.size, TASK.size)
    assert run.results[-1].traffic.others_up == 1


def test_any_chunking_is_the_same_round():
    same_in_chunks(FedAvgData, SOME, momentum=0.9, weight_decay=0.01)


def where_public_is(owner: int) -> Federation:
    """Return a federation in which A has a sample m = 4 and B three with m = -2, with a seed under which `owner`'s is
    public.
    """
    clients = [[([4, 0], 0)], [([-2, 0], 0)] * 3]
    found = (by_hand(clients, seed=seed) for seed in range(50))
    return next(f for f in found if np.isin(f.public(0.25), f.rows["train"][owner]).all())


@pytest.mark.parametrize("chunk", [1, 2])
@pytest.mark.parametrize(
    ("owner", "weights", "share", "rounds", "w"),
    [
        (1, "share", 0.25, 1, -0.5),
        (1, "share", 0.25, 2, -0.75),
        (1, "uniform", 0.25, 1, -0.1),
        (0, "share", 0.25, 1, -0.25),
        (0, "uniform", 0.25, 1, -0.25),
        (1, "share", 1.0, 1, -0.25),
    ],
)
def test_by_hand(chunk, owner, weights, share, rounds, w):
    """f = 1/2 (w - m)^2, m a mean over own and public samples; lr 0.5, a step a round, from w = 0.

    B's is public.   A: m = 1, w = 0.5.  B: m = -2, w = -1.  Weights 1 to 2: w = 0.5 / 3 - 2 / 3 = -0.5
                     Round 2.  A: -0.5 + 0.5 * 1.5 = 0.25.  B: -0.5 - 0.5 * 1.5 = -1.25.  w = 0.25 / 3 - 2.5 / 3 = -0.75
                     Uniform, 1/2 * 1/1 to 1/2 * 2/3, 0.6 to 0.4: w = 0.3 - 0.4 = -0.1
    A's is public.   A trains on it, w = 2, but has nothing private: weight 0.  B: m = (-6 + 4) / 4, w = -0.25
    All are public.  Both train on all of them: m = -0.5, w = -0.25. Nobody has private data.
    """
    network = Quadratic([[1, 0], [0, 0]]), torch.tensor([0.0, 7.0])  # the second number never moves
    run = simulate(
        FedAvgData, {"share": share}, rounds=rounds, chunk=chunk, epochs=1, lr=0.5, weights=weights,
        federation=where_public_is(owner), network=network,
    )  # fmt: skip
    close(run.w, [w, 7])
