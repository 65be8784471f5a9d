import pytest
import torch

from pflsweep.algorithms.fedfomo import Client, Down, FedFomo, Up
from pflsweep.data.loader import ClientData
from pflsweep.methods.protocol import Setup
from pflsweep.ops.vmap import tree_map
from pflsweep.util.errors import UserError
from tests.algorithms.helpers import EVERYBODY, FEDERATION, NETWORK, close, make, same_in_chunks, simulate

TASK, W0 = NETWORK
HYPER = {"models": 3, "epsilon": 0.3, "decay": 0.05, "validation": 0.3}


def start(models, before, trained, hyper=HYPER):
    """Return theta-hat and the raw weights of client 3 when these models [m, P] are sent to it."""
    method = make(FedFomo, hyper)
    run = simulate(FedFomo, hyper, rounds=1)
    given = run.method and run.simulation._turn(torch.tensor([3]))
    from pflsweep.methods.protocol import Given

    ids = torch.arange(len(models))[None]
    given = Given(Down(models[None], ids), Client(before[None], trained[None]), given, FEDERATION.class_counts[[3]])
    return method.start(given, ClientData.of(FEDERATION, [3], 2, batch=4, large=16))


def loss(w):
    _, validation = ClientData.of(FEDERATION, [3], 2, batch=4, large=16).holdout(0.3)
    (batch,) = validation._chunk.batches([validation._chunk.rows["train"]][0:1], None)
    return float(TASK.loss(w, tree_map(lambda v: v[0], batch)))


def models(count, spread=1.0):
    generator = torch.Generator().manual_seed(5)
    return W0 + spread * torch.randn(count, len(W0), generator=generator, dtype=W0.dtype)


def test_raw_weights_are_gains_by_distance():
    """w_n = (L(theta) - L(theta_n)) / |theta_n - theta|, eq. 3; the mix is their positive part, normalised."""
    others, own = models(3), models(1, 0.5)[0]
    work = start(others, W0, own)
    everyone = torch.cat([own[None], others])
    expected = torch.tensor([(loss(W0) - loss(w)) / float((w - W0).norm()) for w in everyone], dtype=W0.dtype)
    close(work.gains[0], expected)
    positive = expected.clamp(min=0)
    assert positive.sum() > 0
    close(work.w[0], W0 + (positive / positive.sum()) @ (everyone - W0))


def test_without_gain_the_model_stays():
    """All w <= 0: every candidate is far away in a direction that hurts."""
    worse = torch.stack([w for w in models(20, 3.0) if loss(w) > loss(W0)])
    work = start(worse, W0, worse[0])
    assert (work.gains <= 0).all()
    assert torch.equal(work.w[0], W0)


def test_equal_models_change_nothing():
    work = start(W0.expand(4, -1), W0, W0)
    assert torch.equal(work.w[0], W0)
    assert (work.gains == 0).all()


def test_one_model_keeps_the_better_of_old_and_new():
    hyper = {**HYPER, "models": 1}
    own = models(12, 0.5)
    for trained in own:
        better = trained if loss(trained) < loss(W0) else W0
        close(start(own[:0], W0, trained, hyper).w[0], better)
    assert len({loss(w) < loss(W0) for w in own}) == 2, "both cases have to occur"


def test_first_round_is_local_and_evaluates_the_initial_model():
    run = simulate(FedFomo, HYPER, rounds=1)
    close(run.personal, W0.expand(EVERYBODY, -1))
    assert run.traffic == (0, TASK.size)


def test_the_server_sends_the_best_others():
    run = simulate(FedFomo, {**HYPER, "epsilon": 0.0}, rounds=3)
    ids = run.method.send(run.server, run.simulation._turn(torch.arange(EVERYBODY))).ids
    for i, got in enumerate(ids.tolist()):
        others = [j for j in range(EVERYBODY) if j != i]
        assert set(got) <= set(others)
        # Tied models are equally good
        best = run.server.p[i, others].sort(descending=True).values[:2]
        assert torch.equal(run.server.p[i, got].sort(descending=True).values, best)


def test_exploration_repeats_nobody_and_reaches_everybody():
    run = simulate(FedFomo, {**HYPER, "epsilon": 0.5, "decay": 0.0}, rounds=2)
    seen = set()
    for t in range(40):
        run.simulation.round = t + 1
        turn = run.simulation._turn(torch.arange(EVERYBODY))
        for i, got in enumerate(run.method.send(run.server, turn).ids.tolist()):
            assert i not in got
            assert len(set(got)) == 2
            seen |= {(i, j) for j in got}
    assert len(seen) == EVERYBODY * (EVERYBODY - 1)


@pytest.mark.parametrize(("round", "share"), [(1, 0.3), (4, 0.15), (7, 0.0), (9, 0.0)])
def test_epsilon_decays_to_0(round, share):
    """Of many keyed draws, a share of about epsilon - decay * (round - 1) is replaced."""
    method = make(FedFomo, {**HYPER, "models": 2})
    key = torch.arange(2000) * 7919
    order = torch.arange(5).expand(2000, 5)
    got = method._explore(order, torch.zeros(2000, 5), key[:, None] + order, key, 1, round)
    assert abs(float((got[:, 0] != 0).double().mean()) - share) < 0.04


def test_models_communicated_after_warm_up():
    assert simulate(FedFomo, HYPER, rounds=3).traffic == (2 * TASK.size, TASK.size)


def test_absent_clients_rows_of_p_stay():
    before, after = (simulate(FedFomo, HYPER, rounds=k, participation=0.4) for k in (3, 4))
    cohort = set(after.results[-1].ids.tolist())
    for i in range(EVERYBODY):
        if i not in cohort:
            assert torch.equal(before.server.p[i], after.server.p[i])


def test_any_chunking_is_the_same_round():
    same_in_chunks(FedFomo, HYPER, momentum=0.9)
    one, all_ = (simulate(FedFomo, HYPER, rounds=4, chunk=k) for k in (1, EVERYBODY))
    close(all_.server, one.server)


def test_more_models_than_clients_are_refused():
    with pytest.raises(UserError, match=r"algorithm.models is 9, but there are 5 clients"):
        simulate(FedFomo, {**HYPER, "models": 9}, rounds=1)


def test_the_global_model_is_the_plain_mean_of_the_uploads():
    run = simulate(FedFomo, HYPER, rounds=2, participation=0.6)
    known = run.server.known
    assert 0 < int(known.sum()) < EVERYBODY
    close(run.simulation.global_model(), run.server.models[known].mean(0))


def test_a_diverged_model_stays_at_home():
    """The server keeps the client's former model, and P keeps its numbers."""
    run = simulate(FedFomo, HYPER, rounds=2)
    method, before = run.method, run.server
    broken = before.models.clone()
    broken[2] = torch.nan
    gains = torch.full((EVERYBODY, 1), torch.nan, dtype=W0.dtype)
    turn = run.simulation._turn(torch.arange(EVERYBODY))
    after = method.aggregate(before, Up(broken, gains, turn.ids.new_zeros(EVERYBODY, 0)), turn)
    assert torch.equal(after.models[2], before.models[2])
    assert torch.equal(after.p, before.p)
    first = make(FedFomo, HYPER).init(
        W0, Setup(EVERYBODY, EVERYBODY, 2, 3, FEDERATION.sizes, torch.tensor(0), torch.arange(EVERYBODY))
    )
    assert after.known[2]
    assert not method.aggregate(first, Up(broken, gains, turn.ids.new_zeros(EVERYBODY, 0)), turn).known[2]
