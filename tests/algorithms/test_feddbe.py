from math import exp

import pytest
import torch
from torch import nn

from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.algorithms.feddbe import FedDBE
from pflsweep.methods.task import Task
from pflsweep.models.blocks import model_of
from tests.algorithms.helpers import EVERYBODY, NETWORK, by_hand, close, same_in_chunks, simulate

TASK, W0 = NETWORK
WIDTH = 5  # of the last hidden layer
ONE = {"kappa": 1.0, "mu": 0.5}


def test_round_1_is_fedavg_and_finds_the_consensus():
    run = simulate(FedDBE, ONE, rounds=1, momentum=0.9, weight_decay=0.01)
    close(run.w, simulate(FedAvg, rounds=1, momentum=0.9, weight_decay=0.01).w)
    assert not run.clients.bias.any()
    assert run.server.consensus.abs().max() > 0.01
    assert run.traffic == (TASK.size + WIDTH, TASK.size + WIDTH)


def test_the_consensus_stays_and_is_no_longer_sent_up():
    first, third = (simulate(FedDBE, ONE, rounds=rounds, participation=0.4) for rounds in (1, 3))
    assert torch.equal(first.server.consensus, third.server.consensus)
    assert third.traffic == (TASK.size + WIDTH, TASK.size)


def test_offsets_are_never_sent():
    before, after = (simulate(FedDBE, ONE, participation=0.4, rounds=rounds) for rounds in (2, 3))
    cohort = set(after.results[-1].ids.tolist())
    for i in range(EVERYBODY):
        assert torch.equal(after.clients.bias[i], before.clients.bias[i]) == (i not in cohort)


def test_a_stronger_term_holds_the_features_mean_nearer():
    apart = []
    for kappa in (0.0, 10.0):
        run = simulate(FedDBE, {"kappa": kappa, "mu": 1.0}, rounds=10, epochs=5, lr=0.05)
        data = run.simulation.federation
        means = [TASK.features(run.w, data.gather(torch.from_numpy(rows))[0]).mean(0) for rows in data.rows["train"]]
        apart.append(float((torch.stack(means) - run.server.consensus).norm()))
    assert apart[1] < apart[0]


def test_any_chunking_is_the_same_round():
    same_in_chunks(FedDBE, ONE, momentum=0.9, weight_decay=0.01)
    first = simulate(FedDBE, ONE, rounds=3, chunk=1)
    close(simulate(FedDBE, ONE, rounds=3, chunk=EVERYBODY).server, first.server)


@pytest.mark.parametrize("chunk", [1, 2])
def test_by_hand(chunk):
    """z = a x, logits = h z; a = 1, h = (0, 0); two equal clients with one sample x = 2 of class 0. lr 0.5, kappa 3,
    mu 1.

    Round 1.  z = 2, p = (1/2, 1/2): g_h = (-1/2, 1/2) 2, g_a = 0: h = (1/2, -1/2), a = 1. consensus 2.
    Round 2.  logits (1, -1), s = 1 - p_0 = 1 / (1 + e^2): g_h = (-s, s) 2, g_z = -s, so g_a = -2 s and g_bias = -s;
              the mean is the consensus: no pull. a = 1 + s, h = (1/2 + s, -1/2 - s), bias = s / 2.
    Round 3.  z = 2 + 2 s, z + bias = 2 + 5/2 s, logits +-(1/2 + s)(2 + 5/2 s), r = 1 / (1 + e^(2 |logit|)):
              g_z = -r (1 + 2 s) + 3 * 2 * 2 s, g_a = 2 g_z, g_bias = -r (1 + 2 s).
    """
    model = model_of(fc1=nn.Sequential(nn.Linear(1, 1, bias=False)), head=nn.Linear(1, 2, bias=False)).double()
    network = Task(model), torch.tensor([1.0, 0.0, 0.0]).double()
    settings = {"epochs": 1, "lr": 0.5, "chunk": chunk, "network": network}
    clients = by_hand([[([2], 0)]] * 2, classes=2)
    runs = [simulate(FedDBE, {"kappa": 3.0, "mu": 1.0}, rounds=k, federation=clients, **settings) for k in (1, 2, 3)]
    close(runs[0].w, [1, 0.5, -0.5])
    close(runs[0].server.consensus, [2])
    s = 1 / (1 + exp(2))
    close(runs[1].w, [1 + s, 0.5 + s, -0.5 - s])
    close(runs[1].personal[0], [1 + s, 0.5 + s, -0.5 - s, s / 2])
    r = 1 / (1 + exp(2 * (0.5 + s) * (2 + 2.5 * s)))
    close(runs[2].w[:1], [1 + s - 0.5 * 2 * (-r * (1 + 2 * s) + 12 * s)])
    close(runs[2].clients.bias, [[s / 2 + 0.5 * r * (1 + 2 * s)]] * 2)
    x = torch.tensor([[2.0]]).double()
    a, h, _, bias = runs[2].personal[0]
    close(runs[2].method.logits(runs[2].personal[0], x), (torch.stack([h, -h]) * (2 * a + bias))[None])
