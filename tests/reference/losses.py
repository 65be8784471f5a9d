"""MOON, FedNTD and FedLC, transcribed from their papers: local losses, written sample by sample.

The server averages with p_i = n_i / sum of the cohort's n_j. Each yields the server's model after each round.
"""

import torch

from tests.reference.common import gradient, share_average


def descended(loss, w, batches, lr, momentum, x, y):
    """SGD with heavy-ball momentum on the mean of a per-sample loss(w, x, y)."""

    def mean(at, features, labels):
        return sum(loss(at, one, int(label)) for one, label in zip(features, labels, strict=True)) / len(labels)

    velocity = torch.zeros_like(w)
    for rows in batches:
        velocity = momentum * velocity + gradient(mean, w, x[rows], y[rows])
        w = w - lr * velocity
    return w


def plain(logits, label):
    return -torch.log(torch.exp(logits[label]) / torch.exp(logits).sum())


def cosine(a, b):
    # Features that ReLU has all set to 0 have no direction and no gradient
    if not (a.any() and b.any()):
        return torch.zeros((), dtype=a.dtype)
    return (a @ b) / (torch.sqrt(a @ a) * torch.sqrt(b @ b))


def averaged(models, clients):
    return share_average(models, {i: len(clients[i][1]) for i in models})


def moon(*, logits, features, w0, clients, cohorts, batches, lr, momentum, mu, tau):
    """Li et al. 2021, Algorithm 1: l = l_sup(w; x, y) + mu l_con(w; w_i^{t-1}; w^t; x), eqs. 3 and 4."""
    w, previous = w0.clone(), {i: w0.clone() for i in range(len(clients))}
    for t, cohort in enumerate(cohorts, start=1):
        models = {}
        for i in cohort:

            def loss(at, x, label, glob=w, prev=previous[i]):
                z, z_glob, z_prev = (features(model, x[None])[0] for model in (at, glob, prev))
                positive = torch.exp(cosine(z, z_glob) / tau)
                negative = torch.exp(cosine(z, z_prev) / tau)
                return plain(logits(at, x[None])[0], label) - mu * torch.log(positive / (positive + negative))

            models[i] = descended(loss, w, batches(t, i), lr, momentum, *clients[i])
        previous.update(models)
        w = averaged(models, clients)
        yield w


def fedntd(*, logits, w0, clients, cohorts, batches, lr, momentum, beta, tau):
    """Lee et al. 2022: L = L_CE + beta L_NTD, L_NTD = sum_{c != y} q~_g(c) log(q~_g(c) / q~_l(c))."""
    w = w0.clone()

    def not_true(scores, label):
        others = [c for c in range(len(scores)) if c != label]
        total = sum(torch.exp(scores[c] / tau) for c in others)
        return {c: torch.exp(scores[c] / tau) / total for c in others}

    for t, cohort in enumerate(cohorts, start=1):

        def loss(at, x, label, glob=w):
            local, server = logits(at, x[None])[0], logits(glob, x[None])[0]
            q_local, q_server = not_true(local, label), not_true(server, label)
            divergence = sum(q_server[c] * torch.log(q_server[c] / q_local[c]) for c in q_local)
            return plain(local, label) + beta * divergence

        models = {i: descended(loss, w, batches(t, i), lr, momentum, *clients[i]) for i in cohort}
        w = averaged(models, clients)
        yield w


def fedlc(*, logits, w0, clients, cohorts, batches, lr, momentum, tau):
    """Zhang et al. 2022: -log e^{f_y - tau n_y^(-1/4)} / sum_c e^{f_c - tau n_c^(-1/4)}; e^{-100 tau} where n_c = 0."""
    w = w0.clone()
    for t, cohort in enumerate(cohorts, start=1):
        models = {}
        for i in cohort:
            counts = [int((clients[i][1] == c).sum()) for c in range(3)]

            def loss(at, x, label, counts=counts):
                scores = logits(at, x[None])[0]
                shifted = [scores[c] - tau * max(counts[c], 1e-8) ** -0.25 for c in range(3)]
                return -torch.log(torch.exp(shifted[label]) / sum(torch.exp(score) for score in shifted))

            models[i] = descended(loss, w, batches(t, i), lr, momentum, *clients[i])
        w = averaged(models, clients)
        yield w
