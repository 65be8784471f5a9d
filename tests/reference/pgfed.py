"""PGFed, PGFedMo and PGFed-CE, transcribed from the paper's Algorithm 1.

Luo, Mendieta, Chen, Wu: "PGFed: Personalize Each Client's Global Objective for Federated Learning", ICCV
2023. "server line k" is line k of ServerExecute, "client line k" line k of ClientUpdate.

When is alpha updated? In the loop over batches, client line 8 moves theta_i and only then lines 9-10 use it:
g2 = g-bar^T theta_i is taken *after* the step on the same batch.

What the box leaves open:
- p_i is taken over the sampled clients (the paper prints n over all clients: the model would shrink);
- f is a mean over the rows (the paper's eq. 2 says a sum);
- alpha > 0 (below eq. 5) is kept by clipping at 0 after every step;
- M is |S_1| in alpha's start and |S_{t-1}| in g-bar;
- momentum acts on the whole gradient of client line 8, grad f + g-tilde; its buffer is fresh each round;
- PGFedMo: a client without a previous g-tilde (client line 6) takes the downloaded one as it is;
- a never-sampled client's personal model is theta^0.
"""

import torch

from tests.reference.common import copy_of, gradient, local_training, share_average


def taylor_terms(loss, w, x, y, mu):
    """Client line 13 (eq. 11): grad f_i(theta_i), over all the client's rows, and its scalar g_alpha^(1)."""
    grad = gradient(loss, w, x, y)
    g1 = mu * (float(loss(w, x, y)) - float(torch.dot(grad, w)))
    return grad, g1


def auxiliary_gradient(alpha_i, grads, mu):
    """Server line 10 (eq. 13): g-tilde = mu * sum over j in S_{t-1} (j = i too) of alpha_ij grad_j."""
    total = 0.0
    for j in grads:
        total = total + alpha_i[j] * grads[j]
    return mu * total


def mean_gradient(grads, mu):
    """Server line 11 (eq. 14): g-bar = (mu / M) * sum over j in S_{t-1} of grad_j."""
    total = 0.0
    for j in grads:
        total = total + grads[j]
    return mu / len(grads) * total


def ce_scalars(g1, grads, theta, mu):
    """PGFed-CE (eq. 16): c_j = g1_j + mu grad_j^T theta_glob, computed by the server once a round."""
    return {j: g1[j] + mu * float(torch.dot(grads[j], theta)) for j in grads}


def client_update(loss, theta, g_tilde, g1, g_bar, c, alpha_i, x, y, batches, lr, momentum, eta2):
    """Client lines 4-11, for t > 1. Exactly one of `g_bar` (PGFed) and `c` (PGFed-CE) is not None."""
    theta_i = theta  # line 4
    alpha_i = dict(alpha_i)
    velocity = torch.zeros_like(theta)
    for rows in batches:  # line 7
        velocity = momentum * velocity + gradient(loss, theta_i, x[rows], y[rows]) + g_tilde
        theta_i = theta_i - lr * velocity  # line 8
        for j in g1:
            if c is None:
                g2 = float(torch.dot(g_bar, theta_i))  # line 9 (eq. 12), at line 8's new theta_i
                step = g1[j] + g2
            else:
                step = c[j]
            alpha_i[j] = max(0.0, alpha_i[j] - eta2 * step)  # line 10, and the clip
    return theta_i, alpha_i


def run(*, loss, w0, clients, cohorts, batches, lr, momentum, mu, eta2, beta=0.0, ce=False):
    """All rounds; one dictionary per round. `beta=0`: PGFed; `beta>0`: PGFedMo; `ce=True`: CE, of either.

    theta: server's model after the round; models: {i in S_t: theta_i}; personal: {every i: theta_i};
    A: [N, N]; grads, g1: {j in S_t} what is kept for round t+1; g_tilde: {i that has one: client's};
    g_tilde_down: {i in S_t: server line 10}; g_bar: server line 11 or None; c: {j in S_{t-1}} (CE) or None.
    """
    everyone = range(len(clients))
    sizes = {i: len(clients[i][1]) for i in everyone}
    alpha = {i: {j: 1.0 / len(cohorts[0]) for j in everyone} for i in everyone}  # server lines 1-2
    theta = w0.clone()
    personal = {i: w0.clone() for i in everyone}
    g_tilde = {}
    grads, g1 = {}, {}
    rounds = []
    for t, cohort in enumerate(cohorts, start=1):  # server lines 3-4
        new_grads, new_g1 = {}, {}  # server line 5
        models, g_tilde_down = {}, {}
        g_bar = mean_gradient(grads, mu) if t > 1 and not ce else None  # server line 11
        c = ce_scalars(g1, grads, theta, mu) if t > 1 and ce else None
        for i in cohort:  # server line 6
            x, y = clients[i]
            if t == 1:  # server lines 7-8, client lines 1-2
                models[i] = local_training(loss, theta, x, y, batches(t, i), lr, momentum)
            else:  # server lines 9-12
                g_tilde_down[i] = auxiliary_gradient(alpha[i], grads, mu)  # server line 10
                if i in g_tilde:  # client line 6 (eq. 15); with beta = 0 it is client line 5
                    g_tilde[i] = (1.0 - beta) * g_tilde_down[i] + beta * g_tilde[i]
                else:
                    g_tilde[i] = g_tilde_down[i]
                models[i], alpha[i] = client_update(  # server line 15: A[i] <- alpha_i
                    loss, theta, g_tilde[i], g1, g_bar, c, alpha[i], x, y, batches(t, i), lr, momentum, eta2
                )
            new_grads[i], new_g1[i] = taylor_terms(loss, models[i], x, y, mu)  # client line 13
        theta = share_average(models, sizes)  # server line 16
        personal.update(models)  # server lines 18-20: the others keep theta_i, and g-tilde_i too
        grads, g1 = new_grads, new_g1
        rounds.append(
            {
                "theta": theta.clone(),
                "models": copy_of(models),
                "personal": copy_of(personal),
                "A": torch.tensor([[alpha[i][j] for j in everyone] for i in everyone], dtype=torch.float64),
                "grads": copy_of(grads),
                "g1": dict(g1),
                "g_tilde": copy_of(g_tilde),
                "g_tilde_down": copy_of(g_tilde_down),
                "g_bar": g_bar,
                "c": c,
            }
        )
    return rounds
