import pytest
import torch

from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.algorithms.scaffold import Scaffold
from pflsweep.util.errors import UserError
from tests.algorithms.helpers import EVERYBODY, NETWORK, STILL, by_hand, close, make, opened, same_in_chunks, simulate

TASK, _ = NETWORK
ONE = {"global_lr": 1.0}


@pytest.mark.parametrize("participation", [0.4, 1.0])
@pytest.mark.parametrize("chunk", [1, EVERYBODY])
def test_c_is_the_mean_of_all_clients(participation, chunk):
    for rounds in (1, 2, 3):
        run = simulate(Scaffold, ONE, rounds=rounds, participation=participation, chunk=chunk)
        assert run.server.c.abs().max() > 0.01
        close(run.server.c, run.clients.c.mean(0))


def test_first_round_is_fedavg_with_uniform_weights():
    fedavg = simulate(FedAvg, rounds=1, participation=0.6, weights="uniform")
    close(simulate(Scaffold, ONE, rounds=1, participation=0.6).w, fedavg.w)


@pytest.mark.parametrize("ids", [[3], list(range(EVERYBODY))])
def test_steps_are_those_a_client_takes(ids):
    run = simulate(Scaffold, ONE)
    given, data, work = opened(run, ids)
    steps = torch.tensor([4.0, 6.0, 2.0, 10.0, 4.0])  # two epochs of ceil(n / 4), n = 7, 12, 1, 20, 5
    close(run.method.fit(given, data, work).steps, steps[ids].double())


@pytest.mark.parametrize(("name", "value"), [("momentum", 0.9), ("weight_decay", 0.01)])
def test_refuses_what_is_not_plain_sgd(name, value):
    with pytest.raises(UserError, match=rf"train\.{name} is {value}: .* Use train\.{name}=0\."):
        make(Scaffold, ONE, **{name: value})


def test_twice_the_model_each_way():
    assert simulate(Scaffold, ONE).traffic == (2 * TASK.size, 2 * TASK.size)


def test_any_chunking_is_the_same_round():
    same_in_chunks(Scaffold, {"global_lr": 0.7})
    first = simulate(Scaffold, ONE, rounds=3, chunk=1)  # from the second round on the control variates act
    close(simulate(Scaffold, ONE, rounds=3, chunk=EVERYBODY).server, first.server)


SAMPLES = [[([4, 0], 0)], [([-2, 0], 0)] * 2]  # batch 1: A takes one step a round, B two


def test_by_hand():
    """f = 1/2 (w - m)^2 with m = 4 for A, -2 for B; lr 0.5, from w = 0.

    Round 1, c = 0.   A: g = -4, y = 2; c_A = (0 - 2) / (1 * 0.5) = -4
                      B: g = 2, y = -1; g = 1, y = -1.5; c_B = (0 + 1.5) / (2 * 0.5) = 1.5
                      w = (2 - 1.5) / 2 = 0.25; c = (-4 + 1.5) / 2 = -1.25
    Round 2.          A: g = -3.75, -3.75 + 4 - 1.25 = -1, y = 0.75
                         c_A = -4 + 1.25 + (0.25 - 0.75) / 0.5 = -3.75, its gradient
                      B: g = 2.25, 2.25 - 1.5 - 1.25 = -0.5, y = 0.5; g = 2.5, -0.25, y = 0.625
                         c_B = 1.5 + 1.25 + (0.25 - 0.625) / 1 = 2.375, the mean of 2.25 and 2.5
                      w = (0.75 + 0.625) / 2 = 0.6875; c = -1.25 + (0.25 + 0.875) / 2 = -0.6875
    """
    settings = {"epochs": 1, "batch": 1, "lr": 0.5, "federation": by_hand(SAMPLES), "network": STILL}
    for chunk in (1, 2):
        first = simulate(Scaffold, ONE, rounds=1, chunk=chunk, **settings)
        close(first.clients.c, [[-4, 0], [1.5, 0]])
        close(first.w, [0.25, 7])
        second = simulate(Scaffold, ONE, rounds=2, chunk=chunk, **settings)
        close(second.clients.c, [[-3.75, 0], [2.375, 0]])
        close(second.w, [0.6875, 7])
        close(second.server.c, [-0.6875, 0])
    doubled = simulate(Scaffold, {"global_lr": 2.0}, rounds=1, **settings)
    close(doubled.w, [0.5, 7])  # 0 + 2 * (0.25 - 0)
