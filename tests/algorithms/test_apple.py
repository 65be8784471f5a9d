import math

import pytest
import torch

from pflsweep.algorithms.apple import Apple
from pflsweep.data.participation import draw_cohort
from pflsweep.methods.protocol import Setup
from pflsweep.ops import memory
from pflsweep.ops.vmap import tree_map
from pflsweep.util.errors import UserError
from tests.algorithms.helpers import (
    EVERYBODY,
    NETWORK,
    SIZES,
    Quadratic,
    by_hand,
    close,
    make,
    opened,
    same_in_chunks,
    simulate,
)
from tests.works import HARD, simulation

TASK, W0 = NETWORK
HYPER = {
    "models": 2, "dr_lr": 0.05, "mu": 0.4, "length": 8, "prior": "sizes", "preference": 1.0, "threshold": 1.5,
}  # fmt: skip


@pytest.mark.parametrize("ids", [[3], list(range(EVERYBODY))])
def test_steps_follow_the_gradients_of_the_loss(ids):
    """Steps in w_i and p_i follow f(W_i) + lambda mu / 2 |p_i - p_0|^2, recomputed at every step."""
    run = simulate(Apple, HYPER, rounds=3)
    given, data, work = opened(run, ids)
    for batch in list(data.train(1))[:2]:
        new = run.method.step(given, tree_map(torch.clone, work), batch)
        for c in range(len(ids)) if batch.live is None else batch.live.nonzero().flatten().tolist():
            down, w, p, own = tree_map(lambda v, c=c: v[c], (given.down, work.w, work.p, batch))
            w, p = w.clone().requires_grad_(), p.clone().requires_grad_()
            others = torch.cat([down.stale, down.fresh])
            loss = TASK.loss(p @ torch.cat([w[None], others]), own)
            loss = loss + down.pull / 2 * (p - down.prior).square().sum()
            g, slope = torch.autograd.grad(loss, (w, p))
            close(new.w[c], (w - given.turn.lr * g).detach())
            close(new.p[c], (p - 0.05 * slope).detach())
        work = new


def test_the_regulariser_fades_over_length_rounds():
    run = simulate(Apple, {**HYPER, "length": 4}, rounds=1)
    pulls = []
    for r in range(1, 7):
        run.simulation.round = r
        pulls.append(run.method.send(run.server, run.simulation._turn(torch.tensor([0]))).pull)
    half = math.sqrt(0.5)
    close(torch.cat(pulls), [0.4, 0.2 * (1 + half), 0.2, 0.2 * (1 - half), 0.0, 0.0])


def test_without_length_it_depends_on_the_number_of_rounds():
    assert make(Apple, HYPER).resumable
    assert not make(Apple, {**HYPER, "length": None}).resumable
    assert simulate(Apple, {**HYPER, "length": None}, rounds=2).server.length == 2


@pytest.mark.parametrize(("participation", "models"), [(1.0, 1), (0.4, 2), (0.6, 20)])
def test_stale_cores_are_kept_and_unused_ones_forgotten(participation, models):
    """Compare with a plain record of N * N cores."""
    run = simulate(Apple, {**HYPER, "models": models}, rounds=1, participation=participation)
    sim, method = run.simulation, run.method
    cores = W0.expand(EVERYBODY, EVERYBODY, -1).clone()  # [i, j]: w_j as client i has it
    uploaded(cores, sim.server, run.results[0].ids)
    seen = set()
    for t in range(2, 9):
        sim.round = t
        ids = draw_cohort(sim.federation, sim.cohort_size, sim.round, sim.schedule.sampling)
        down, newest = method.downloads(sim.server, sim._turn(ids)), cores.diagonal().T.clone()
        for i, fresh in zip(ids.tolist(), down.tolist(), strict=True):
            assert len({i, *fresh}) == 1 + min(models, EVERYBODY - 1)
            cores[i, fresh] = newest[fresh]
        sim.round = t - 1
        sim._next()
        uploaded(cores, sim.server, ids)
        close(sim.server.cores[sim.server.held], cores)
        # At most one more, the initial model
        assert len(sim.server.held.unique()) + 1 >= len(sim.server.cores)
        mixed = (sim.server.p[:, None] @ cores)[:, 0]
        close(torch.stack(list(sim.personal_models()))[ids], mixed[ids])
        seen.add(len(sim.server.cores))
    assert models > 4 or max(seen) > EVERYBODY + 1, "some versions have to be stale"


def uploaded(cores, server, ids):
    """Return the cohort's own core models from the server."""
    cores[ids, ids] = server.cores[server.held.diagonal()][ids]


def test_everybody_with_all_models_keeps_two_versions():
    server = simulate(Apple, {**HYPER, "models": 9}, rounds=6).server
    assert len(server.cores) == 2 * EVERYBODY + 1


def test_never_downloaded_cores_come_first():
    """From round 2 on, when all have been trained, a client with one download a round goes through all others."""
    run, got = simulate(Apple, {**HYPER, "models": 1}, rounds=1), []
    for t in range(2, EVERYBODY + 1):
        run.simulation.round = t
        got.append(run.method.downloads(run.server, run.simulation._turn(torch.arange(EVERYBODY))))
        run.simulation.round = t - 1
        run.simulation._next()
    for i, row in enumerate(torch.cat(got, 1).tolist()):
        assert sorted(row) == [j for j in range(EVERYBODY) if j != i]


@pytest.mark.parametrize(("round", "preference", "base"), [(2, 1.0, 1.5), (41, 1.0, 8.0), (2, 10.0, 2.0)])
def test_then_large_weights_are_drawn_more_often(round, preference, base):
    """Probabilities are proportional to base^|p_ij|, base = max(threshold, preference r M / N), r from 0."""
    hyper, p = {**HYPER, "models": 1, "preference": preference}, torch.tensor([3.0, 0.0, 1.0, -2.0, 0.5])
    run = simulate(Apple, hyper, rounds=1)
    server = run.server._replace(held=torch.ones_like(run.server.held), p=p.expand(EVERYBODY, -1))
    turn = run.simulation._turn(torch.zeros(4000, dtype=torch.int64))
    turn = turn._replace(key=torch.arange(4000) * 7919, round=round)
    drawn = torch.bincount(run.method.downloads(server, turn)[:, 0], minlength=EVERYBODY) / 4000
    chance = base ** p.abs()
    # Its own core model is never drawn
    chance[0] = 0
    assert (drawn - chance / chance.sum()).abs().max() < 0.03


def test_m_models_down_one_up():
    for rounds in (1, 4):
        assert simulate(Apple, HYPER, rounds=rounds).traffic == (2 * TASK.size, TASK.size)
        assert simulate(Apple, {**HYPER, "models": 9}, rounds=rounds).traffic == (4 * TASK.size, TASK.size)


def test_any_chunking_is_the_same_round():
    same_in_chunks(Apple, HYPER, momentum=0.9)
    one, all_ = (simulate(Apple, HYPER, rounds=4, chunk=k) for k in (1, EVERYBODY))
    close(all_.server, one.server)


def test_refuses_what_does_not_fit(monkeypatch):
    """In the worst case all 25 pairs have their own versions, beside the initial model: 2 * 26 models for the old and
    the new round, 3 uploads, 5 personal models, 5 cores of a client, 65 in all.
    """
    need = 65 * TASK.size * W0.element_size()
    monkeypatch.setattr(memory, "total", lambda device: need)
    three, all_ = (
        Setup(EVERYBODY, m, 100, 3, torch.tensor(SIZES), torch.tensor(0), torch.arange(EVERYBODY))
        for m in (3, EVERYBODY)
    )
    make(Apple, HYPER).init(W0, three)
    monkeypatch.setattr(memory, "total", lambda device: need - 1)
    with pytest.raises(UserError, match=r"26 versions of 5 clients' .* GB, but cpu has .* GB.*algorithm\.models=4,"):
        make(Apple, HYPER).init(W0, three)
    make(Apple, HYPER).init(W0, three._replace(rounds=8))  # 24 uploads in all
    make(Apple, {**HYPER, "models": 4}).init(W0, all_)  # 11 versions


def test_a_computer_tells_its_memory():
    assert 2**28 < memory.total(torch.device("cpu")) < 2**60
    assert memory.total(torch.device("meta")) == math.inf


@pytest.mark.slow
def test_a_client_weights_its_own_group_up():
    """Two groups have five digits each: for every client p_i is larger for members of its group than for the others."""
    where = f"{HARD} partition.classes_per_client=5 partition.balanced=true train.participation=1"
    sim = simulation(f"algorithm=apple algorithm.dr_lr=0.003 tracking=none {where}")
    list(sim.run())
    has = sim.federation.class_counts > 0
    same = (has[:, None] == has).all(2)
    assert 0 < same.sum() < same.numel()
    others = same & ~torch.eye(len(same), dtype=torch.bool)
    for p, group, apart in zip(sim.server.p, others, ~same, strict=True):
        assert p[group].mean() > p[apart].mean()


QUADRATIC = Quadratic([[1, 0], [0, 0]]), torch.tensor([1.0, 7.0], dtype=torch.float64)  # the second never moves
SAMPLES = [[([4, 0], 0)], [([-2, 0], 0)]]
SETTINGS = {"batch": 1, "lr": 0.5, "federation": by_hand(SAMPLES), "network": QUADRATIC}
BY_HAND = {**HYPER, "dr_lr": 0.1, "length": 2}


@pytest.mark.parametrize("chunk", [1, 2])
def test_two_steps_of_one_round_by_hand(chunk):
    """f = 1/2 (W - m)^2 with m = 4 for A, -2 for B; p_0 = (1/2, 1/2), lambda mu = 0.4; w = 1 for both.

    A: W = 1, g = -3: w = 1 + 0.5 * 0.5 * 3 = 1.75, p = 0.5 + 0.1 * 3 * (1, 1) = (0.8, 0.8)
       W = 0.8 * 1.75 + 0.8 * 1 = 2.2, g = -1.8: w = 1.75 + 0.5 * 0.8 * 1.8 = 2.47,
       p = 0.8 + 0.1 * (1.8 * (1.75, 1) - 0.4 * 0.3) = (1.103, 0.968); W = 1.103 * 2.47 + 0.968
    B: W = 1, g = 3: w = 1 - 0.75 = 0.25, p = (0.2, 0.2)
       W = 0.2 * 0.25 + 0.2 * 1 = 0.25, g = 2.25: w = 0.25 - 0.5 * 0.2 * 2.25 = 0.025,
       p = 0.2 - 0.1 * (2.25 * (0.25, 1) - 0.4 * 0.3) = (0.15575, -0.013), its own first; W = 0.15575 * 0.025 - 0.013
    """
    run = simulate(Apple, BY_HAND, rounds=1, epochs=2, chunk=chunk, **SETTINGS)
    close(run.server.cores[run.server.held.diagonal()], [[2.47, 7], [0.025, 7]])
    close(run.server.p, [[1.103, 0.968], [-0.013, 0.15575]])
    close(run.personal[:, 0], [1.103 * 2.47 + 0.968, 0.15575 * 0.025 - 0.013])


@pytest.mark.parametrize("chunk", [1, 2])
def test_two_rounds_by_hand(chunk):
    """One step a round. Round 1 as above; in round 2 lambda mu = 0.2, the cores are 1.75 and 0.25.

    A: W = 0.8 * 1.75 + 0.8 * 0.25 = 1.6, g = -2.4: w = 1.75 + 0.5 * 0.8 * 2.4 = 2.71,
       p = 0.8 + 0.1 * (2.4 * (1.75, 0.25) - 0.2 * 0.3) = (1.214, 0.854); W = 1.214 * 2.71 + 0.854 * 0.25
    B: W = 0.2 * 0.25 + 0.2 * 1.75 = 0.4, g = 2.4: w = 0.25 - 0.5 * 0.2 * 2.4 = 0.01,
       p = 0.2 - 0.1 * (2.4 * (0.25, 1.75) - 0.2 * 0.3) = (0.146, -0.214); W = 0.146 * 0.01 - 0.214 * 1.75
    """
    run = simulate(Apple, BY_HAND, rounds=2, epochs=1, chunk=chunk, **SETTINGS)
    close(run.server.cores[run.server.held.diagonal()], [[2.71, 7], [0.01, 7]])
    close(run.server.p, [[1.214, 0.854], [-0.214, 0.146]])
    close(run.personal[:, 0], [1.214 * 2.71 + 0.854 * 0.25, 0.146 * 0.01 - 0.214 * 1.75])
