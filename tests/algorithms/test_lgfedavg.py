import pytest
import torch

from pflsweep.algorithms.fedper import FedPer
from pflsweep.algorithms.lgfedavg import LGFedAvg
from pflsweep.util.errors import UserError
from tests.algorithms.helpers import EVERYBODY, NETWORK, Quadratic, by_hand, close, make, same_in_chunks, simulate

TASK, W0 = NETWORK
ONE = {"layers": 1}


def test_is_fedper_upside_down():
    """The same quadratic has its three parameters in two orders: FedPer's base is LG-FedAvg's head."""
    h, w0 = torch.tensor([[2.0, 0.5, 1], [0.5, 3, 0.2], [1, 0.2, 1]]), torch.tensor([0.3, -1.0, 2])
    clients = [[([1.0, 2, 0], 0)], [([-1.0, 0, 3], 0), ([2.0, 1, 1], 0)]]
    swap = [2, 0, 1]
    swapped = [[([x[k] for k in swap], y) for x, y in client] for client in clients]
    settings = {"rounds": 3, "momentum": 0.9, "weight_decay": 0.1, "batch": 1}
    per = simulate(FedPer, ONE, **settings, federation=by_hand(clients), network=(Quadratic(h.tolist(), bodies=2), w0))
    turned = Quadratic(h[swap][:, swap].tolist(), bodies=1)
    lg = simulate(LGFedAvg, ONE, **settings, federation=by_hand(swapped), network=(turned, w0[swap]))
    close(lg.w, per.w)
    close(lg.clients.body, per.clients.head)
    close(lg.personal, per.personal[:, swap])


def test_bodies_are_never_sent():
    before, after = (simulate(LGFedAvg, ONE, participation=0.2, rounds=rounds) for rounds in (2, 3))
    (sampled,) = after.results[-1].ids.tolist()
    for i in range(EVERYBODY):
        assert torch.equal(after.clients.body[i], before.clients.body[i]) == (i != sampled)
    assert after.simulation.global_model() is None


def test_never_sampled_client_has_the_newest_head_on_the_initial_body():
    run = simulate(LGFedAvg, ONE, participation=0.2, rounds=1)
    i = next(i for i in range(EVERYBODY) if i not in run.results[0].ids)
    assert torch.equal(run.personal[i], torch.cat([W0[TASK.extractor], run.w]))
    assert not torch.equal(run.w, W0[TASK.head])


@pytest.mark.parametrize("layers", [0, 1, 2])
def test_only_the_shared_layers_cross_the_wire(layers):
    shared = (0, TASK.size - TASK.head.start, TASK.size)[layers]
    assert simulate(LGFedAvg, {"layers": layers}).traffic == (shared, shared)


def test_any_chunking_is_the_same_round():
    same_in_chunks(LGFedAvg, ONE, momentum=0.9, weight_decay=0.01)


def test_refuses_more_layers_than_there_are():
    with pytest.raises(UserError, match=r"algorithm\.layers is 3, but the model has 2 blocks"):
        make(LGFedAvg, {"layers": 3})


@pytest.mark.parametrize("chunk", [1, 2])
def test_by_hand(chunk):
    """FedPer's example, in which now h = w[1] is shared: lr 0.1, a step a round.

    Round 1.  A, one sample (1, 2):      w - m = (-1, -2),        g = (-4, -5),         w = (0.4, 0.5)
              B, three samples (-1, 0):  w - m = (1, 0),          g = (2, 1),           w = (-0.2, -0.1)
              server                     h = 0.5 / 4 - 0.1 * 3 / 4 = 0.05
    Round 2.  A, from (0.4, 0.05):       w - m = (-0.6, -1.95),   g = (-3.15, -4.5),    w = (0.715, 0.5)
              B, from (-0.2, 0.05):      w - m = (0.8, 0.05),     g = (1.65, 0.9),      w = (-0.365, -0.04)
              server                     h = 0.5 / 4 - 0.04 * 3 / 4 = 0.095
    """
    federation = by_hand([[([1, 2], 0)], [([-1, 0], 0)] * 3])
    network = Quadratic([[2, 1], [1, 2]]), torch.zeros(2)
    run = simulate(LGFedAvg, ONE, rounds=2, epochs=1, federation=federation, network=network, chunk=chunk)
    close(run.w, [0.095])
    close(run.personal, [[0.715, 0.095], [-0.365, 0.095]])
