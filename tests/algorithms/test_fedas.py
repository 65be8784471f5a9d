from math import exp, log

import pytest
import torch
from torch import nn
from torch.func import functional_call

from pflsweep.algorithms.fedas import FedAS
from pflsweep.algorithms.local import Local
from pflsweep.methods.task import Task
from tests.algorithms.as_run.written_out import NAMES, answers, batches, entropy, joined, moved, named
from tests.algorithms.helpers import (
    EVERYBODY,
    FEDERATION,
    NETWORK,
    by_hand,
    close,
    opened,
    same_in_chunks,
    simulate,
)

TASK, W0 = NETWORK
HYPER = {"align_epochs": 2, "align_lr": 0.5}
OWN = [FEDERATION.gather(torch.from_numpy(rows)) for rows in FEDERATION.rows["train"]]


def test_alone_and_without_alignment_it_is_local():
    alone = by_hand([[([1, 2, 0, -1], 0), ([0, 1, 1, 2], 1), ([2, 0, 1, 1], 2)]], classes=3)
    settings = {"rounds": 3, "federation": alone, "momentum": 0.9}
    ours = simulate(FedAS, {**HYPER, "align_epochs": 0}, **settings)
    close(ours.personal, simulate(Local, **settings).personal)


def test_alignment_moves_the_extractor_alone_towards_the_old_features():
    run = simulate(FedAS, HYPER)
    given, data, work = opened(run, [3])
    head, x = TASK.head, OWN[3][0]
    old, before = TASK.features(run.clients.w[3], x).mean(0), TASK.features(work.w[0], x).mean(0)
    for batch in data.train(20):
        work = run.method.align_step(given, work, batch)
    after = TASK.features(work.w[0], x).mean(0)
    assert (after - old).norm() < 0.5 * (before - old).norm()
    assert torch.equal(work.w[0, head], run.clients.w[3, head])


def test_a_first_turn_aligns_nothing():
    one, none = (simulate(FedAS, {**HYPER, "align_epochs": k}, rounds=1).personal for k in (2, 0))
    assert torch.equal(one, none)


def written_out(count=3):
    """The authors' steps in plain torch, with a list of features for each class."""
    extractor = nn.Sequential(*list(TASK.model)[:-1])
    body, head = NAMES[:-2], NAMES[-2:]

    def features(p, x):
        return functional_call(extractor, {n.replace("fc1", "0", 1): p[n] for n in body}, (x,))

    own, shared, traces = [named(W0) for _ in range(EVERYBODY)], named(W0), []
    for round in range(1, count + 1):
        traces = []
        for i in range(EVERYBODY):
            x, y = OWN[i]
            old = {k: features(own[i], x)[y == k].mean(0) for k in set(y.tolist())}
            w = {**{n: shared[n] for n in body}, **{n: own[i][n] for n in head}}
            for x, y in batches(i, round, 2, "align") if round > 1 else ():

                def apart(p, x=x, y=y, old=old):
                    z = features(p, x)
                    return sum((z[y == k] - old[k]).square().mean() for k in set(y.tolist()))

                w = moved(w, apart, body, lr=0.5)
            for x, y in batches(i, round, 2):
                w = moved(w, lambda p, x=x, y=y: entropy(answers(p, x), y), NAMES)
            trace = 0.0
            for x, y in batches(i, round, 1, "fisher"):
                stepped = moved(w, lambda p, x=x, y=y: entropy(answers(p, x), y), NAMES, lr=1.0)
                trace += sum(float((w[n] - stepped[n]).square().sum()) for n in NAMES)
            own[i] = w
            traces.append(trace)
        shared = {n: sum(t * w[n] for t, w in zip(traces, own, strict=True)) / sum(traces) for n in NAMES}
    return joined(shared)[TASK.extractor], torch.stack([joined(w) for w in own])


def test_trajectory_is_that_of_the_authors_code_written_out():
    w, own = written_out()
    run = simulate(FedAS, HYPER, rounds=3)
    close(run.w, w)
    close(run.personal, own)


def test_never_sampled_client_has_the_newest_extractor():
    run = simulate(FedAS, HYPER, participation=0.4)
    never = run.simulation.last < 0
    assert never.any()
    close(run.personal[never], torch.cat([run.w, W0[TASK.head]]).expand(int(never.sum()), -1))


def test_only_the_extractor_travels():
    assert simulate(FedAS, HYPER).traffic == (TASK.extractor.stop, TASK.extractor.stop)


def test_any_chunking_is_the_same_round():
    same_in_chunks(FedAS, HYPER, momentum=0.9)
    one, all_ = (simulate(FedAS, HYPER, rounds=3, participation=0.6, chunk=k) for k in (1, EVERYBODY))
    close(all_.personal, one.personal)


@pytest.mark.parametrize("chunk", [1, 2])
def test_by_hand(chunk):
    """z = phi x, two classes, no biases; phi = 1, head (L / 2, -L / 2) with L = ln 3; A has x = 1 of class 0, B of 1.

    Round 1, lr 4.  A: p_0 = 3/4, off by -1/4; phi: -1/4 L, phi = 1 + L; head: a = L / 2 + 1, -a
                    B: p_1 = 1/4, off by -3/4; phi: 3/4 L, phi = 1 - 3 L; head: b = L / 2 - 3, -b
    Traces.  With r the chance of the wrong class, each weight of the head has the slope r phi, phi the slope 2 r a:
             r^2 (2 phi^2 + 4 a^2), r_A = 1 / (1 + exp(2 a phi_A)), r_B = 1 / (1 + exp(-2 b phi_B))
    Round 2. Alignment at lr 1/4: (phi - phi_A)^2 has the slope 2 (phi - phi_A), so phi goes half the way back.
    """
    network = Task(nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 2, bias=False)))
    ln3 = log(3)
    w0 = torch.tensor([1, ln3 / 2, -ln3 / 2], dtype=torch.float64)
    pair = by_hand([[([1], 0)], [([1], 1)]], classes=2)
    settings = {"epochs": 1, "batch": 1, "lr": 4.0, "federation": pair, "network": (network, w0), "chunk": chunk}
    run = simulate(FedAS, {"align_epochs": 1, "align_lr": 0.25}, rounds=1, **settings)
    (phi_a, a), (phi_b, b) = (1 + ln3, ln3 / 2 + 1), (1 - 3 * ln3, ln3 / 2 - 3)
    close(run.personal, [[phi_a, a, -a], [phi_b, b, -b]])
    of_a = (2 * phi_a**2 + 4 * a**2) / (1 + exp(2 * a * phi_a)) ** 2
    of_b = (2 * phi_b**2 + 4 * b**2) / (1 + exp(-2 * b * phi_b)) ** 2
    phi = (of_a * phi_a + of_b * phi_b) / (of_a + of_b)
    close(run.w, [phi])
    given, data, work = opened(run, [0, 1])
    (batch,) = data.train(1, "align")
    aligned = run.method.align_step(given, work, batch).w
    close(aligned, [[(phi + phi_a) / 2, a, -a], [(phi + phi_b) / 2, b, -b]])
