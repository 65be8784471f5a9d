import pytest
import torch

from pflsweep.algorithms.fedbabu import FedBABU
from pflsweep.ops.vmap import tree_map
from tests.algorithms.helpers import EVERYBODY, NETWORK, Quadratic, by_hand, close, opened, same_in_chunks, simulate

TASK, W0 = NETWORK
TUNE = {"finetune_epochs": 1, "finetune_lr": 0.05}


@pytest.mark.parametrize("ids", [[1], list(range(EVERYBODY))])
def test_the_head_never_moves_in_training(ids):
    run = simulate(FedBABU, TUNE, momentum=0.9, weight_decay=0.1)
    assert torch.equal(run.simulation.global_model()[TASK.head], W0[TASK.head])
    given, data, work = opened(run, ids)
    trained = run.method.fit(given, data, work)
    assert torch.equal(trained.w[:, TASK.head], W0[TASK.head].expand(len(ids), -1))
    assert (trained.w[:, TASK.extractor] != run.w).any(1).all()


def test_without_fine_tuning_everybody_has_the_global_model():
    run = simulate(FedBABU, {"finetune_epochs": 0, "finetune_lr": 0.05})
    assert torch.equal(run.personal, run.simulation.global_model().expand(EVERYBODY, -1))


@pytest.mark.parametrize("chunk", [1, EVERYBODY])
def test_fine_tuning_trains_the_head_too_and_changes_no_state(chunk):
    run = simulate(FedBABU, TUNE, rounds=1, chunk=chunk)
    before = tree_map(torch.clone, (run.server, run.clients))
    assert (run.personal[:, TASK.head] != W0[TASK.head]).any(1).all()
    close((run.server, run.clients), before, 0.0)


def test_only_the_extractor_is_communicated():
    assert simulate(FedBABU, TUNE).traffic == (TASK.extractor.stop, TASK.extractor.stop)


def test_any_chunking_is_the_same_round():
    same_in_chunks(FedBABU, TUNE, momentum=0.9, weight_decay=0.01)


def test_by_hand():
    """H = [[2, 1], [1, 2]], w = (phi, h) from (0, 1), lr 0.1, two epochs of a step, then a step of lr 0.2.

    A, one sample (1, 2):        w - m = (-1, -1),    g_phi = -2 - 1 = -3,      phi = 0.3
                                 w - m = (-0.7, -1),  g_phi = -1.4 - 1 = -2.4,  phi = 0.54
    B, three samples (-1, 0):    w - m = (1, 1),      g_phi = 3,               phi = -0.3
                                 w - m = (0.7, 1),    g_phi = 2.4,             phi = -0.54
    server                       phi = 0.54 / 4 - 0.54 * 3 / 4 = -0.27
    A fine-tunes                 w - m = (-1.27, -1), g = (-3.54, -3.27),      w = (0.438, 1.654)
    B fine-tunes                 w - m = (0.73, 1),   g = (2.46, 2.73),        w = (-0.762, 0.454)
    """
    federation = by_hand([[([1, 2], 0)], [([-1, 0], 0)] * 3])
    network = Quadratic([[2, 1], [1, 2]]), torch.tensor([0.0, 1.0])
    tune = {"finetune_epochs": 1, "finetune_lr": 0.2}
    run = simulate(FedBABU, tune, rounds=1, federation=federation, network=network)
    close(run.simulation.global_model(), [-0.27, 1.0])
    close(run.personal, [[0.438, 1.654], [-0.762, 0.454]])
