"""What the three references share: a gradient, plain local SGD, the server's average, a tiny model.

Everywhere: a model is a flat float64 vector `w [P]`; `loss(w, x, y)` is the mean loss over the rows given.
A client's data are `(x [n, ...], y [n])`; a mini-batch is a tensor of row numbers.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F


def gradient(loss, w, x, y):
    """Return the gradient of `loss` at `w`, flat [P]."""
    point = w.detach().clone().requires_grad_(True)
    return torch.autograd.grad(loss(point, x, y), point)[0]


def local_training(loss, w, x, y, batches, lr, momentum):
    """Train FedAvg's client: SGD with heavy-ball momentum (a fresh buffer) over one round's batches."""
    velocity = torch.zeros_like(w)
    for rows in batches:
        velocity = momentum * velocity + gradient(loss, w, x[rows], y[rows])
        w = w - lr * velocity
    return w


def share_average(models, sizes):
    """Return sum_i p_i theta_i over the sampled clients, p_i = n_i / (sum of n_j over the *sampled* clients)."""
    total = sum(sizes[i] for i in models)
    return sum(sizes[i] / total * models[i] for i in models)


def copy_of(vectors):
    """Copy a dictionary of vectors, so that the record of a round does not change later."""
    return {key: vector.clone() for key, vector in vectors.items()}


def layer_slices(widths):
    """Return each layer's slices in the perceptron's flat vector: weight [out, in] row by row, then bias."""
    slices, start = [], 0
    for n_in, n_out in pairwise(widths):
        stop = start + n_out * n_in + n_out
        slices.append(slice(start, stop))
        start = stop
    return slices


def perceptron(widths, activation=torch.relu):
    """Return the tiny model: (P, logits(w, x), loss(w, x, y)) of a fully connected net with these widths."""
    slices = layer_slices(widths)

    def logits(w, x):
        h = x.flatten(1)
        for k, part in enumerate(slices):
            n_in, n_out = widths[k], widths[k + 1]
            weight, bias = w[part][: n_out * n_in], w[part][n_out * n_in :]
            h = h @ weight.reshape(n_out, n_in).T + bias
            if k < len(slices) - 1:
                h = activation(h)
        return h

    def loss(w, x, y):
        return F.cross_entropy(logits(w, x), y)

    return slices[-1].stop, logits, loss
