"""FedBN, FedDBE and kNN-Per, transcribed from their papers: what a client keeps, or adds where it is evaluated.

Weights are p_i = n_i / sum of the cohort's n_j. Each yields a dictionary a round.
"""

import math

import torch
import torch.nn.functional as F

from tests.reference.common import gradient, local_training, share_average


def averaged(models, clients):
    return share_average(models, {i: len(clients[i][1]) for i in models})


def fedbn(*, loss, w0, clients, cohorts, batches, lr, momentum, norm):
    """Li et al. 2021, Algorithm 1. norm: the numbers of those entries of w that are of normalisation layers."""
    models = {i: w0.clone() for i in range(len(clients))}
    shared = w0.clone()
    for t, cohort in enumerate(cohorts, start=1):
        for i in cohort:
            start = [float(models[i][j]) if j in norm else float(shared[j]) for j in range(len(w0))]
            models[i] = local_training(
                loss, w0.new_tensor(start), *clients[i], batches=batches(t, i), lr=lr, momentum=momentum
            )
        shared = averaged({i: models[i] for i in cohort}, clients)
        personal = {}
        for i, own in models.items():
            personal[i] = w0.new_tensor([float(own[j]) if j in norm else float(shared[j]) for j in range(len(w0))])
        yield {"personal": personal}


def feddbe(*, features, head, w0, width, clients, cohorts, batches, lr, momentum, kappa, mu):
    """Zhang et al. 2023, FedAvg + DBE. features(w, x) -> [n, width]; head(w, z) -> logits.

    Round 1 is the initialisation period: no DBE, and the consensus is the mean of its cohort's moving means.
    """
    size, w = len(w0), w0.clone()
    bias = {i: w0.new_zeros(width) for i in range(len(clients))}
    consensus = w0.new_zeros(width)
    for t, cohort in enumerate(cohorts, start=1):
        models, means = {}, {}
        for i in cohort:
            x, y = clients[i]
            both, velocity = torch.cat([w, bias[i]]), w0.new_zeros(size + width)
            mean = w0.new_zeros(width)
            for rows in batches(t, i):

                def loss(at, inputs, labels, before=mean, target=consensus, first=t == 1):
                    z = features(at[:size], inputs)
                    if first:
                        return F.cross_entropy(head(at[:size], z), labels)
                    moving = (1 - mu) * before + mu * z.sum(0) / len(z)
                    distance = sum((moving[k] - target[k]) ** 2 for k in range(width)) / width
                    return F.cross_entropy(head(at[:size], z + at[size:]), labels) + kappa * distance

                mean_now = (1 - mu) * mean + mu * features(both[:size], x[rows]).mean(0)
                velocity = momentum * velocity + gradient(loss, both, x[rows], y[rows])
                both, mean = both - lr * velocity, mean_now
            models[i], bias[i], means[i] = both[:size], both[size:], mean
        w = averaged(models, clients)
        if t == 1:
            consensus = averaged(means, clients)
        yield {"theta": w, "bias": dict(bias), "consensus": consensus}


def knnper(*, features, logits, w, store, x, k, weight):
    """Marfoq et al. 2022, eqs. 6 and 7: h_m(x), probabilities for rows x. store: the client's rows and labels."""
    keys, labels = features(w, store[0]), store[1]
    found = []
    for z, scores in zip(features(w, x), logits(w, x), strict=True):
        distances = sorted((math.dist(z.tolist(), key.tolist()), int(y)) for key, y in zip(keys, labels, strict=True))
        nearest = distances[:k]
        total = sum(math.exp(-d) for d, _ in nearest)
        local = [sum(math.exp(-d) for d, y in nearest if y == c) / total for c in range(len(scores))]
        common = torch.exp(scores) / torch.exp(scores).sum()
        found.append([weight * local[c] + (1 - weight) * float(common[c]) for c in range(len(scores))])
    return w.new_tensor(found)
