import numpy as np
import pytest
import torch

from pflsweep.algorithms.local import Local
from pflsweep.algorithms.splitgp import SplitGP, entropy
from pflsweep.ops.vmap import tree_map
from tests.algorithms.helpers import (
    EVERYBODY,
    FEDERATION,
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
BODY, HEAD, P, H = TASK.extractor, TASK.head, TASK.size, TASK.head.stop - TASK.head.start
PLATFORM = {"form": "platform", "gamma": 0.3, "keep": 0.2, "threshold": 0.5}
PAPER = {**PLATFORM, "form": "paper"}
BOTH = pytest.mark.parametrize("hyper", [PLATFORM, PAPER], ids=["platform", "paper"])


@BOTH
def test_keeping_nothing_leaves_one_model_among_the_rounds_clients(hyper):
    run = simulate(SplitGP, {**hyper, "keep": 0.0}, rounds=3, participation=0.6)
    ids = run.results[-1].ids
    close(run.server.own[ids], run.server.own[ids[:1]].expand(len(ids), -1))
    before = simulate(SplitGP, {**hyper, "keep": 0.0}, rounds=2, participation=0.6).server.own
    absent = [i for i in range(EVERYBODY) if i not in ids]
    assert torch.equal(run.server.own[absent], before[absent])
    kept = simulate(SplitGP, hyper, rounds=3, participation=0.6).server.own[ids]
    assert (kept[0] - kept[1]).abs().max() > 1e-3


@BOTH
def test_a_sample_leaves_where_the_threshold_says(hyper):
    x, _ = FEDERATION.gather(torch.arange(45))
    for w in simulate(SplitGP, hyper).personal:
        server, client = TASK.logits(w[P:], x), TASK.logits(w[:P], x)
        unsure = -(client.softmax(1) * client.log_softmax(1)).sum(1)
        assert torch.equal(logits(hyper, 0.0, w, x), server)
        assert torch.equal(logits(hyper, 9.0, w, x), client)
        half = float(unsure.median()) + 1e-9
        assert torch.equal(logits(hyper, half, w, x), torch.where(unsure[:, None] < half, client, server))


def logits(hyper, threshold, w, x):
    return make(SplitGP, {**hyper, "threshold": threshold}).logits(w, x)


def test_entropy_is_in_nats():
    close(entropy(torch.tensor([[0.0, 0.0, 0.0], [900.0, 0.0, 0.0]]).double()), [np.log(3), 0.0])


@BOTH
def test_evaluation_routes(hyper):
    """Without the client's exit a platform client has the global model, which `global` scores as a plain model."""
    run = simulate(SplitGP, {**hyper, "threshold": 0.0})
    scores = run.simulation.evaluate()
    same = bool((scores["personal"].loss == scores["global"].loss).all())
    assert same is (hyper["form"] == "platform")
    routed = simulate(SplitGP, {**hyper, "threshold": 9.0}).simulation.evaluate()
    assert not np.array_equal(routed["personal"].loss, scores["personal"].loss)
    assert np.array_equal(routed["global"].loss, scores["global"].loss)


def test_the_clients_exit_alone_is_local_training():
    """With gamma = 1 and keep = 1 on the platform, other clients do not affect a client's own model."""
    ours = simulate(SplitGP, {**PLATFORM, "gamma": 1.0, "keep": 1.0}, rounds=3, momentum=0.9)
    assert torch.equal(ours.personal[:, :P], simulate(Local, rounds=3, momentum=0.9).personal)


@pytest.mark.parametrize("ids", [[3], list(range(EVERYBODY))])
def test_one_body_serves_both_exits_of_the_paper(ids):
    run = simulate(SplitGP, PAPER, rounds=2, momentum=0.9, weight_decay=0.01)
    given, data, work = opened(run, ids)
    assert torch.equal(work.w[:, BODY], work.general[:, BODY])
    work = run.method.fit(given, data, work)
    assert torch.equal(work.w[:, BODY], work.general[:, BODY])
    assert (work.w[:, HEAD] - work.general[:, HEAD]).abs().max() > 1e-3


@BOTH
def test_the_step_is_the_gradient_of_the_weighted_losses(hyper):
    run = simulate(SplitGP, hyper, rounds=2)
    given, data, work = opened(run, [3])
    batch = next(iter(data.train(1)))
    paper = hyper["form"] == "paper"
    free = [
        work.w[0].clone().requires_grad_(),
        work.general[0, HEAD if paper else slice(None)].clone().requires_grad_(),
    ]
    general = torch.cat([free[0][BODY], free[1]]) if paper else free[1]
    one = tree_map(lambda v: v[0], batch)
    loss = 0.3 * TASK.loss(free[0], one) + 0.7 * TASK.loss(general, one)
    grads = torch.autograd.grad(loss, free)
    wanted = [value.detach() - 0.1 * grad for value, grad in zip(free, grads, strict=True)]
    new = run.method.step(given, work, batch)
    up, _ = run.method.finish(given, data, new)
    close(up.w[0], torch.cat(wanted))


@BOTH
def test_a_round_starts_from_the_clients_body_and_the_servers_head(hyper):
    run = simulate(SplitGP, hyper, rounds=2)
    _, _, work = opened(run, [1, 4])
    close(work.w, run.server.own[[1, 4]])
    close(work.general, torch.cat([run.server.own[[1, 4]][:, BODY], run.w[HEAD].expand(2, -1)], 1))


@pytest.mark.parametrize(("hyper", "traffic"), [(PLATFORM, (2 * P, 2 * P)), (PAPER, (P + H, P + H))])
def test_what_is_communicated(hyper, traffic):
    assert simulate(SplitGP, hyper).traffic == traffic


@BOTH
def test_what_is_saved_and_what_a_new_client_gets(hyper):
    run = simulate(SplitGP, hyper, rounds=2, participation=0.2)
    never = run.simulation.last < 0
    assert never.any()
    for w in run.personal:
        close(torch.cat([value.flatten() for value in TASK.state_dict(w).values()]), w[:P])
    close(run.personal[never], run.w.repeat(int(never.sum()), 2))


@BOTH
def test_any_chunking_is_the_same_round(hyper):
    same_in_chunks(SplitGP, hyper, momentum=0.9)


SAMPLES = [[([4, 2], 0)], [([-2, 0], 0)]]
QUADRATIC = Quadratic([[1, 0], [0, 1]]), torch.tensor([0.0, 0.0], dtype=torch.float64)


def test_by_hand():
    """f = 1/2 |w - m|^2 with m = (4, 2) for A, (-2, 0) for B; lr 0.8, gamma 0.25: 0.2 and 0.6 for the exits. keep 0.5.

    platform 1.  A: own (0.8, 0.4), general (2.4, 1.2). B: own (-0.4, 0), general (-1.2, 0)
                 mean own (0.2, 0.2): A (0.5, 0.3), B (-0.1, 0.1); w = (0.6, 0.6)
    platform 2.  A: own (0.5, 0.3) + 0.2 (3.5, 1.7) = (1.2, 0.64); general (0.5, 0.6) + 0.6 (3.5, 1.4) = (2.6, 1.44)
                 B: own (-0.1, 0.1) + 0.2 (-1.9, -0.1) = (-0.48, 0.08); general (-0.1, 0.6) + 0.6 (-1.9, -0.6)
                 = (-1.24, 0.24); mean own (0.36, 0.36): A (0.78, 0.5), B (-0.06, 0.22); w = (0.68, 0.84)
    paper 1.     the body takes both parts: 0.8. A: (3.2; 0.4, 1.2), B: (-1.6; 0, 0)
                 mean own (0.8, 0.2): A (2, 0.3), B (-0.4, 0.1); w = (0.8, 0.6)
    paper 2.     A: (2 + 1.6; 0.64, 1.44), B: (-0.4 - 1.28; 0.08, 0.24)
                 mean own (0.96, 0.36): A (2.28, 0.5), B (-0.36, 0.22); w = (0.96, 0.84)
    """
    settings = {"epochs": 1, "batch": 1, "lr": 0.8, "federation": by_hand(SAMPLES), "network": QUADRATIC}
    for chunk in (1, 2):
        for form, own, w, exits in (
            ("platform", [[0.78, 0.5], [-0.06, 0.22]], [0.68, 0.84], [[0.68, 0.84], [0.68, 0.84]]),
            ("paper", [[2.28, 0.5], [-0.36, 0.22]], [0.96, 0.84], [[2.28, 0.84], [-0.36, 0.84]]),
        ):
            hyper = {"form": form, "gamma": 0.25, "keep": 0.5, "threshold": 0.2}
            run = simulate(SplitGP, hyper, rounds=2, chunk=chunk, **settings)
            close(run.server.own, own)
            close(run.w, w)
            close(run.personal, [a + b for a, b in zip(own, exits, strict=True)])
