from math import sqrt

import pytest
import torch

from pflsweep.algorithms.fedopt import FedOpt
from pflsweep.config.schema import check_fields
from pflsweep.util.errors import UserError
from tests.algorithms.helpers import NETWORK, ONE_AND_TWO, STILL, by_hand, close, make, simulate

TASK, W0 = NETWORK
ADAM = {"rule": "adam", "global_lr": 1.0, "beta_1": 0.5, "beta_2": 0.5, "tau": 0.5}


def test_the_rules_differ_in_the_second_moment_alone():
    """v = 4, Delta^2 = (1, 4, 16), beta_2 = 0.75: Yogi moves by a quarter of Delta^2, towards it."""
    v, square = torch.full((3,), 4.0), torch.tensor([1.0, 4.0, 16.0])
    for rule, expected in (
        ("adagrad", [5.0, 8.0, 20.0]),
        ("adam", [3.25, 4.0, 7.0]),
        ("yogi", [3.75, 4.0, 8.0]),
    ):
        got = make(FedOpt, {**ADAM, "rule": rule, "beta_2": 0.75}).second_moment(v, square)
        assert torch.equal(got, torch.tensor(expected))


@pytest.mark.parametrize("rule", ["adagrad", "adam", "yogi"])
def test_a_step_is_at_most_the_rate(rule):
    """In round 1 a coordinate moves by eta |Delta| / (sqrt(v) + tau) with v >= (1 - beta_2) Delta^2."""
    values = {**ADAM, "rule": rule, "beta_1": 0.0, "beta_2": 0.0, "tau": 1e-6, "global_lr": 0.01}
    moved = (simulate(FedOpt, values, rounds=1).w - W0).abs()
    assert moved.max() <= 0.01
    assert moved.max() > 0.009


def test_refuses_to_divide_by_zero():
    with pytest.raises(UserError, match="tau"):
        check_fields(FedOpt, {**ADAM, "tau": 0.0}, "fedadam", "")


def test_a_model_each_way():
    assert simulate(FedOpt, ADAM).traffic == (TASK.size, TASK.size)


def test_by_hand():
    """f = 1/2 (w - m)^2 with m = 4 for A, -4 for B, in equal shares; lr 0.5, eta 1, tau 0.5, from w = 0, v = 0.25.

    Round 1, mean -0.5 (A: 2; B: -2, -3), Delta = -0.5.
      Adagrad, beta_1 = 0:    v = 0.25 + 0.25;  w = -0.5 / (sqrt(0.5) + 0.5) = 1 - sqrt(2)
      Adam, both betas 0.5:   m = -0.25;  v = 0.125 + 0.125;  w = -0.25 / (0.5 + 0.5) = -0.25
    Round 2 of Adam.  A: -4.25, w = 1.875;  B: 3.75, w = -2.125; 1.875, w = -3.0625;  mean -0.59375, Delta = -0.34375
      m = -0.125 - 0.171875;  v = 0.125 + 0.1181640625 / 2 = 0.18408203125;  w = -0.25 - 0.296875 / (sqrt(v) + 0.5)
    """
    settings = {
        "epochs": 1, "batch": 1, "lr": 0.5, "network": STILL, "weights": "uniform", "federation": by_hand(ONE_AND_TWO)
    }  # fmt: skip
    close(simulate(FedOpt, {**ADAM, "rule": "adagrad", "beta_1": 0.0}, rounds=1, **settings).w, [1 - sqrt(2), 7])
    close(simulate(FedOpt, ADAM, rounds=1, **settings).w, [-0.25, 7])
    second = simulate(FedOpt, ADAM, rounds=2, **settings)
    close(second.server.m, [-0.296875, 0])
    close(second.server.v, [0.18408203125, 0.0625])
    close(second.w, [-0.25 - 0.296875 / (sqrt(0.18408203125) + 0.5), 7])
