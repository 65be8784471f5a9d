"""FedAvgM, FedOpt and FedNova, transcribed from their papers: what the server does with the clients' models.

Clients train as FedAvg's do (FedNova's with their proximal term, if mu > 0). All weights are p_i = n_i / sum of the
cohort's n_j. `run` yields the server's model after each round.
"""

import torch

from tests.reference.common import gradient, local_training, share_average


def trained(loss, w, clients, cohort, batches, t, lr, momentum):
    return {i: local_training(loss, w, *clients[i], batches=batches(t, i), lr=lr, momentum=momentum) for i in cohort}


def sizes_of(clients, cohort):
    return {i: len(clients[i][1]) for i in cohort}


def fedavgm(*, loss, w0, clients, cohorts, batches, lr, momentum, beta, eta):
    """Hsu et al. 2019: v = beta v + Delta w; w = w - v. eta is Reddi et al.'s server rate."""
    w, v = w0.clone(), torch.zeros_like(w0)
    for t, cohort in enumerate(cohorts, start=1):
        models = trained(loss, w, clients, cohort, batches, t, lr, momentum)
        total = sum(sizes_of(clients, cohort).values())
        delta = sum(len(clients[k][1]) / total * (w - models[k]) for k in cohort)
        v = beta * v + delta
        w = w - eta * v
        yield w


def fedopt(*, loss, w0, clients, cohorts, batches, lr, momentum, rule, eta, beta_1, beta_2, tau):
    """Reddi et al. 2021, Algorithm 2, coordinate by coordinate, with v_{-1} = tau^2."""
    x = w0.tolist()
    m, v = [0.0] * len(x), [tau * tau] * len(x)
    for t, cohort in enumerate(cohorts, start=1):
        at = torch.tensor(x, dtype=torch.float64)
        models = trained(loss, at, clients, cohort, batches, t, lr, momentum)
        new = share_average(models, sizes_of(clients, cohort)).tolist()
        for j in range(len(x)):
            delta = new[j] - x[j]
            m[j] = beta_1 * m[j] + (1 - beta_1) * delta
            square = delta**2
            if rule == "adagrad":
                v[j] = v[j] + square
            elif rule == "yogi":
                sign = (v[j] > square) - (v[j] < square)
                v[j] = v[j] - (1 - beta_2) * square * sign
            else:
                v[j] = beta_2 * v[j] + (1 - beta_2) * square
            x[j] = x[j] + eta * m[j] / (v[j] ** 0.5 + tau)
        yield torch.tensor(x, dtype=torch.float64)


def weights_of_gradients(steps, lr, momentum, mu):
    """Wang et al. 2020: the vector a_i [steps] of a local solver. Raises ValueError where the paper has none."""
    if momentum and mu:
        raise ValueError("the paper has momentum or a proximal term, not both")
    if mu:  # [(1 - alpha)^{tau-1}, ..., (1 - alpha), 1] with alpha = eta mu
        return [(1 - lr * mu) ** (steps - 1 - k) for k in range(steps)]
    return [(1 - momentum ** (steps - k)) / (1 - momentum) for k in range(steps)]


def fednova(*, loss, w0, clients, cohorts, batches, lr, momentum, mu):
    """x = x - tau_eff sum_i p_i eta d_i with d_i = G_i a_i / |a_i|_1, from each client's own gradients G_i."""
    x = w0.clone()
    for t, cohort in enumerate(cohorts, start=1):
        total = sum(sizes_of(clients, cohort).values())
        direction, tau_eff = torch.zeros_like(x), 0.0
        for i in cohort:
            features, labels = clients[i]
            at, velocity, gradients = x.clone(), torch.zeros_like(x), []
            for rows in batches(t, i):
                gradients.append(gradient(loss, at, features[rows], labels[rows]))
                velocity = momentum * velocity + gradients[-1] + mu * (at - x)
                at = at - lr * velocity
            a = weights_of_gradients(len(gradients), lr, momentum, mu)
            d = sum(weight * g for weight, g in zip(a, gradients, strict=True)) / sum(a)
            direction = direction + len(labels) / total * lr * d
            tau_eff = tau_eff + len(labels) / total * sum(a)
        x = x - tau_eff * direction
        yield x
