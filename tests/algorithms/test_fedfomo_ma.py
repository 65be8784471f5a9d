import pytest
import torch

from pflsweep.algorithms.fedfomo import Client
from pflsweep.algorithms.fedfomo_ma import Down, FedFomoMA
from pflsweep.data.loader import ClientData
from pflsweep.methods.protocol import Given
from pflsweep.ops.vmap import tree_map
from tests.algorithms.helpers import (
    EVERYBODY,
    FEDERATION,
    NETWORK,
    Quadratic,
    by_hand,
    close,
    make,
    same_in_chunks,
    simulate,
)

TASK, W0 = NETWORK
HYPER = {"models": 3, "epsilon": 0.3, "decay": 0.05, "validation": 0.3}


def data():
    return ClientData.of(FEDERATION, [3], 2, batch=4, large=16)


def start(models, own, last=1):
    """Return theta-hat of client 3, with its own model and these others [m, P]. last: its last turn."""
    everyone = models if own is None else torch.cat([own[None], models])
    without = (everyone.sum(0) - models) / max(1, len(everyone) - 1)
    count = torch.tensor([len(everyone)], dtype=W0.dtype)
    down = Down(everyone.mean(0)[None], without[None], torch.arange(len(models))[None], count)
    turn = simulate(FedFomoMA, HYPER, rounds=1).simulation._turn(torch.tensor([3]))._replace(last=torch.tensor([last]))
    client = Client(W0[None], (W0 if own is None else own)[None])
    return make(FedFomoMA, HYPER).start(Given(down, client, turn, FEDERATION.class_counts[[3]]), data())


def loss(w):
    _, validation = data().holdout(0.3)
    (batch,) = validation._chunk.batches([validation._chunk.rows["train"]][0:1], None)
    return float(TASK.loss(w, tree_map(lambda v: v[0], batch)))


def models(count, spread=1.0):
    generator = torch.Generator().manual_seed(5)
    return W0 + spread * torch.randn(count, len(W0), generator=generator, dtype=W0.dtype)


def mixed(everyone):
    """Compute eq. 14 and the mix, one model at a time."""
    mean, gains = everyone.mean(0), []
    for n in range(len(everyone)):
        rest = torch.cat([everyone[:n], everyone[n + 1 :]])
        gains.append(loss(rest.mean(0)) - loss(mean))
    weight = torch.tensor(gains, dtype=W0.dtype).clamp(min=0)
    weight = weight / weight.sum() if weight.sum() else weight
    return gains, mean + weight @ (everyone - mean)


def test_weights_are_what_the_average_loses_without_a_model():
    everyone = models(5, 3.0)
    work = start(everyone[1:], everyone[0])
    gains, mix = mixed(everyone)
    assert min(gains) < 0 < max(gains)
    close(work.gains[0], gains)
    close(work.w[0], mix)


def test_a_first_timer_has_no_model_among_them():
    everyone = models(4)
    work = start(everyone, None, last=-1)
    gains, mix = mixed(everyone)
    close(work.gains[0], [0.0, *gains])
    close(work.w[0], mix)


def test_equal_models_change_nothing():
    close(start(W0.expand(4, -1), W0).w[0], W0)


def test_without_gain_the_average_stays():
    """Of many pairs of models some have none that helps the average."""
    found = 0
    for pair in models(80, 3.0).view(40, 2, -1):
        gains, _ = mixed(pair)
        if max(gains) <= 0:
            close(start(pair[1:], pair[0]).w[0], pair.mean(0))
            found += 1
    assert found


def test_a_single_upload_is_where_others_start():
    only = models(1)
    work = start(only, None, last=-1)
    close(work.w[0], only[0])
    assert (work.gains == 0).all()


def test_the_server_averages_what_was_uploaded():
    run = simulate(FedFomoMA, HYPER, rounds=1, participation=0.6)
    down = run.method.send(run.server, run.simulation._turn(torch.arange(EVERYBODY)))
    known = run.results[0].ids.tolist()
    for i in range(EVERYBODY):
        close(down.mean[i], run.server.models[known].mean(0))
        for n, without in zip(down.ids[i].tolist(), down.without[i], strict=True):
            if n >= 0:
                close(without, run.server.models[[k for k in known if k != n]].mean(0))
    assert down.uploads.tolist() == [3.0] * EVERYBODY


def test_one_average_more_than_fedfomo_is_communicated():
    assert simulate(FedFomoMA, HYPER, rounds=1).traffic == (0, TASK.size)
    assert simulate(FedFomoMA, HYPER, rounds=3).traffic == (3 * TASK.size, TASK.size)


def test_any_chunking_is_the_same_round():
    same_in_chunks(FedFomoMA, HYPER, momentum=0.9)
    one, all_ = (simulate(FedFomoMA, HYPER, rounds=4, chunk=k) for k in (1, EVERYBODY))
    close(all_.server, one.server)


class WithLoss(Quadratic):
    def loss(self, w, batch):
        return self.value_and_grad(w, batch)[0]


@pytest.mark.parametrize("chunk", [1, 3])
def test_by_hand(chunk):
    """f = 1/2 (w - m)^2 with m = 4 for A and C, -2 for B, validation on the same sample; lr 0.5, from 0.

    Round 1, alone: A and C: g = -4, 2; B: g = 2, -1.
    Round 2: the average is 1; without A or C 0.5, without B 2.
    A: losses 4.5; 6.125, 2, 6.125: w = (1.625, -2.5, 1.625), w* = (1/2, 0, 1/2), mix = 1 + 1 = 2, trained 3; C alike
    B: losses 4.5; 3.125, 8, 3.125: w = (-1.375, 3.5, -1.375), w* = (0, 1, 0), mix = 1 - 2 = -1, trained -1.5
    """
    task = WithLoss([[1, 0], [0, 0]]), torch.tensor([0.0, 7.0], dtype=torch.float64)
    federation = by_hand([[([4, 0], 0)], [([-2, 0], 0)], [([4, 0], 0)]])
    settings = {"epochs": 1, "batch": 1, "lr": 0.5, "federation": federation, "network": task, "chunk": chunk}
    run = simulate(FedFomoMA, {**HYPER, "epsilon": 0.0}, rounds=2, **settings)
    close(run.personal, [[2, 7], [-1, 7], [2, 7]])
    close(run.server.models, [[3, 7], [-1.5, 7], [3, 7]])
    close(run.server.p, [[2.625, -2.5, 1.625], [-1.375, 4.5, -1.375], [1.625, -2.5, 2.625]])
