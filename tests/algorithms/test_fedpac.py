from itertools import combinations

import torch
from torch import nn
from torch.func import functional_call

from pflsweep.algorithms.fedpac import FedPAC, collaboration
from pflsweep.algorithms.fedrep import FedRep
from tests.algorithms.as_run.written_out import NAMES, SHARE, answers, batches, entropy, joined, moved, named
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
HYPER = {"lam": 0.7, "head_epochs": 1, "head_lr": 0.3}
OWN = [FEDERATION.gather(torch.from_numpy(rows)) for rows in FEDERATION.rows["train"]]


def test_alone_and_without_alignment_it_is_fedrep():
    alone = by_hand([[([1, 2, 0, -1], 0), ([0, 1, 1, 2], 1), ([2, 0, 1, 1], 2)]], classes=3)
    settings = {"rounds": 3, "federation": alone, "momentum": 0.9}
    ours = simulate(FedPAC, {"lam": 0.0, "head_epochs": 2, "head_lr": None}, **settings)
    close(ours.personal, simulate(FedRep, {"head_epochs": 2}, **settings).personal)


def test_weights_of_equal_clients_are_in_inverse_proportion_to_their_variances():
    same = torch.ones(3, 2, 4, dtype=torch.float64)
    close(collaboration(same, torch.tensor([1.0, 2.0, 4.0]).double()), [[4 / 7, 2 / 7, 1 / 7]] * 3)


def test_clients_far_apart_do_not_collaborate():
    h = 1e4 * torch.eye(3, dtype=torch.float64)[:, None]
    close(collaboration(h, torch.ones(3).double()), torch.eye(3).double(), 1e-7)


def test_a_client_without_variance_keeps_its_head():
    h = torch.arange(3.0).double()[:, None, None]
    close(collaboration(h, torch.tensor([0.0, 1.0, 1.0]).double())[0], [1.0, 0.0, 0.0])


def test_the_variance_is_that_of_the_authors_code():
    run = simulate(FedPAC, HYPER)
    work = opened(run, list(range(EVERYBODY))).work
    for i, (x, y) in enumerate(OWN):
        z, v = TASK.features(run.w, x), 0.0
        for k in range(CLASSES):
            of, p = z[y == k], float((y == k).double().mean())
            if len(of):
                v += p * float(torch.trace(of.T @ of / len(of))) - p**2 * float(of.mean(0) @ of.mean(0))
                close(work.h[i, k], p * of.mean(0))
        close(work.variance[i], torch.tensor(v / len(y), dtype=torch.float64))


def least(matrix):
    """Return argmin a^T M a over the simplex: the best over all supports whose stationary point is in the simplex."""
    best, found = float("inf"), None
    for size in range(1, len(matrix) + 1):
        for support in map(list, combinations(range(len(matrix)), size)):
            a = torch.linalg.solve(matrix[support][:, support], torch.ones(size).double())
            a = a / a.sum()
            value = float(a @ matrix[support][:, support] @ a)
            if (a >= 0).all() and value < best:
                best, found = value, torch.zeros(len(matrix)).double()
                found[support] = a
    return found


def written_out(count=3):
    """Algorithm 1 with loops over clients and classes."""
    extractor = nn.Sequential(*list(TASK.model)[:-1])
    body, head = NAMES[:-2], NAMES[-2:]

    def features(p, x):
        return functional_call(extractor, {n.replace("fc1", "0", 1): p[n] for n in body}, (x,))

    shared, heads, centroids = named(W0), [named(W0) for _ in range(EVERYBODY)], {}
    for round in range(1, count + 1):
        trained, h, v = [], [], []
        for i in range(EVERYBODY):
            w = {**{n: shared[n] for n in body}, **{n: heads[i][n] for n in head}}
            x, y = OWN[i]
            z = features(w, x)
            h.append([z[y == k].sum(0) / len(y) for k in range(CLASSES)])
            v.append(float(z.square().sum() / len(y) - sum(each @ each for each in h[-1])) / len(y))
            for x, y in batches(i, round, 1, "head"):
                w = moved(w, lambda p, x=x, y=y: entropy(answers(p, x), y), head, lr=0.3)
            for x, y in batches(i, round, 2):

                def loss(p, x=x, y=y, centroids=centroids):
                    z = features(p, x)
                    near = torch.stack([centroids.get(int(k), f.detach()) for k, f in zip(y, z, strict=True)])
                    return entropy(answers(p, x), y) + 0.7 * nn.functional.mse_loss(z, near)

                w = moved(w, loss, body)
            trained.append(w)
        for i in range(EVERYBODY):
            matrix = torch.diag(torch.tensor(v, dtype=torch.float64))
            for j in range(EVERYBODY):
                for k in range(EVERYBODY):
                    pairs = zip(h[i], h[j], h[k], strict=True)
                    matrix[j, k] += sum((a - b) @ (a - c) for a, b, c in pairs)
            # The client with one sample has no variance, and so gives the others no weight

            alpha = torch.eye(EVERYBODY).double()[i] if v[i] < 1e-12 else least(matrix)
            heads[i] = {n: sum(a * w[n] for a, w in zip(alpha, trained, strict=True)) for n in head}
        shared = {n: sum(p * w[n] for p, w in zip(SHARE, trained, strict=True)) for n in body}
        sums, counts = {}, {}
        for w, (x, y) in zip(trained, OWN, strict=True):
            for k in set(y.tolist()):
                z = features(w, x)[y == k]
                sums[k], counts[k] = sums.get(k, 0) + z.sum(0), counts.get(k, 0) + len(z)
        centroids = {k: sums[k] / counts[k] for k in sums}
    return torch.stack([joined({**shared, **each}) for each in heads]), torch.stack([centroids[k] for k in range(3)])


def test_trajectory_is_that_of_the_paper_written_out():
    models, centroids = written_out()
    run = simulate(FedPAC, HYPER, rounds=3)
    close(run.personal, models, 1e-9)
    close(run.server.prototypes, centroids, 1e-9)


def test_an_absent_client_keeps_its_head():
    two, three = (simulate(FedPAC, HYPER, rounds=k, participation=0.4) for k in (2, 3))
    absent = [i for i in range(EVERYBODY) if i not in three.results[-1].ids]
    assert torch.equal(three.server.heads[absent], two.server.heads[absent])


def test_models_and_statistics_travel():
    features = CLASSES * TASK.width
    assert simulate(FedPAC, HYPER).traffic == (TASK.size + features, TASK.size + 2 * features)


def test_any_chunking_is_the_same_round():
    same_in_chunks(FedPAC, HYPER, momentum=0.9)


def test_two_heads_by_hand():
    """h_A = (0, 0), h_B = (3, 1): 9 + 1 = 10 apart; V_A = 2, V_B = 4.

    A: 2 a^2 + (4 + 10) (1 - a)^2 is least at a = 14 / 16.  B: (2 + 10) (1 - b)^2 + 4 b^2 at b = 12 / 16.
    """
    h = torch.tensor([[[0, 0]], [[3, 1]]]).double()
    close(collaboration(h, torch.tensor([2.0, 4.0]).double()), [[7 / 8, 1 / 8], [1 / 4, 3 / 4]])
