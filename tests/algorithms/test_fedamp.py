import math

import pytest
import torch

from pflsweep.algorithms.fedamp import FedAMP, squared_distances
from pflsweep.algorithms.local import Local
from pflsweep.config.compose import compose
from pflsweep.methods import stock
from pflsweep.trial.build import build
from pflsweep.util.errors import UserError
from tests.algorithms.helpers import EVERYBODY, NETWORK, STILL, by_hand, close, same_in_chunks, simulate

TASK, W0 = NETWORK
HYPER = {"alpha": 0.5, "sigma": 4.0, "lam": 0.5, "start_from": "own"}
SENT = {**HYPER, "start_from": "sent"}


def test_without_attraction_it_is_local():
    ours = simulate(FedAMP, {**HYPER, "lam": 0.0}, rounds=3, participation=0.6, momentum=0.9)
    assert torch.equal(ours.personal, simulate(Local, rounds=3, participation=0.6, momentum=0.9).personal)
    assert not torch.equal(ours.personal, simulate(FedAMP, HYPER, rounds=3, participation=0.6, momentum=0.9).personal)


@pytest.mark.parametrize("participation", [0.4, 1.0])
@pytest.mark.parametrize("alpha", [0.01, 0.5, 100.0])
def test_every_mix_is_a_mean(alpha, participation):
    for rounds in (1, 2, 4):
        hyper = {**HYPER, "alpha": alpha, "lam": 0.02}
        server = simulate(FedAMP, hyper, rounds=rounds, participation=participation).server
        close(server.xi.sum(1), [1.0] * EVERYBODY)
        assert (server.xi >= -1e-12).all()
    assert (server.xi.diagonal() < 1).any()


def test_alpha_is_as_large_as_it_may():
    """A small alpha stays; a too large one is cut, so that the client with the strongest pull has xi_ii = 0."""
    small = simulate(FedAMP, {**HYPER, "alpha": 0.01, "lam": 0.01}).server
    assert small.alpha == 0.01
    large = simulate(FedAMP, {**HYPER, "alpha": 100.0}).server
    assert large.alpha < 100
    close(large.xi.diagonal().min(), torch.zeros((), dtype=torch.float64))


def test_closer_models_weigh_more():
    server = simulate(FedAMP, HYPER).server
    apart = torch.cdist(server.models, server.models)
    for i in range(EVERYBODY):
        others = [j for j in apart[i].argsort().tolist() if j != i]
        assert (server.xi[i, others].diff() < 0).all()


def test_a_model_that_diverged_spoils_no_other():
    """Client 1's rows are infinite."""
    clients = [[([x, 0], 0)] * 2 for x in (4.0, math.inf, -4.0)]
    setting = {"network": STILL, "epochs": 1, "batch": 1, "rounds": 3, "lr": 0.5}
    run = simulate(FedAMP, HYPER, federation=by_hand(clients), **setting)
    assert not run.personal[1].isfinite().all()
    assert run.personal[[0, 2]].isfinite().all()
    assert run.server.known.tolist() == [True, False, True]
    # The two others train as if it were absent: their xi for it is 0
    assert not run.server.xi[[0, 2], 1].any()
    assert run.server.xi[0, 2] > 0


def test_a_finite_model_whose_squared_distances_overflow_spoils_no_other():
    run = simulate(FedAMP, HYPER)
    up = run.server.models.clone()
    up[1] = 1e160
    server = run.method.aggregate(run.server, stock.Up(up), run.simulation._turn(torch.arange(EVERYBODY)))
    assert torch.equal(server.models, run.server.models)
    assert server.xi.isfinite().all()


def test_who_never_took_part_has_no_say():
    run = simulate(FedAMP, HYPER, participation=0.4, rounds=2)
    absent = run.simulation.last < 0
    assert absent.any()
    server = run.server
    assert torch.equal(server.known, ~absent)
    others = server.xi - server.xi.diagonal().diag()
    assert (others[:, absent] == 0).all()
    assert (others[:, ~absent] > 0).any()
    assert torch.equal(run.personal[absent], W0.expand(int(absent.sum()), -1))


def test_an_absent_clients_last_upload_stays():
    run = simulate(FedAMP, HYPER, participation=0.6, rounds=4)
    close(run.server.models, run.personal)


@pytest.mark.parametrize(("start_from", "matters"), [("own", True), ("sent", False)])
def test_with_one_step_a_round_from_what_was_sent_lambda_is_without_effect(start_from, matters):
    one_step = {"epochs": 1, "batch": 100, "rounds": 3}
    few, many = (simulate(FedAMP, {**HYPER, "start_from": start_from, "lam": v}, **one_step) for v in (0.1, 0.9))
    assert torch.equal(few.personal, many.personal) is not matters


def test_distances_keep_their_digits_far_from_the_origin():
    models = 1e6 + torch.tensor([[0.0, 0], [3, 4], [0, 1e-3]], dtype=torch.float64)
    close(squared_distances(models), torch.cdist(models, models) ** 2, 1e-9)


def test_a_model_each_way_and_no_global_one():
    run = simulate(FedAMP, HYPER)
    assert run.traffic == (TASK.size, TASK.size)
    assert "global" not in run.results[-1].scores


@pytest.mark.parametrize("hyper", [HYPER, SENT])
def test_any_chunking_is_the_same_round(hyper):
    same_in_chunks(FedAMP, hyper, momentum=0.9)
    one, all_ = (simulate(FedAMP, hyper, rounds=4, participation=0.6, chunk=k) for k in (1, EVERYBODY))
    close(all_.server, one.server)


def test_the_pull_is_at_most_one_over_the_learning_rate():
    """A larger pull would overshoot u_i: from there on every lam trains the same."""
    steep, steeper = (simulate(FedAMP, {**HYPER, "lam": lam, "alpha": 0.005}, rounds=3).personal for lam in (0.05, 5.0))
    assert torch.equal(steep, steeper)
    assert not torch.equal(steep, simulate(FedAMP, {**HYPER, "lam": 0.01, "alpha": 0.005}, rounds=3).personal)


def test_a_cut_pull_is_said_once_with_its_values(caplog):
    """lam / alpha_k is 5 / 0.005 and 1 / lr is 10; alpha_k falls in later rounds."""
    cut, free = {**HYPER, "lam": 5.0, "alpha": 0.005}, {**HYPER, "lam": 0.0004, "alpha": 0.005}
    simulate(FedAMP, free, rounds=2)
    assert not caplog.records
    simulate(FedAMP, cut, rounds=3)
    (said,) = caplog.messages
    assert "algorithm.lam=5: in round 1 its pull lam / alpha_k = 1e+03 (alpha_k is 0.005" in said
    assert "above 1 / train.lr = 10" in said
    assert "well below alpha_k / train.lr = 0.05." in said
    simulate(FedAMP, cut, rounds=1)
    assert len(caplog.messages) == 2, "another trial says it again"


def test_a_pull_that_is_cut_later_is_said_then(caplog):
    """alpha_k begins at alpha and falls to where no weight is negative."""
    run = simulate(FedAMP, {**HYPER, "alpha": 1e6, "lam": 50.0}, rounds=3)
    (said,) = caplog.messages
    assert "in round 2" in said
    assert run.server.alpha < 5


def test_ala_needs_what_was_sent():
    ala = ["algorithm=fedamp", "ala=on", "tracking=none"]
    with pytest.raises(UserError, match=r"ala=on .* algorithm\.start_from=own: .* Use algorithm\.start_from=sent\."):
        build(compose(ala))
    build(compose([*ala, "algorithm.start_from=sent"]))


SAMPLES = [[([4, 0], 0)], [([-2, 0], 0)] * 2]  # batch 1: A takes one step a round, B two
SETTINGS = {"epochs": 1, "batch": 1, "lr": 0.5, "federation": by_hand(SAMPLES), "network": STILL}


def halving(distance: float) -> float:
    """Return the sigma for which exp(-x / sigma) = 1/2 at a squared distance x, so that A' = 1 / (2 sigma)."""
    return distance**2 / math.log(2)


@pytest.mark.parametrize("chunk", [1, 2])
def test_by_hand(chunk):
    """f = 1/2 (w - m)^2 with m = 4 for A, -2 for B; lr 0.5, alpha = sigma / 2, lam = 2 alpha, from w = 0.

    Round 1, u = 0.  A: g = -4, w = 2.  B: g = 2, w = -1; g = 1 + 2 (-1 - 0) = -1, w = -0.5
                     xi_AB = alpha A'(2.5^2) = 1/4; u_A = 3/4 * 2 - 1/4 * 0.5 = 1.375, u_B = 1/4 * 2 - 3/4 * 0.5 = 0.125
    Round 2.         A: g = -2 + 2 (2 - 1.375) = -0.75, w = 2.375
                     B: g = 1.5 + 2 (-0.5 - 0.125) = 0.25, w = -0.625; g = 1.375 - 1.5, w = -0.5625
    sent, round 2.   A, from u_A: g = 1.375 - 4, w = 2.6875
                     B, from u_B: g = 2.125, w = -0.9375; g = 1.0625 + 2 (-0.9375 - 0.125), w = -0.40625
    """
    sigma = halving(2.5)
    for start_from, second in (("own", [2.375, -0.5625]), ("sent", [2.6875, -0.40625])):
        hyper = {"alpha": sigma / 2, "sigma": sigma, "lam": sigma, "start_from": start_from}
        first = simulate(FedAMP, hyper, rounds=1, chunk=chunk, **SETTINGS)
        close(first.personal[:, 0], [2, -0.5])
        close(first.server.xi, [[0.75, 0.25], [0.25, 0.75]])
        close(simulate(FedAMP, hyper, rounds=2, chunk=chunk, **SETTINGS).personal[:, 0], second)


@pytest.mark.parametrize("chunk", [1, 2])
def test_by_hand_with_too_large_an_alpha(chunk):
    """As above, but alpha is beyond all bounds: no proximal term in round 1, and then alpha_k = 1 / A' = 2 sigma.

    Round 1.  A: w = 2.  B: g = 2, w = -1; g = 1, w = -1.5
              xi_AB = 1: u_A = -1.5, u_B = 2. lam = 4 sigma = 2 alpha_k
    Round 2.  A: g = -2 + 2 * 3.5 = 5, w = -0.5
              B: g = 0.5 - 2 * 3.5 = -6.5, w = 1.75; g = 3.75 - 2 * 0.25, w = 0.125
    """
    sigma = halving(3.5)
    hyper = {"alpha": 1e15, "sigma": sigma, "lam": 4 * sigma, "start_from": "own"}
    run = simulate(FedAMP, hyper, chunk=chunk, **SETTINGS)
    close(run.personal[:, 0], [-0.5, 0.125])
