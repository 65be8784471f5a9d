import pytest
import torch

from pflsweep.algorithms import mocha
from pflsweep.algorithms.mocha import Mocha
from pflsweep.ops.vmap import tree_map
from tests.algorithms.helpers import (
    EVERYBODY,
    NETWORK,
    Quadratic,
    by_hand,
    close,
    make,
    opened,
    same_in_chunks,
    simulate,
)

TASK, W0 = NETWORK
HYPER = {"reg": 30.0, "omega": "paper", "layers": None}


def test_omega_is_the_centring_matrix():
    """Omega 1 = 0, and Omega is positive semidefinite, with eigenvalues 0 and 1."""
    omega = make(Mocha, HYPER).relations(W0.expand(4, -1))
    close(omega.sum(1), [0.0] * 4)
    close(torch.linalg.eigvalsh(omega), [0.0, 1.0, 1.0, 1.0])
    close(make(Mocha, {**HYPER, "omega": "code"}).relations(W0.expand(4, -1)), [[0.75**2] * 4] * 4)


@pytest.mark.parametrize("omega", ["paper", "code"])
@pytest.mark.parametrize("layers", [None, 1])
@pytest.mark.parametrize("ids", [[3], list(range(EVERYBODY))])
def test_steps_follow_the_gradient_of_the_regulariser(omega, layers, ids, monkeypatch):
    """It is 10^-f (|W|^2 + tr(W Omega W^T)) in the client's own column; the code's trace leaves out the last d mod 4000
    rows.
    """
    assert mocha.ROWS == 4000
    monkeypatch.setattr(mocha, "ROWS", 4)
    run = simulate(Mocha, {**HYPER, "omega": omega, "layers": layers})
    part = slice(0, TASK.size) if layers is None else TASK.head
    given, data, work = opened(run, ids)
    batch = next(iter(data.train(1)))
    new = run.method.step(given, tree_map(torch.clone, work), batch)
    personal, d = run.personal, part.stop - part.start
    scale = 1e-3  # f = floor(log10 d) + 2, d = 43 or 18
    matrix = torch.eye(5).double() - 0.2 if omega == "paper" else torch.ones(5, 5).double() * 0.64
    for c, i in enumerate(ids):
        w, own = personal[i].clone().requires_grad_(), tree_map(lambda v, c=c: v[c], batch)
        columns = torch.stack([w if k == i else v for k, v in enumerate(personal)], 1)[part]  # W
        trace = columns if omega == "paper" else columns[: d // 4 * 4]
        loss = TASK.loss(w, own) + 30 * scale * (columns.square().sum() + (trace @ matrix @ trace.T).trace())
        (g,) = torch.autograd.grad(loss, w)
        close(new.w[c], (w - given.turn.lr * g).detach())


def test_an_absent_clients_column_stays():
    before, after = (simulate(Mocha, HYPER, rounds=k, participation=0.4) for k in (3, 4))
    cohort = after.results[-1].ids.tolist()
    for i in range(EVERYBODY):
        assert torch.equal(before.server.columns[i], after.server.columns[i]) != (i in cohort)
    close(after.server.columns, after.personal)


def test_the_regularised_layers_cross_the_wire():
    head = TASK.head.stop - TASK.head.start
    assert simulate(Mocha, HYPER).traffic == (TASK.size, TASK.size)
    assert simulate(Mocha, {**HYPER, "layers": 1}).traffic == (head, head)


def test_any_chunking_is_the_same_round():
    same_in_chunks(Mocha, HYPER, momentum=0.9)
    one, all_ = (simulate(Mocha, HYPER, rounds=3, chunk=k) for k in (1, EVERYBODY))
    close(all_.server, one.server)


SAMPLES = [[([4, 0], 0)], [([-2, 0], 0)]]
QUADRATIC = Quadratic([[1, 0], [0, 0]]), torch.tensor([1.0, 1.0], dtype=torch.float64)


@pytest.mark.parametrize("chunk", [1, 2])
def test_by_hand(chunk):
    """f = 1/2 (w - m)^2 in the first number, m = 4 for A, -2 for B; lr 0.5. d = 2: reg 10^-2 = 0.1, whose gradient is
    0.2 (w + w Omega), with Omega = [[1/2, -1/2], [-1/2, 1/2]].

    Round 1, w = (1, 1) for both. A: g = -3 + 0.2 = -2.8, 2.4; 0.2, 0.9.   B: g = 3 + 0.2, -0.6; 0.9
    Round 2. A: w Omega = (2.4 + 0.6) / 2 = 1.5, g = -1.6 + 0.2 * 3.9 = -0.82, 2.81; w Omega = 0, 0.9 - 0.09 = 0.81
             B: w Omega = -1.5, g = 1.4 - 0.2 * 2.1 = 0.98, -1.09; 0.81
    Two epochs of one round, the other at 1: A: w Omega = 0.7, g = -1.6 + 0.2 * 3.1 = -0.98, 2.89;
                                                w Omega = -0.05, 0.9 - 0.1 * 0.85 = 0.815
    As the code has it, d < 4000 leaves |W|^2 alone: round 2 of A: g = -1.6 + 0.2 * 2.4 = -1.12, 2.96; 0.81
    """
    settings = {"batch": 1, "lr": 0.5, "federation": by_hand(SAMPLES), "network": QUADRATIC, "chunk": chunk}
    hyper = {**HYPER, "reg": 10.0}
    close(simulate(Mocha, hyper, rounds=1, epochs=1, **settings).personal, [[2.4, 0.9], [-0.6, 0.9]])
    close(simulate(Mocha, hyper, rounds=2, epochs=1, **settings).personal, [[2.81, 0.81], [-1.09, 0.81]])
    close(simulate(Mocha, hyper, rounds=1, epochs=2, **settings).personal[0], [2.89, 0.815])
    close(simulate(Mocha, {**hyper, "omega": "code"}, epochs=1, **settings).personal[0], [2.96, 0.81])
