"""Synthetic(alpha, beta): T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar and V. Smith, "Federated
Optimization in Heterogeneous Networks", MLSys 2020, section 5.1. https://arxiv.org/abs/1812.06127

Client k labels its samples by a softmax model of its own, y = argmax(softmax(W_k x + b_k)), with
    W_k, b_k ~ N(u_k, 1),  u_k ~ N(0, alpha);   x ~ N(v_k, diag(j^-1.2)),  v_k ~ N(B_k, 1),  B_k ~ N(0, beta)
so alpha controls how much the models differ, and beta how much the inputs differ. As in the authors' code, alpha and
beta are standard deviations, client sizes are 50 + floor(LogNormal(4, 2)), and 90% of a client's samples are for
training.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from pflsweep.data.dataset import Dataset
from pflsweep.data.datasets.pack import content, pack
from pflsweep.ops import memory
from pflsweep.ops.random import generator
from pflsweep.util.errors import UserError, in_gb


def load(
    root: Path,
    download: bool,
    name: str,
    mean: Sequence[float],
    std: Sequence[float],
    alpha: float,
    beta: float,
    clients: int,
    features: int,
    classes: int,
    test_fraction: float,
    data_seed: int,
) -> Dataset:
    """Return Synthetic(alpha, beta): x [n, features] float32, owner [n] the client of each row.

    Nothing is read from root. Raises UserError on options outside their range.
    """
    least = {"alpha": (alpha, 0), "beta": (beta, 0), "clients": (clients, 1), "classes": (classes, 2)}
    for option, (value, lowest) in {**least, "features": (features, 1)}.items():
        if value < lowest:
            raise UserError(f"dataset.{option} is {value}: it must be at least {lowest}.")
    needed = 4.0 * clients * (50 + math.exp(6)) * features  # x, by the mean size of a client
    if needed + 8.0 * features * classes > (has := memory.total(torch.device("cpu"))):
        raise UserError(
            f"dataset.clients={clients}, dataset.features={features} and dataset.classes={classes} take about "
            f"{in_gb(needed + 8.0 * features * classes)}, and this machine has {in_gb(has)} of memory. Use fewer."
        )
    if not 0 < test_fraction < 1:
        raise UserError(f"dataset.test_fraction is {test_fraction}: it must lie between 0 and 1, both excluded.")
    drawn = [_client(generator(data_seed, "synthetic", k), alpha, beta, features, classes) for k in range(clients)]
    held = [round(test_fraction * len(y)) for _, y in drawn]
    train = [(x[h:], y[h:]) for (x, y), h in zip(drawn, held, strict=True)]
    test = [(x[:h], y[:h]) for (x, y), h in zip(drawn, held, strict=True)]
    owner = np.concatenate([np.full(len(y), k) for part in (train, test) for k, (_, y) in enumerate(part)])
    x, y = (np.concatenate([part[column] for part in (*train, *test)]) for column in range(2))
    rows = content(x, y, sum(len(y) for _, y in train), owner)
    return pack(name, rows, classes=classes, scale=1.0, mean=mean, std=std)


def _client(
    rng: np.random.Generator, alpha: float, beta: float, features: int, classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the samples of a client, (x [n, features], y [n])."""
    size = 50 + int(rng.lognormal(4, 2))
    centre = rng.normal(0, abs(alpha))  # of -0.0, which numpy refuses
    weight, bias = rng.normal(centre, 1, (features, classes)), rng.normal(centre, 1, classes)
    middle = rng.normal(rng.normal(0, abs(beta)), 1, features)
    spread = np.arange(1, features + 1) ** -0.6  # the square root of the variances j^-1.2
    x = middle + spread * rng.normal(size=(size, features))
    return x.astype(np.float32), (x @ weight + bias).argmax(1)
