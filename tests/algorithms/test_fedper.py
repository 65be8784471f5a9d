import pytest
import torch

from pflsweep.algorithms.fedper import FedPer
from pflsweep.util.errors import UserError
from tests.algorithms.helpers import EVERYBODY, NETWORK, Quadratic, by_hand, close, make, same_in_chunks, simulate

TASK, W0 = NETWORK
ONE = {"layers": 1}


def test_heads_are_never_sent():
    before, after = (simulate(FedPer, ONE, participation=0.2, rounds=rounds) for rounds in (2, 3))
    (sampled,) = after.results[-1].ids.tolist()
    for i in range(EVERYBODY):
        assert torch.equal(after.clients.head[i], before.clients.head[i]) == (i != sampled)
    assert after.simulation.global_model() is None


def test_never_sampled_client_has_the_newest_base_and_the_initial_head():
    run = simulate(FedPer, ONE, participation=0.2, rounds=1)
    i = next(i for i in range(EVERYBODY) if i not in run.results[0].ids)
    assert torch.equal(run.personal[i], torch.cat([run.w, W0[TASK.head]]))
    assert not torch.equal(run.w, W0[TASK.extractor])


@pytest.mark.parametrize("layers", [0, 1, 2])
def test_only_the_base_is_communicated(layers):
    base = (TASK.size, TASK.head.start, 0)[layers]
    assert simulate(FedPer, {"layers": layers}).traffic == (base, base)


def test_any_chunking_is_the_same_round():
    same_in_chunks(FedPer, ONE, momentum=0.9, weight_decay=0.01)


def test_refuses_more_layers_than_there_are():
    with pytest.raises(UserError, match=r"algorithm\.layers is 3, but the model has 2 blocks"):
        make(FedPer, {"layers": 3})


@pytest.mark.parametrize("chunk", [1, 2])
def test_by_hand(chunk):
    """H = [[2, 1], [1, 2]], so that each part's gradient sees the other; w = (phi, h) from (0, 0), lr 0.1, a step a
    round, on both parts at once.

    Round 1.  A, one sample (1, 2):      w - m = (-1, -2),        g = (-4, -5),         w = (0.4, 0.5)
              B, three samples (-1, 0):  w - m = (1, 0),          g = (2, 1),           w = (-0.2, -0.1)
              server                     phi = 0.4 / 4 - 0.2 * 3 / 4 = -0.05
    Round 2.  A, from (-0.05, 0.5):      w - m = (-1.05, -1.5),   g = (-3.6, -4.05),    w = (0.31, 0.905)
              B, from (-0.05, -0.1):     w - m = (0.95, -0.1),    g = (1.8, 0.75),      w = (-0.23, -0.175)
              server                     phi = 0.31 / 4 - 0.23 * 3 / 4 = -0.095
    """
    federation = by_hand([[([1, 2], 0)], [([-1, 0], 0)] * 3])
    network = Quadratic([[2, 1], [1, 2]]), torch.zeros(2)
    run = simulate(FedPer, ONE, rounds=2, epochs=1, federation=federation, network=network, chunk=chunk)
    close(run.w, [-0.095])
    close(run.personal, [[-0.095, 0.905], [-0.095, -0.175]])
