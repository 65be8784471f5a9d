import pytest
import torch
from torch import nn

from pflsweep.algorithms.apfl import APFL
from tests.algorithms.helpers import EVERYBODY, NETWORK, ONE_AND_TWO, STILL, by_hand, close, opened, simulate

TASK, W0 = NETWORK
QUARTER, LEARNT = {"alpha": 0.25, "adaptive": False}, {"alpha": 0.25, "adaptive": True}


def test_without_weight_the_private_model_is_frozen():
    run = simulate(APFL, {"alpha": 0.0, "adaptive": False}, rounds=3, momentum=0.9)
    assert torch.equal(run.clients.v, W0.expand(EVERYBODY, -1))
    assert torch.equal(run.personal, run.w.expand(EVERYBODY, -1))


def test_never_sampled_client_mixes_the_newest_global_model_with_the_initial_one():
    run = simulate(APFL, QUARTER, participation=0.2, rounds=1)
    i = next(i for i in range(EVERYBODY) if i not in run.results[0].ids)
    close(run.personal[i], 0.25 * W0 + 0.75 * run.w)


@pytest.mark.parametrize("ids", [[3], list(range(EVERYBODY))])
def test_alpha_takes_one_step_a_round_on_the_first_batch(ids):
    run = simulate(APFL, LEARNT)
    assert (run.clients.alpha != 0.25).all()
    given, data, work = opened(run, ids)
    expected = []
    for i in ids:
        _, data_of_i, (w, _, v, _, alpha, _) = opened(run, [i])
        batch = next(data_of_i.train(1))
        alpha.requires_grad_()
        loss = nn.functional.cross_entropy(TASK.logits((alpha * v + (1 - alpha) * w)[0], batch.x[0]), batch.y[0])
        expected.append((alpha - 0.1 * torch.autograd.grad(loss, alpha)[0]).clamp(0, 1).item())
    close(run.method.fit(given, data, work).alpha, expected)


def test_a_model_each_way():
    assert simulate(APFL, LEARNT).traffic == (TASK.size, TASK.size)


SETTINGS = {"epochs": 1, "batch": 1, "lr": 0.5, "weights": "uniform", "network": STILL}


@pytest.mark.parametrize("chunk", [1, 2])
def test_by_hand(chunk):
    """f = 1/2 (w - m)^2 with m = 4 for A, -4 for B; lr 0.5, a plain mean, alpha 1/4, from w = v = 0.
    u is v-bar = v/4 + 3w/4, and v moves by lr alpha = 1/8 of the gradient there.

    Round 1.  A: u = 0:       w = 2,  v = 4/8 = 0.5
              B: u = 0:       w = -2, v = -0.5
                 u = -1.625:  w = -3, v = -0.5 - 2.375/8 = -0.796875
              w = (2 - 3) / 2 = -0.5; A is served by 0.5/4 - 1.5/4 = -0.25, B by (-0.796875 - 1.5) / 4
    Round 2.  A: u = -0.25:   v = 0.5 + 4.25/8 = 1.03125
              adaptive: slope (v - w) f'(u) = (0.5 + 0.5) (-4.25), 1/4 + 4.25/2 is above 1: alpha = 1, from the next
              step on; v moves with the old one. In round 1, v = w leaves alpha.
    """
    settings = {**SETTINGS, "chunk": chunk, "federation": by_hand(ONE_AND_TWO)}
    first = simulate(APFL, QUARTER, rounds=1, **settings)
    close(first.w, [-0.5, 7])
    close(first.clients.v, [[0.5, 7], [-0.796875, 7]])
    close(first.personal, [[-0.25, 7], [-0.57421875, 7]])
    second = simulate(APFL, QUARTER, rounds=2, **settings)
    close(second.clients.v[0], [1.03125, 7])
    close(simulate(APFL, LEARNT, rounds=1, **settings).clients, first.clients)
    learnt = simulate(APFL, LEARNT, rounds=2, **settings)
    close(learnt.clients.alpha[0], torch.tensor(1.0, dtype=torch.float64))
    close(learnt.personal[0], [1.03125, 7])


def test_alpha_falls_to_zero_where_the_global_model_is_better():
    """A alone: w = 2, v = 0.5 after round 1; then u = 1.625, slope (0.5 - 2) (-2.375) = 3.5625, 1/4 - 1.78 < 0."""
    run = simulate(APFL, LEARNT, rounds=2, federation=by_hand(ONE_AND_TWO[:1]), **SETTINGS)
    close(run.clients.alpha, [0])
