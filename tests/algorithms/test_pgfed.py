import pytest
import torch

from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.algorithms.pgfed import PGFed
from tests.algorithms.helpers import EVERYBODY, NETWORK, close, same_in_chunks, simulate

SIZE = NETWORK[0].size
FULL = {"mu": 0.3, "alpha_lr": 0.05, "beta": 0.0, "estimate": "full"}
MO, CE = {**FULL, "beta": 0.5}, {**FULL, "estimate": "ce"}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_mu_0_is_fedavg(momentum):
    """The models are bitwise equal, and alpha stays as it began."""
    ours = simulate(PGFed, {**FULL, "mu": 0.0}, rounds=4, participation=0.6, momentum=momentum)
    fedavg = simulate(FedAvg, rounds=4, participation=0.6, momentum=momentum)
    assert torch.equal(ours.w, fedavg.w)
    assert torch.equal(ours.server.a, torch.full_like(ours.server.a, 1 / 3))


def test_momentum_0_is_pgfed_and_more_is_not():
    plain = simulate(PGFed, FULL, rounds=4)
    assert torch.equal(simulate(PGFed, {**FULL, "beta": 1e-300}, rounds=4).w, plain.w)
    assert not torch.allclose(simulate(PGFed, MO, rounds=4).w, plain.w)


def test_ce_begins_at_the_mean_of_full():
    """CE's slope of alpha, g1_j + mu grad_j^T theta_glob, is the mean over j of that of `full` at theta_glob."""
    run = simulate(PGFed, FULL, rounds=1)
    turn = run.simulation._turn(torch.arange(EVERYBODY))
    full, ce = (type(run.method).send(m, run.server, turn) for m in (run.method, simulate(PGFed, CE, rounds=1).method))
    close(ce.g1.mean(1), (full.g1 + full.mean @ run.w[:, None]).mean(1))
    assert ce.mean.shape[1] == 0


def test_rows_of_absent_clients_stay():
    before, after = (simulate(PGFed, FULL, rounds=k, participation=0.4) for k in (2, 3))
    cohort = set(after.results[-1].ids.tolist())
    for i in range(EVERYBODY):
        assert torch.equal(before.server.a[i], after.server.a[i]) == (i not in cohort)
        assert torch.equal(before.clients.w[i], after.clients.w[i]) == (i not in cohort)


def test_alpha_is_clipped_at_0():
    run = simulate(PGFed, {**FULL, "mu": 0.5, "alpha_lr": 5.0}, rounds=3)
    assert (run.server.a >= 0).all()
    assert 0 < float(run.results[-1].shown["clipped"]) <= 1


@pytest.mark.parametrize(("hyper", "down"), [(FULL, 3), (MO, 3), (CE, 2)])
def test_floats_communicated(hyper, down):
    run = simulate(PGFed, hyper, rounds=3, participation=0.6)
    assert run.results[0].traffic[:2] == (SIZE, 2 * SIZE)
    assert run.traffic == (down * SIZE, 2 * SIZE)
    assert run.results[-1].traffic[2:] == (6, 4)  # down: g1 and alpha of 3 clients; up: g1 and 3 alphas


@pytest.mark.parametrize("hyper", [FULL, MO, CE])
def test_any_chunking_is_the_same_round(hyper):
    same_in_chunks(PGFed, hyper, momentum=0.9)
    one, all_ = (simulate(PGFed, hyper, rounds=3, chunk=k) for k in (1, EVERYBODY))
    close(all_.server, one.server)
