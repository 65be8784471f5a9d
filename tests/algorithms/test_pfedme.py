import pytest
import torch

from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.algorithms.pfedme import PFedMe
from tests.algorithms.helpers import (
    EVERYBODY,
    NETWORK,
    ONE_AND_TWO,
    STILL,
    by_hand,
    close,
    newest_until_sampled,
    simulate,
)

TASK, W0 = NETWORK
PLAIN = {"lam": 2.0, "inner_steps": 2, "inner_lr": 0.1, "beta": 1.0, "eval": "theta"}


def test_without_pull_only_personal_models_move():
    loose = {**PLAIN, "lam": 0.0}
    run = simulate(PFedMe, loose, rounds=2)
    close(run.w, W0)
    assert (run.personal != W0).any(1).all()
    close(simulate(PFedMe, {**loose, "eval": "w"}).personal, W0.expand(EVERYBODY, -1))
    # Momentum acts on w alone
    close(simulate(PFedMe, loose, momentum=0.9).personal, run.personal)


def test_beta_zero_keeps_the_server():
    assert torch.equal(simulate(PFedMe, {**PLAIN, "beta": 0.0}, rounds=3).w, W0)


def test_one_step_a_round_is_fedavg():
    """theta-tilde = w - eta_p grad f(w), so w moves by eta lambda eta_p of the gradient."""
    settings = {"rounds": 3, "epochs": 1, "batch": 20, "participation": 0.6, "lr_decay": 0.5}
    run = simulate(PFedMe, {**PLAIN, "inner_steps": 1}, lr=0.5, **settings)
    close(run.w, simulate(FedAvg, lr=0.5 * 2.0 * 0.1, **settings).w)


def test_never_sampled_client_has_the_newest_global_model():
    newest_until_sampled(simulate(PFedMe, PLAIN, participation=0.2, rounds=1))


def test_a_model_each_way():
    assert simulate(PFedMe, PLAIN).traffic == (TASK.size, TASK.size)


@pytest.mark.parametrize("chunk", [1, 2])
def test_by_hand(chunk):
    """f = 1/2 (t - m)^2 with m = 4 for A, -4 for B; K = 2, eta_p 0.5, lambda 2, lr 0.25, beta 2, a plain mean.
    t moves by -1/2 (t - m + 2 (t - w)), then w half of its way to t; from w = 0.

    Round 1.  A: t = 0, 2, 1;             w = 0.5
              B: t = 0, -2, -1;           w = -0.5
                 t = -1, -2, -1.5;        w = -1
              mean -0.25, w = -0 - 0.5 = -0.5
    Round 2.  A: t = -0.5, 1.75, 0.625;   w = 0.0625       (t starts from w again)
              B: t = -0.5, -2.25, -1.375; w = -0.9375
                 t = -2.25, -1.8125;      w = -1.375
              mean -0.65625, w = 0.5 - 1.3125 = -0.8125
    """
    hyper = {"lam": 2.0, "inner_steps": 2, "inner_lr": 0.5, "beta": 2.0}
    settings = {"epochs": 1, "batch": 1, "lr": 0.25, "weights": "uniform", "chunk": chunk, "network": STILL}
    for evaluated, models in (("theta", [[0.625, 7], [-1.8125, 7]]), ("w", [[0.0625, 7], [-1.375, 7]])):
        run = simulate(PFedMe, {**hyper, "eval": evaluated}, federation=by_hand(ONE_AND_TWO), **settings)
        close(run.w, [-0.8125, 7])
        close(run.personal, models)
