import pytest
import torch

from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.algorithms.fedcac import FedCAC, overlaps
from pflsweep.algorithms.local import Local
from tests.algorithms.as_run.written_out import NAMES, SHARE, answers, batches, entropy, joined, moved, named
from tests.algorithms.helpers import EVERYBODY, NETWORK, Quadratic, by_hand, close, make, same_in_chunks, simulate

TASK, W0 = NETWORK
HYPER = {"tau": 0.4, "beta": 4.0}


def test_without_critical_parameters_it_is_fedavg():
    settings = {"rounds": 3, "participation": 0.6, "momentum": 0.9}
    assert torch.equal(simulate(FedCAC, {**HYPER, "tau": 0.0}, **settings).w, simulate(FedAvg, **settings).w)


def test_if_all_parameters_are_critical_and_nobody_shares_it_is_local():
    """Parameters that have not moved would be the global model's; here there are none."""
    settings = {"rounds": 3, "weight_decay": 0.01}
    ours = simulate(FedCAC, {"tau": 1.0, "beta": 0.0}, **settings)
    assert ours.server.critical.all()
    close(ours.personal, simulate(Local, **settings).personal)


def test_each_tensor_has_its_share_of_critical_parameters():
    run = simulate(FedCAC, HYPER)
    for i in range(EVERYBODY):
        for part in TASK.views(run.server.critical[i]).values():
            assert part.sum() <= int(0.4 * part.numel() + 1e-9)
    assert run.server.critical[3].sum() > 0


def test_overlap_is_one_minus_half_the_share_that_differs():
    masks = torch.tensor([[1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 1, 1]], dtype=torch.bool)
    close(overlaps(masks), [[1.0, 0.5, 0.0], [0.5, 1.0, 0.5], [0.0, 0.5, 1.0]])


def test_the_threshold_rises_until_nobody_collaborates():
    method = make(FedCAC, {"tau": 0.5, "beta": 10.0})
    overlap = torch.tensor([[1.0, 0.9, 0.1], [0.9, 1.0, 0.5], [0.1, 0.5, 1.0]]).double()  # on average 0.5, at most 0.9
    alone = torch.eye(3, dtype=torch.bool)
    found = [method.partners(overlap, t) ^ alone for t in (1, 5, 10, 11)]  # thresholds 0.54, 0.7, 0.9
    pair = torch.zeros(3, 3, dtype=torch.bool)
    pair[0, 1] = pair[1, 0] = True
    assert torch.equal(torch.stack(found), torch.stack([pair, pair, pair, ~alone & alone]))
    assert torch.equal(method.partners(torch.ones(3, 3).double(), 11), alone), "equal overlaps too"


def test_an_absent_client_keeps_what_is_its_own():
    two = simulate(FedCAC, HYPER, rounds=2, participation=0.4)
    three = simulate(FedCAC, HYPER, rounds=3, participation=0.4)
    absent = [i for i in range(EVERYBODY) if i not in three.results[-1].ids]
    assert torch.equal(three.server.custom[absent], two.server.custom[absent])
    assert torch.equal(three.server.critical[absent], two.server.critical[absent])
    never = three.simulation.last < 0
    assert never.any()
    assert torch.equal(three.personal[never], three.w.expand(int(never.sum()), -1))


def written_out(tau, beta, count=3):
    """Compute as the authors' code does: per tensor, with masks of 0 and 1 and loops over pairs."""
    models = [named(W0) for _ in range(EVERYBODY)]
    for t in range(1, count + 1):
        masks, trained = [], []
        for i in range(EVERYBODY):
            w = models[i]
            for x, y in batches(i, t, 2):
                w = moved(w, lambda p, x=x, y=y: entropy(answers(p, x), y), NAMES)
            mask = {}
            for name, v in w.items():
                metric = ((v - models[i][name]) * v).abs()
                count_ = int(tau * metric.numel() + 1e-9)
                kept = metric.flatten().sort(descending=True).values[:count_]
                bar = max(float(kept[-1]) if count_ else float("inf"), 1e-300)
                mask[name] = (metric >= bar).double()
            masks.append(mask)
            trained.append(w)
        flat = [joined(mask) for mask in masks]
        pairs = {
            (i, j): float(1 - (flat[i] - flat[j]).abs().sum() / (2 * flat[i].sum()))
            for i in range(EVERYBODY)
            for j in range(EVERYBODY)
            if i != j
        }
        average, top = sum(pairs.values()) / len(pairs), max(pairs.values())
        bar = average + t / beta * (top - average)
        common = {n: sum(p * w[n] for p, w in zip(SHARE, trained, strict=True)) for n in NAMES}
        for i in range(EVERYBODY):
            group = [i, *(j for j in range(EVERYBODY) if j != i and pairs[i, j] >= bar)]
            mean = {n: sum(trained[j][n] for j in group) / len(group) for n in NAMES}
            models[i] = {n: masks[i][n] * mean[n] + (1 - masks[i][n]) * common[n] for n in NAMES}
    return joined(common), torch.stack([joined(w) for w in models])


def test_trajectory_is_that_of_the_paper_written_out():
    w, models = written_out(**HYPER)
    run = simulate(FedCAC, HYPER, rounds=3)
    close(run.w, w)
    close(run.personal, models)
    assert ((run.server.custom - run.server.w).abs().max(1).values > 1e-6).all(), "somebody collaborates with not all"


def test_a_model_each_way():
    assert simulate(FedCAC, HYPER).traffic == (TASK.size, TASK.size)


def test_any_chunking_is_the_same_round():
    same_in_chunks(FedCAC, HYPER, momentum=0.9)


@pytest.mark.parametrize("chunk", [1, 3])
def test_by_hand(chunk):
    """f = 1/2 |w - m|^2, one step a round at lr 1/2 from w = (2, 2); tau = 1/2: one of the two parameters is critical.

    Round 1, beta = 2. A, m = (6, 2): g = (-4, 0), w = (4, 2), |Delta w| = (2 * 4, 0), critical: the first
                       B, m = (8, 2): w = (5, 2), (3 * 5, 0), the first.  C, m = (2, 10): w = (2, 6), the second
    Overlaps: A and B 1, with C 0; on average 1/3, the threshold 1/3 + 1/2 (1 - 1/3) = 2/3: A and B share, C does not.
    w_g = (11/3, 10/3); A and B: custom (4.5, 2), merged (4.5, 10/3); C: (11/3, 6)
    """
    pull = Quadratic([[1, 0], [0, 1]])  # whose views are one tensor
    clients = by_hand([[([6, 2], 0)], [([8, 2], 0)], [([2, 10], 0)]])
    network = pull, torch.tensor([2.0, 2.0]).double()
    settings = {"epochs": 1, "batch": 1, "lr": 0.5, "federation": clients, "network": network, "chunk": chunk}
    run = simulate(FedCAC, {"tau": 0.5, "beta": 2.0}, rounds=1, **settings)
    close(run.w, [11 / 3, 10 / 3])
    close(run.personal, [[4.5, 10 / 3], [4.5, 10 / 3], [11 / 3, 6]])
