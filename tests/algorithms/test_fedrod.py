from math import log

import pytest
import torch
from torch import nn

from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.algorithms.fedrod import FedRoD, balanced_softmax
from pflsweep.methods.task import Task
from tests.algorithms.helpers import EVERYBODY, FEDERATION, NETWORK, by_hand, close, opened, same_in_chunks, simulate

TASK, W0 = NETWORK
COPY, ZERO = {"init_personal": "copy"}, {"init_personal": "zero"}


@pytest.mark.parametrize("chunk", [1, EVERYBODY])
def test_private_heads_never_touch_the_generic_model(chunk):
    copy, zero = (simulate(FedRoD, h, rounds=3, chunk=chunk, momentum=0.9) for h in (COPY, ZERO))
    assert torch.equal(copy.w, zero.w)
    assert (copy.clients.head != zero.clients.head).any(1).all()


def test_with_uniform_priors_the_generic_model_is_fedavg():
    generator = torch.Generator().manual_seed(0)
    balanced = by_hand(
        [[(torch.randn(4, generator=generator).tolist(), k % 3) for k in range(n)] for n in (3, 9, 12)],
        classes=3,
    )
    settings = {"rounds": 3, "momentum": 0.9, "federation": balanced}
    close(simulate(FedRoD, COPY, **settings).w, simulate(FedAvg, **settings).w)


def test_a_missing_class_has_no_part_in_the_loss():
    assert (FEDERATION.class_counts == 0).any(1).all()
    run = simulate(FedRoD, COPY)
    given, data, work = opened(run, [3])
    batch = next(data.train(1))
    prior = (given.class_counts[0] / given.class_counts[0].sum()).log()  # -inf for the missing class
    assert not prior.isfinite().all()
    missing = batch._replace(y=prior.argmin()[None], mask=None)  # as padding may be
    assert balanced_softmax(given.class_counts[0], torch.float32)(torch.zeros(1, len(prior)), missing).isfinite()
    w = work.w[0].clone().requires_grad_()
    loss = nn.functional.cross_entropy(TASK.logits(w, batch.x[0]) + prior, batch.y[0])
    expected = w - 0.1 * torch.autograd.grad(loss, w)[0]
    close(run.method.step(given, work, batch).w[0], expected.detach())


def test_a_personal_model_adds_both_heads():
    run, x = simulate(FedRoD, COPY), torch.randn(6, 4, dtype=torch.float64)
    z = TASK.features(run.w, x)
    for personal, head in zip(run.personal, run.clients.head, strict=True):
        close(TASK.logits(personal, x), TASK.classify(run.w[TASK.head], z) + TASK.classify(head, z))


def test_never_sampled_client_adds_the_initial_head():
    for hyper, initial in ((COPY, W0[TASK.head]), (ZERO, torch.zeros_like(W0[TASK.head]))):
        run = simulate(FedRoD, hyper, rounds=1, participation=0.2)
        i = next(i for i in range(EVERYBODY) if i not in run.results[0].ids)
        assert torch.equal(run.personal[i, TASK.head], run.w[TASK.head] + initial)


def test_a_model_each_way():
    assert simulate(FedRoD, COPY).traffic == (TASK.size, TASK.size)


def test_any_chunking_is_the_same_round():
    same_in_chunks(FedRoD, COPY, momentum=0.9, weight_decay=0.01)


def test_by_hand():
    """z = phi x, two classes, no biases; from phi = 1, h = h^p = (0, 0). Three samples x = 1 of class 0, one
    x = -1 of class 1, so pi = (3/4, 1/4). L = ln 3, lr = 4/3 L. Heads stay of the form (a, -a): a is given.

    Step 1. generic: p_0 = 3/4; p_0 - y_0 is -1/4 on class 0, 3/4 on class 1;
            g_h = (3 (-1/4) 1 + (3/4)(-1)) / 4 = -3/8, h = L / 2; g_phi = 0 as h = 0
            private: p_0 = 1/2; g = (3 (-1/2) 1 + (1/2)(-1)) / 4 = -1/2, h^p = 2/3 L
    Step 2. generic: p_0 = sigmoid(L z + L) is 9/10 at z = 1, 1/2 at z = -1; p_0 - y_0 is -1/10, 1/2;
            g_h = (3 (-1/10) 1 + (1/2)(-1)) / 4 = -1/5, h = L / 2 + 4/15 L = 23/30 L
            g_phi = (3 * 1 * 2 (L/2)(-1/10) + (-1) 2 (L/2)(1/2)) / 4 = -L / 5, phi = 1 + 4/15 L^2
            private: logits differ by 2 (L/2 + 2/3 L) z = 7/3 L z; q = sigmoid(7/3 L), p_0 = q or 1 - q;
            g = (3 (q - 1) 1 + (1 - q)(-1)) / 4 = q - 1, h^p = 2/3 L + 4/3 L (1 - q)
    """
    task = Task(nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 2, bias=False)))
    network = task, torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    federation = by_hand([[([1], 0), ([1], 0), ([1], 0), ([-1], 1)]], classes=2)
    ln3, q = log(3), 1 / (1 + 3 ** (-7 / 3))
    run = simulate(FedRoD, ZERO, rounds=1, lr=4 / 3 * ln3, federation=federation, network=network)
    h, private = 23 / 30 * ln3, ln3 * (2 / 3 + 4 / 3 * (1 - q))
    close(run.w, [1 + 4 / 15 * ln3**2, h, -h])
    close(run.clients.head, [[private, -private]])
    close(run.personal, [[1 + 4 / 15 * ln3**2, h + private, -h - private]])
