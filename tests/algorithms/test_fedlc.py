from math import log

import pytest
import torch

from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.algorithms.fedlc import FedLC
from tests.algorithms.helpers import EVERYBODY, NETWORK, by_hand, close, network, opened, same_in_chunks, simulate

TASK, W0 = NETWORK
ONE = {"tau": 1.0}


@pytest.mark.parametrize("chunk", [1, EVERYBODY])
def test_a_missing_class_is_not_pushed_down(chunk):
    """Client 0 lacks class 2: at tau = 1 its head's row for that class stays, while FedAvg moves it."""
    head = TASK.head.stop - 3  # the bias of class 0
    for method, hyper, moves in ((FedLC, ONE, False), (FedAvg, {}, True)):
        run = simulate(method, hyper, rounds=1, participation=1.0, chunk=chunk)
        assert run.simulation.federation.class_counts[0, 2] == 0
        given, data, work = opened(run, [0])
        trained = run.method.fit(given, data, work).w
        assert bool((trained[0, head + 2] - given.down.w[0, head + 2]).abs() > 1e-12) == moves


def test_everybody_has_the_global_model():
    run = simulate(FedLC, ONE)
    assert torch.equal(run.personal, run.w.expand(EVERYBODY, -1))


def test_a_model_each_way():
    assert simulate(FedLC, ONE).traffic == (TASK.size, TASK.size)


def test_any_chunking_is_the_same_round():
    same_in_chunks(FedLC, ONE, momentum=0.9, weight_decay=0.01)


def test_by_hand():
    """16 samples of class 0 and one of class 1, all x = 0, so that only the biases move, from 0. tau = 2 log 3, lr 1.

    Margins: n_0^(-1/4) tau = log 3, n_1^(-1/4) tau = 2 log 3. e^-margin: 1/3, 1/9, so p = (3/4, 1/4).
    One step: b_0 = 16/17 - 3/4 = 13/68, b_1 = 1/17 - 1/4 = -13/68.
    """
    task, w0 = network(hidden=(), classes=2)
    samples = [[([0, 0, 0, 0], 0)] * 16 + [([0, 0, 0, 0], 1)]]
    run = simulate(
        FedLC, {"tau": 2 * log(3)}, rounds=1, epochs=1, batch=17, lr=1.0,
        federation=by_hand(samples, classes=2), network=(task, torch.zeros_like(w0)),
    )  # fmt: skip
    close(run.w, [0] * 8 + [13 / 68, -13 / 68])
