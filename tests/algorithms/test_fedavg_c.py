import pytest
import torch

from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.algorithms.fedavg_c import FedAvgC
from pflsweep.algorithms.fedprox import FedProx
from pflsweep.algorithms.local import Local
from pflsweep.ops.vmap import tree_map
from tests.algorithms.helpers import EVERYBODY, NETWORK, Quadratic, by_hand, close, same_in_chunks, simulate

TASK, W0 = NETWORK
TUNE = {"finetune_epochs": 3, "finetune_lr": None, "mu": 0.0, "ft_prox": True, "evaluated": "stale"}
PROX = TUNE | {"mu": 0.5}
WHOLE = {"batch": 20, "lr_decay": 0.9}  # all data in one batch: one stream, whatever its order


def apart(a: torch.Tensor, b: torch.Tensor) -> bool:
    return float((a - b).abs().max()) > 1e-4


@pytest.mark.parametrize(("ours", "theirs", "hyper"), [(TUNE, FedAvg, {}), (PROX, FedProx, {"mu": 0.5})])
def test_fine_tuning_and_training_are_one_longer_training(ours, theirs, hyper):
    """This holds with one rate and without momentum; with mu the anchor of both is the received model."""
    long = simulate(theirs, hyper, epochs=5, **WHOLE)
    close(simulate(FedAvgC, ours, epochs=2, **WHOLE).w, long.w)
    close(simulate(FedAvgC, ours, epochs=2, chunk=EVERYBODY, **WHOLE).w, long.w)
    long = simulate(theirs, hyper, epochs=5, momentum=0.9, **WHOLE)
    assert apart(simulate(FedAvgC, ours, epochs=2, momentum=0.9, **WHOLE).w, long.w), (
        "the optimiser is fresh in between"
    )


def test_the_proximal_term_may_spare_the_fine_tuning():
    spared = simulate(FedAvgC, PROX | {"ft_prox": False}, rounds=1)
    close(spared.personal, simulate(FedAvgC, TUNE, rounds=1).personal, 0.0)
    assert apart(spared.w, simulate(FedAvgC, TUNE, rounds=1).w)
    assert apart(spared.personal, simulate(FedAvgC, PROX, rounds=1).personal)


def test_a_client_is_evaluated_with_what_it_fine_tuned_before_training():
    alone = simulate(Local, epochs=3, rounds=1, **WHOLE)
    close(simulate(FedAvgC, TUNE, rounds=1, **WHOLE).personal, alone.personal)


def test_stale_keeps_an_absent_clients_model():
    before, after = (simulate(FedAvgC, TUNE, participation=0.4, rounds=rounds) for rounds in (2, 3))
    seen = {i for result in before.results for i in result.ids.tolist()}
    for i in set(range(EVERYBODY)) - set(after.results[-1].ids.tolist()):
        assert torch.equal(after.personal[i], before.personal[i] if i in seen else after.w)


@pytest.mark.parametrize("chunk", [1, EVERYBODY])
def test_current_fine_tunes_the_newest_model_of_everybody(chunk):
    """It is what the next round's cohort would start from with the same batches: here one batch of all data."""
    now = PROX | {"evaluated": "current", "finetune_lr": 0.1}
    run = simulate(FedAvgC, now, rounds=1, participation=0.4, chunk=chunk, **WHOLE)
    assert run.clients.w.shape == (EVERYBODY, 0), "nothing is kept"
    before = tree_map(torch.clone, run.server)
    next_round = simulate(FedAvgC, PROX | {"finetune_lr": 0.1}, rounds=2, participation=0.4, chunk=chunk, **WHOLE)
    ids = next_round.results[-1].ids
    close(run.personal[ids], next_round.personal[ids])
    assert (run.personal != run.w).any(1).all()
    close(run.server, before, 0.0)


def test_one_model_each_way():
    assert simulate(FedAvgC, PROX).traffic == (TASK.size, TASK.size)


@pytest.mark.parametrize("evaluated", ["stale", "current"])
def test_any_chunking_is_the_same_round(evaluated):
    same_in_chunks(FedAvgC, PROX | {"evaluated": evaluated}, momentum=0.9, weight_decay=0.01)


@pytest.mark.parametrize("chunk", [1, 2])
def test_by_hand(chunk):
    """f = 1/2 (w - m)^2, mu = 1, from w = 0; two steps of fine-tuning with rate 0.1, one of training with 0.25.

    A, one sample m = 4:      g = -4, 0.4; g = -3.6 + 0.4, theta-hat = 0.72; g = -3.28 + 0.72 = -2.56, w = 1.36
    B, three samples m = -2:  -1/2 of that: theta-hat = -0.36, w = -0.68
    server                    w = 1.36 / 4 - 0.68 * 3 / 4 = -0.17
    Round 2: theta-hat lies 0.18 of the way from w to m, w_i 0.34, as in round 1.
                              A: -0.17 + 0.18 * 4.17 = 0.5806, w_A = -0.17 + 0.34 * 4.17 = 1.2478
                              B: -0.17 - 0.18 * 1.83 = -0.4994, w_B = -0.17 - 0.34 * 1.83 = -0.7922
                              w = 1.2478 / 4 - 0.7922 * 3 / 4 = -0.2822
    Without the term in the fine-tuning: A: g = -4, 0.4; g = -3.6, 0.76; g = -3.24 + 0.76 = -2.48, w = 1.38
                              w = 1.38 / 4 - 0.69 * 3 / 4 = -0.1725
    """
    network = Quadratic([[1, 0], [0, 0]]), torch.tensor([0.0, 7.0])  # the second number never moves
    settings = {"epochs": 1, "lr": 0.25, "network": network, "chunk": chunk}
    settings["federation"] = by_hand([[([4, 0], 0)], [([-2, 0], 0)] * 3])
    prox = TUNE | {"finetune_epochs": 2, "finetune_lr": 0.1, "mu": 1.0}
    first = simulate(FedAvgC, prox, rounds=1, **settings)
    close(first.w, [-0.17, 7])
    close(first.personal, [[0.72, 7], [-0.36, 7]])
    second = simulate(FedAvgC, prox, rounds=2, **settings)
    close(second.w, [-0.2822, 7])
    close(second.personal, [[0.5806, 7], [-0.4994, 7]])
    close(simulate(FedAvgC, prox | {"evaluated": "current"}, rounds=1, **settings).personal, second.personal)
    close(simulate(FedAvgC, prox | {"ft_prox": False}, rounds=1, **settings).w, [-0.1725, 7])
