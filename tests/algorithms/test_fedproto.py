import pytest
import torch
from torch import nn

from pflsweep.algorithms.fedproto import FedProto
from pflsweep.algorithms.local import Local
from pflsweep.methods.task import Task
from tests.algorithms.as_run.written_out import NAMES, answers, batches, entropy, joined, moved, named
from tests.algorithms.helpers import (
    CLASSES,
    EVERYBODY,
    FEDERATION,
    NETWORK,
    by_hand,
    close,
    opened,
    same_in_chunks,
    simulate,
)

TASK, W0 = NETWORK
HYPER = {"lam": 0.7, "regulariser": "prototypes", "inference": "prototypes"}
SAMPLES = {**HYPER, "regulariser": "samples"}
HEAD = {**HYPER, "inference": "head"}
OWN = [FEDERATION.gather(torch.from_numpy(rows)) for rows in FEDERATION.rows["train"]]


def test_without_regulariser_it_is_local():
    close(simulate(FedProto, {**HEAD, "lam": 0.0}, rounds=3).personal, simulate(Local, rounds=3).personal)


def test_nothing_regularises_before_there_are_prototypes():
    close(simulate(FedProto, HEAD, rounds=1).personal, simulate(Local, rounds=1).personal)


def test_prototypes_are_means_over_all_samples_of_a_class():
    """They are over all clients' last models, as if all samples were together."""
    run = simulate(FedProto, HYPER)
    z = torch.cat([TASK.features(w, x) for w, (x, _) in zip(run.clients.w, OWN, strict=True)])
    y = torch.cat([y for _, y in OWN])
    close(run.server.prototypes, torch.stack([z[y == k].mean(0) for k in range(CLASSES)]))


def test_a_class_that_the_cohort_lacks_keeps_its_prototype():
    run = simulate(FedProto, HYPER, rounds=2)
    given, data, work = opened(run, [2])  # with a single sample
    up, _ = run.method.finish(given, data, work)
    after = run.method.aggregate(run.server, up, given.turn)
    here = given.class_counts[0] > 0
    assert here.sum() == 1
    assert torch.equal(after.prototypes[~here], run.server.prototypes[~here])
    close(after.prototypes[here], up.prototypes[0, here])
    assert after.known.all()


def test_the_nearest_known_prototype_decides():
    run, x = simulate(FedProto, HYPER), torch.randn(50, 4, dtype=torch.float64)
    z = TASK.features(run.clients.w[3], x)
    nearest = torch.cdist(z, run.server.prototypes).argmin(1)
    assert torch.equal(run.method.logits(run.personal[3], x).argmax(1), nearest)
    lacking = run.personal[3].clone()
    lacking[-CLASSES] = 0  # class 0 is not known
    assert torch.equal(run.method.logits(lacking, x).argmax(1), torch.cdist(z, run.server.prototypes[1:]).argmin(1) + 1)
    loss = torch.nn.functional.cross_entropy(run.method.logits(lacking, x), torch.zeros(50, dtype=torch.int64))
    assert 100 < loss < 1000, "improbable, but not impossible"
    lacking[-CLASSES:] = 0
    assert torch.equal(run.method.logits(lacking, x), TASK.logits(run.clients.w[3], x))


def written_out(regulariser, lam=0.7, count=3):
    """Algorithm 1 with dicts of prototypes, as in the authors' code."""
    own, shared = [named(W0) for _ in range(EVERYBODY)], {}
    extractor = nn.Sequential(*list(TASK.model)[:-1])

    def features(p, x):
        body = {name: piece for name, piece in p.items() if name in NAMES[:-2]}
        return torch.func.functional_call(extractor, {n.replace("fc1", "0", 1): v for n, v in body.items()}, (x,))

    for round in range(1, count + 1):
        for i in range(EVERYBODY):
            for x, y in batches(i, round, 2):

                def loss(p, x=x, y=y, shared=shared):
                    z, total = features(p, x), entropy(answers(p, x), y)
                    if regulariser == "samples":
                        target = torch.stack([shared.get(int(k), f.detach()) for k, f in zip(y, z, strict=True)])
                        return total + lam * nn.functional.mse_loss(z, target)
                    for k in set(y.tolist()) & set(shared):
                        total = total + lam * (z[y == k].mean(0) - shared[k]).norm()
                    return total

                own[i] = moved(own[i], loss, NAMES)
        sums, counts = {}, {}
        for i, (x, y) in enumerate(OWN):
            for k in set(y.tolist()):
                mean, n = features(own[i], x)[y == k].mean(0), int((y == k).sum())
                sums[k], counts[k] = sums.get(k, 0) + n * mean, counts.get(k, 0) + n
        shared = {k: sums[k] / counts[k] for k in sums}
    return torch.stack([joined(p) for p in own]), torch.stack([shared[k] for k in range(CLASSES)])


@pytest.mark.parametrize("hyper", [HYPER, SAMPLES])
def test_trajectory_is_that_of_the_paper_written_out(hyper):
    own, prototypes = written_out(hyper["regulariser"])
    run = simulate(FedProto, hyper, rounds=3)
    close(run.clients.w, own)
    close(run.server.prototypes, prototypes)


def test_only_prototypes_travel():
    assert simulate(FedProto, HYPER).traffic == (CLASSES * TASK.width, CLASSES * TASK.width)


def test_any_chunking_is_the_same_round():
    for hyper in (HYPER, SAMPLES):
        same_in_chunks(FedProto, hyper, momentum=0.9, weight_decay=0.01)
        one, all_ = (simulate(FedProto, hyper, rounds=3, participation=0.6, chunk=k) for k in (1, EVERYBODY))
        close(all_.server.prototypes, one.server.prototypes)


@pytest.mark.parametrize("chunk", [1, 2])
@pytest.mark.parametrize("regulariser", ["prototypes", "samples"])
def test_by_hand(chunk, regulariser):
    """z = phi x and a head of zeros whose gradient in z is 0; all samples of one class; phi = 1, lambda 1/2, lr 1.

    With one class CE is 0 whatever the logits, so the prototypes alone move phi.
    A has x = 1 twice, B x = 4. Round 1: nothing moves; C_A = 1, C_B = 4, C-bar = (2 * 1 + 4) / 3 = 2.
    Round 2: A: |1 - 2| has the slope -1 in phi, (1 - 2)^2 the slope -2; phi = 1 + 1/2 or 1 + 1
             B: |4 - 2|: 4, (4 - 2)^2: 16; phi = 1 - 2 or 1 - 8
             C-bar = (2 phi_A + 4 phi_B) / 3
    """
    network = Task(nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)))
    pair = by_hand([[([1], 0)] * 2, [([4], 0)]])
    hyper = {"lam": 0.5, "regulariser": regulariser, "inference": "prototypes"}
    settings = {"epochs": 1, "batch": 2, "lr": 1.0, "federation": pair, "chunk": chunk}
    run = simulate(FedProto, hyper, rounds=2, network=(network, torch.tensor([1.0, 0.0]).double()), **settings)
    a, b = (1.5, -1.0) if regulariser == "prototypes" else (2.0, -7.0)
    close(run.clients.w, [[a, 0], [b, 0]])
    close(run.server.prototypes, [[(2 * a + 4 * b) / 3]])
