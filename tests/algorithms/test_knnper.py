from math import log

import pytest
import torch

from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.algorithms.knnper import KnnPer, Memory
from tests.algorithms.helpers import EVERYBODY, NETWORK, SIZES, close, make, network, simulate

TASK, W0 = NETWORK
HALF = {"k": 3, "weight": 0.5, "validation": 0.2}
OWN = {**HALF, "weight": None}


def test_training_is_fedavg():
    close(simulate(KnnPer, HALF, rounds=3).w, simulate(FedAvg, rounds=3).w)


def test_a_weight_of_0_is_the_global_model():
    run = simulate(KnnPer, {**HALF, "weight": 0.0})
    x = torch.randn(9, 4, dtype=torch.float64)
    close(run.method.logits(run.personal[1], x).softmax(1), TASK.logits(run.w, x).softmax(1))


def test_a_weight_of_1_and_one_neighbour_know_what_they_have_seen():
    run = simulate(KnnPer, {"k": 1, "weight": 1.0, "validation": 0.2}, network=network(seed=3))
    for i, rows in enumerate(run.simulation.federation.rows["train"]):
        x, y = run.simulation.federation.gather(torch.from_numpy(rows))
        z = TASK.features(run.w, x)
        # Without samples that have a twin of another class
        apart = [k for k in range(len(y)) if not ((z - z[k]).norm(dim=1) < 1e-9)[y != y[k]].any()]
        assert apart
        assert torch.equal(run.method.logits(run.personal[i], x).argmax(1)[apart], y[apart])


@pytest.mark.parametrize("chunk", [1, 2, EVERYBODY])
def test_a_datastore_is_the_clients_own(chunk):
    run = simulate(KnnPer, HALF, chunk=chunk)
    for i, n in enumerate(SIZES):
        memory = run.method.memory(run.personal[i])
        x, y = run.simulation.federation.gather(torch.from_numpy(run.simulation.federation.rows["train"][i]))
        assert memory.labels.tolist() == [*y.tolist(), *[-1] * (max(SIZES) - n)]
        close(memory.keys[:n], TASK.features(run.w, x))
        assert not memory.keys[n:].any()


def test_held_rows_are_neither_trained_on_nor_remembered():
    run = simulate(KnnPer, OWN, chunk=EVERYBODY)
    stored = [int((run.method.memory(model).labels >= 0).sum()) for model in run.personal]
    assert stored == [5, 9, 1, 16, 4]  # n - ceil(n / 5); a single sample is in both
    assert not torch.allclose(run.w, simulate(FedAvg).w, rtol=0, atol=1e-4)
    weights = torch.stack([run.method.memory(model).weight for model in run.personal])
    close((10 * weights).round() / 10, weights)
    assert len(weights.unique()) > 1


def test_a_model_each_way():
    assert simulate(KnnPer, HALF).traffic == (TASK.size, TASK.size)


def test_by_hand():
    """z = 0; its neighbours at log 1, log 2, log 4 and log 8 are of classes 0, 1, 1, 0; there is room for a fifth.

    k = 3: e^-d = 1, 1/2, 1/4, so (4/7, 3/7). k = 9, more than there are: 1, 1/2, 1/4, 1/8: (9/15, 6/15).
    Beside it a model that says (1/4, 3/4), with weight 0.2: 0.8 (1/4, 3/4) + 0.2 (4/7, 3/7).
    """
    task, _ = network(hidden=(), classes=2)
    w = torch.zeros(task.size, dtype=torch.float64)
    w[-1] = log(3)
    keys = torch.zeros(5, 4, dtype=torch.float64)
    keys[:4, 1] = torch.tensor([0.0, -log(2), log(4), log(8)], dtype=torch.float64)
    labels, z = torch.tensor([0.0, 1.0, 1.0, 0.0, -1.0]).double(), torch.zeros(1, 4, dtype=torch.float64)
    for k, weight, expected in (
        (3, 1.0, [[4 / 7, 3 / 7]]),
        (9, 1.0, [[9 / 15, 6 / 15]]),
        (3, 0.2, [[0.2 + 0.2 * 4 / 7, 0.6 + 0.2 * 3 / 7]]),
    ):
        method = make(KnnPer, {**HALF, "k": k}, task=task)
        close(method.interpolated(Memory(w, torch.tensor(weight).double(), keys, labels), z), expected, 1e-7)
