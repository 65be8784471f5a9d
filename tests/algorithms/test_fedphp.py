import math
from collections import OrderedDict
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.algorithms.fedphp import FedPHP, distilled, mmd
from pflsweep.methods import stock
from pflsweep.methods.task import Batch, Task
from tests.algorithms.helpers import EVERYBODY, NETWORK, by_hand, close, opened, same_in_chunks, simulate

TASK, W0 = NETWORK
HYPER = {"strength": 0.3, "transfer": "mmd", "mu": 0.9, "grows": True}
KD = {**HYPER, "transfer": "kd"}
FIXED = {**HYPER, "grows": False}


def batch_of(rows: int, mask: list[int] | None = None) -> Batch:
    kept = None if mask is None else torch.tensor(mask, dtype=torch.bool)
    return Batch(torch.zeros(rows, 1), torch.zeros(rows, dtype=torch.int64), kept, None, None)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True, kw_only=True)
class Keeping(FedAvg):
    """FedAvg whose clients keep their trained models."""

    init_client = stock.own_model

    def finish(self, given, data, work):
        return stock.Up(work.w), stock.Own(work.w)


def test_without_teaching_and_inheritance_it_is_fedavgs_local_model():
    ours = simulate(FedPHP, {**FIXED, "strength": 0.0, "mu": 0.0}, rounds=3, participation=0.6)
    theirs = simulate(Keeping, rounds=3, participation=0.6)
    assert torch.equal(ours.w, theirs.w)
    assert torch.equal(ours.clients.w, theirs.clients.w)


def test_with_all_momentum_the_private_model_stays():
    run = simulate(FedPHP, {**FIXED, "mu": 1.0})
    assert torch.equal(run.clients.w, W0.expand(EVERYBODY, -1))
    assert not torch.equal(run.w, W0)


def test_the_first_turn_sets_the_private_model():
    run = simulate(FedPHP, HYPER, rounds=1)
    close(run.clients.w, simulate(FedPHP, {**FIXED, "mu": 0.0}, rounds=1).clients.w)


@pytest.mark.parametrize(("rounds", "participation", "expected"), [(6, 1.0, 6), (6, 0.4, 2), (2, 0.2, 1)])
def test_momentum_grows_with_a_clients_own_turns(rounds, participation, expected):
    """It is 0.9 times the share of turns taken before among those expected, and at most 0.9."""
    run = simulate(FedPHP, HYPER, rounds=rounds, participation=participation)
    turns = torch.zeros(EVERYBODY, dtype=torch.int64)
    for result in run.results:
        turns[result.ids] += 1
    assert torch.equal(run.clients.turns, turns)
    assert run.clients.expected == expected
    given, data, work = opened(run, list(range(EVERYBODY)))
    _, after = run.method.finish(given, data, work._replace(w=torch.zeros_like(work.w)))
    mu = (0.9 * turns.double() / expected).clamp(max=0.9)[:, None]
    close(after.w, mu * run.clients.w)


def test_who_never_took_part_has_the_global_model():
    run = simulate(FedPHP, HYPER, participation=0.4)
    never = run.simulation.last < 0
    assert never.any()
    close(run.personal[never], run.w.expand(int(never.sum()), -1))
    close(run.personal[~never], run.clients.w[~never])


@pytest.mark.parametrize("hyper", [HYPER, KD])
def test_the_teacher_is_the_private_model_of_before_the_turn(hyper):
    """Compare the step's gradient with autograd through the whole loss."""
    run = simulate(FedPHP, hyper)
    given, data, work = opened(run, [3])
    batch = next(data.train(1))
    got = run.method.step(given, work._replace(w=work.w.clone()), batch).w[0]
    one = Batch(batch.x[0], batch.y[0], None, None, batch.key[0])
    w, teacher = work.w[0].clone().requires_grad_(), run.clients.w[3]
    z, old = TASK.features(w, one.x), TASK.features(teacher, one.x)
    logits = TASK.classify(w[TASK.head], z)
    taught = mmd(z, old, one) if hyper is HYPER else distilled(logits, TASK.logits(teacher, one.x), one)
    loss = 0.7 * torch.nn.functional.cross_entropy(logits, one.y) + 0.3 * taught
    (g,) = torch.autograd.grad(loss, w)
    close(got, work.w[0] - 0.1 * g)


def test_mmd_is_the_mean_of_four_blocks_of_kernels():
    ours, theirs = drawn(5, 3), drawn(5, 3, seed=1) + 1
    z = torch.cat([ours, theirs])
    distances = torch.cdist(z, z) ** 2
    mean = distances.sum() / (10 * 9)
    kernels = sum(torch.exp(-distances / (mean * factor)) for factor in (0.25, 0.5, 1, 2, 4))
    xx, yy, xy, yx = kernels[:5, :5], kernels[5:, 5:], kernels[:5, 5:], kernels[5:, :5]
    close(mmd(ours, theirs, batch_of(5)), (xx + yy - xy - yx).mean(), 1e-6)  # 1e-8 on the width


def test_mmd_of_equal_features_is_nothing_and_pulls_nowhere():
    for rows in (1, 4):
        ours = drawn(rows, 3).requires_grad_()
        value = mmd(ours, ours.detach().clone(), batch_of(rows))
        (g,) = torch.autograd.grad(value, ours)
        close((value.detach(), g), (torch.zeros((), dtype=torch.float64), torch.zeros_like(g)))


@pytest.mark.parametrize("mask", [None, [1, 0, 0]])
def test_mmd_of_a_single_sample_pulls_nowhere(mask):
    """Its only distance would be its own bandwidth: the nearer the features, the stronger the pull."""
    ours = drawn(1 if mask is None else 3, 3).requires_grad_()
    value = mmd(ours, ours.detach() + 1e-3, batch_of(len(ours), mask))
    (g,) = torch.autograd.grad(value, ours)
    close((value.detach(), g), (torch.zeros((), dtype=torch.float64), torch.zeros_like(g)))


def test_training_with_mmd_on_batches_of_one_sample_stays_finite():
    """From round 2 on the received model is near the private one; without that rule weights reached 1e3."""
    run = simulate(FedPHP, {**HYPER, "strength": 0.5}, rounds=6, batch=1, lr=0.1)
    plain = simulate(FedAvg, rounds=6, batch=1, lr=0.1)
    assert run.w.abs().max() < 3 * plain.w.abs().max()


def test_mmds_width_is_a_constant_of_its_gradient():
    """Scaling all features would leave MMD unchanged; with the width held constant, their scale has a gradient."""
    ours = drawn(4, 3).requires_grad_()
    (g,) = torch.autograd.grad(mmd(ours, torch.zeros(4, 3, dtype=torch.float64), batch_of(4)), ours)
    assert (g * ours).sum().abs() > 1e-3


def test_padding_teaches_nothing():
    ours, theirs = drawn(3, 2), drawn(3, 2, seed=1)
    padded = [torch.cat([features, torch.full((2, 2), 1e200, dtype=torch.float64)]) for features in (ours, theirs)]
    mask = batch_of(5, [1, 1, 1, 0, 0])
    close(mmd(*padded, batch=mask), mmd(ours, theirs, batch_of(3)))
    close(distilled(*padded, batch=mask), distilled(ours, theirs, batch_of(3)))


def test_kd_softens_the_teacher_alone():
    logits, teacher = drawn(5, 3), drawn(5, 3, seed=1)
    wanted = torch.nn.functional.cross_entropy(logits, (teacher / 4).softmax(1))
    close(distilled(logits, teacher, batch_of(5)), wanted)


def test_a_model_each_way():
    assert simulate(FedPHP, HYPER).traffic == (TASK.size, TASK.size)


@pytest.mark.parametrize("hyper", [HYPER, KD])
def test_any_chunking_is_the_same_round(hyper):
    same_in_chunks(FedPHP, hyper, momentum=0.9)
    one, all_ = (simulate(FedPHP, hyper, rounds=3, participation=0.6, chunk=k) for k in (1, EVERYBODY))
    close(all_.clients, one.clients)


@pytest.mark.parametrize("chunk", [1, 2])
def test_by_hand(chunk):
    """Logits are the two weights: one sample x = 1 each, of class 0 for A and 1 for B; KD, lambda 1/2, lr 2, from
    (0, 0). The gradient is 1/2 (p - y) + 1/2 (p - t), p the prediction, t the softened one of w^p, s the sigmoid.

    Round 1.  A: p = t = 1/2; g_0 = -1/4, w = (1/2, -1/2) = w^p, mu being 0.  B: (-1/2, 1/2). theta = 0
    Round 2.  A: p = 1/2, t = s(1/4); g_0 = -1/4 + 1/2 (1/2 - t), w_0 = t.  mu = 0.9 * 1/2; w^p_0 = 0.45 / 2 + 0.55 t
    """
    head = nn.Linear(1, 2, bias=False)
    nn.init.zeros_(head.weight)
    task = Task(nn.Sequential(OrderedDict(flatten=nn.Flatten(), head=head)).double())
    network = task, torch.zeros(2, dtype=torch.float64)
    federation = by_hand([[([1], 0)], [([1], 1)]], classes=2)
    hyper = {"strength": 0.5, "transfer": "kd", "mu": 0.9, "grows": True}
    settings = {"epochs": 1, "batch": 1, "lr": 2.0, "federation": federation, "network": network, "chunk": chunk}
    run = simulate(FedPHP, hyper, rounds=2, **settings)
    t = 1 / (1 + math.exp(-1 / 4))
    w = 0.225 + 0.55 * t
    close(run.clients.w, [[w, -w], [-w, w]])
    close(run.w, [0, 0])
