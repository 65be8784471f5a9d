from math import exp

import pytest
import torch
from torch import nn
from torch.nn.functional import kl_div, log_softmax, softmax

from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.algorithms.fml import FML
from pflsweep.algorithms.local import Local
from pflsweep.methods.task import Task
from tests.algorithms.as_run.written_out import NAMES, answers, batches, entropy, joined, moved, named, rounds
from tests.algorithms.helpers import NETWORK, by_hand, close, newest_until_sampled, same_in_chunks, simulate

TASK, _ = NETWORK
HYPER = {"alpha": 0.3, "beta": 0.8}


def test_without_teachers_it_is_fedavg_beside_local():
    run = simulate(FML, {"alpha": 1.0, "beta": 1.0}, rounds=3, momentum=0.9)
    close(run.w, simulate(FedAvg, rounds=3, momentum=0.9).w)
    close(run.personal, simulate(Local, rounds=3, momentum=0.9).personal)


def test_a_meme_that_is_not_taught_is_fedavgs_whatever_it_teaches():
    close(simulate(FML, {"alpha": 0.2, "beta": 1.0}, rounds=3).w, simulate(FedAvg, rounds=3).w)


def turn(client, round, received, own):
    """Train with the paper's losses, and PyTorch's own divergence."""
    meme, local = named(received), named(own)
    for x, y in batches(client, round, 2):
        of_meme, of_local = answers(meme, x).detach(), answers(local, x).detach()

        def taught(p, weight, teacher, x=x, y=y):
            logits = answers(p, x)
            divergence = kl_div(log_softmax(logits, 1), softmax(teacher, 1), reduction="batchmean")
            return weight * entropy(logits, y) + (1 - weight) * divergence

        next_meme = moved(meme, lambda p, of=of_local, taught=taught: taught(p, 0.8, of), NAMES)
        local = moved(local, lambda p, of=of_meme, taught=taught: taught(p, 0.3, of), NAMES)
        meme = next_meme
    return joined(meme), joined(local)


def test_trajectory_is_that_of_the_paper_written_out():
    w, own = rounds(turn)
    run = simulate(FML, HYPER, rounds=3)
    close(run.w, w)
    close(run.personal, own)


def test_never_sampled_client_has_the_newest_global_model():
    newest_until_sampled(simulate(FML, HYPER, participation=0.2, rounds=1))


def test_a_model_each_way():
    assert simulate(FML, HYPER).traffic == (TASK.size, TASK.size)


def test_any_chunking_is_the_same_round():
    same_in_chunks(FML, HYPER, momentum=0.9, weight_decay=0.01)


@pytest.mark.parametrize("chunk", [1, 2])
def test_by_hand(chunk):
    """Weights (a, -a) without bias, one sample x = 1 each, of class 0 for A and 1 for B; alpha = beta = 1/2, lr 2.

    The gradient in the first weight is the mean of p_0 - y_0 and p_0 - t_0, t the teacher; its opposite in the second.
    Round 1. A: p = t = 1/2: (-1/2 + 0) / 2 = -1/4, w = v = 1/2. B: -1/2. The mean: w = 0
    Round 2, s = sigmoid(1), what v gives class 0 in A, and class 1 in B.
             A: w: (-1/2 + 1/2 - s) / 2 = -s / 2, w = s;  v: (s - 1 + s - 1/2) / 2 = s - 3/4, v = 1/2 - 2 s + 3/2
             B: the same with the other sign. The mean: w = 0
    """
    network = Task(nn.Sequential(nn.Linear(1, 2, bias=False))), torch.zeros(2, dtype=torch.float64)
    settings = {"epochs": 1, "batch": 1, "lr": 2.0, "network": network, "chunk": chunk}
    pair = by_hand([[([1], 0)], [([1], 1)]], classes=2)
    run = simulate(FML, {"alpha": 0.5, "beta": 0.5}, rounds=2, federation=pair, **settings)
    s = 1 / (1 + exp(-1))
    close(run.w, [0, 0])
    close(run.personal, [[2 - 2 * s, 2 * s - 2], [2 * s - 2, 2 - 2 * s]])
    alone = simulate(
        FML, {"alpha": 0.5, "beta": 0.5}, rounds=2, federation=by_hand([[([1], 0)]], classes=2), **settings
    )
    # w starts round 2 at 1/2 as v does, so neither teaches the other: (s - 1) / 2
    close(alone.w, [1.5 - s, s - 1.5])
    close(alone.personal, [[1.5 - s, s - 1.5]])
