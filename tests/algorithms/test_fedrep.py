import pytest
import torch

from pflsweep.algorithms.fedrep import FedRep
from pflsweep.methods import stock
from tests.algorithms.helpers import EVERYBODY, NETWORK, Quadratic, by_hand, close, opened, same_in_chunks, simulate

TASK, W0 = NETWORK
ONE = {"head_epochs": 1}


@pytest.mark.parametrize("ids", [[1], list(range(EVERYBODY))])
def test_each_phase_leaves_the_other_part_alone(ids):
    run = simulate(FedRep, ONE, momentum=0.9, weight_decay=0.1)
    given, data, work = opened(run, ids)
    start = work.w.clone()
    work = stock.run(run.method.head_step, given, work, data.train(1, "head"))
    middle = work.w.clone()
    assert torch.equal(middle[:, TASK.extractor], start[:, TASK.extractor])
    assert (middle[:, TASK.head] != start[:, TASK.head]).any(1).all()
    work = stock.run(run.method.body_step, given, work, data.train(2))
    assert torch.equal(work.w[:, TASK.head], middle[:, TASK.head])
    assert (work.w[:, TASK.extractor] != middle[:, TASK.extractor]).any(1).all()


def test_heads_are_never_sent():
    before, after = (simulate(FedRep, ONE, participation=0.4, rounds=rounds) for rounds in (2, 3))
    cohort = set(after.results[-1].ids.tolist())
    for i in range(EVERYBODY):
        assert torch.equal(after.clients.head[i], before.clients.head[i]) == (i not in cohort)
    assert after.simulation.global_model() is None
    assert "global" not in after.results[-1].scores


def test_never_sampled_client_has_the_newest_extractor_and_the_initial_head():
    run = simulate(FedRep, ONE, participation=0.2, rounds=1)
    i = next(i for i in range(EVERYBODY) if i not in run.results[0].ids)
    assert torch.equal(run.personal[i], torch.cat([run.w, W0[TASK.head]]))


def test_only_the_extractor_is_communicated():
    size = TASK.extractor.stop
    assert 0 < size < TASK.size
    assert simulate(FedRep, ONE).traffic == (size, size)


def test_any_chunking_is_the_same_round():
    same_in_chunks(FedRep, {"head_epochs": 2}, momentum=0.9, weight_decay=0.01)


def test_by_hand():
    """H = [[2, 1], [1, 2]], so that each part's gradient sees the other; w = (phi, h) from (0, 0), lr 0.1.
    One epoch, that is one step, on the head and two on the body.

    A, one sample (1, 2):      w - m = (-1, -2),      g_h = -1 - 4 = -5,           h = 0.5
                               w - m = (-1, -1.5),    g_phi = -2 - 1.5 = -3.5,     phi = 0.35
                               w - m = (-0.65, -1.5), g_phi = -1.3 - 1.5 = -2.8,   phi = 0.63
    B, three samples (-1, 0):  w - m = (1, 0),        g_h = 1,                     h = -0.1
                               w - m = (1, -0.1),     g_phi = 2 - 0.1 = 1.9,       phi = -0.19
                               w - m = (0.81, -0.1),  g_phi = 1.62 - 0.1 = 1.52,   phi = -0.342
    server                     phi = 0.63 / 4 - 0.342 * 3 / 4 = -0.099
    """
    federation = by_hand([[([1, 2], 0)], [([-1, 0], 0)] * 3])
    network = Quadratic([[2, 1], [1, 2]]), torch.zeros(2)
    run = simulate(FedRep, ONE, rounds=1, epochs=2, federation=federation, network=network)
    close(run.w, [-0.099])
    close(run.personal, [[-0.099, 0.5], [-0.099, -0.1]])
