from math import log

import torch

from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.algorithms.fedntd import FedNTD, not_true_divergence
from tests.algorithms.helpers import EVERYBODY, NETWORK, close, federation, network, same_in_chunks, simulate

TASK, W0 = NETWORK
ONE = {"beta": 1.0, "tau": 1.0}


def test_two_classes_are_fedavg():
    """With two classes the other one has all the probability."""
    settings = {"federation": federation(classes=2), "network": network(classes=2), "rounds": 3}
    close(simulate(FedNTD, ONE, **settings).w, simulate(FedAvg, **settings).w)


def test_three_classes_are_not():
    assert not torch.allclose(simulate(FedNTD, ONE).w, simulate(FedAvg).w, rtol=0, atol=1e-4)


def test_the_first_step_is_fedavgs():
    """At the beginning the local model is the received one, where the divergence is smallest."""
    settings = {"rounds": 1, "epochs": 1, "batch": 20}
    close(simulate(FedNTD, ONE, **settings).w, simulate(FedAvg, **settings).w)


def test_everybody_has_the_global_model():
    run = simulate(FedNTD, ONE)
    assert torch.equal(run.personal, run.w.expand(EVERYBODY, -1))


def test_a_model_each_way():
    assert simulate(FedNTD, ONE).traffic == (TASK.size, TASK.size)


def test_any_chunking_is_the_same_round():
    same_in_chunks(FedNTD, ONE, momentum=0.9, weight_decay=0.01)


def test_by_hand():
    """Classes 1 and 2 of a sample of class 0: the teacher has (1/2, 1/2), the model (1/4, 3/4).

    L_NTD = 1/2 log(1/2 / (1/4)) + 1/2 log(1/2 / (3/4)) = 1/2 log(4/3), whatever the logits of class 0 are.
    Its gradient in the model's logits is (0, 1/4 - 1/2, 3/4 - 1/2). With tau = 2 the logits 2 log 3 say the same, and
    the gradient is half of it.
    """
    teacher, y = torch.tensor([[9.0, 1.0, 1.0]]).double(), torch.tensor([0])
    for tau in (1, 2):
        logits = torch.tensor([[-4.0, 0.0, tau * log(3)]], dtype=torch.float64, requires_grad=True)
        loss = not_true_divergence(logits, teacher, y, tau)
        close(loss, [log(4 / 3) / 2])
        (g,) = torch.autograd.grad(loss.sum(), logits)
        close(g[0], [0, -0.25 / tau, 0.25 / tau])
