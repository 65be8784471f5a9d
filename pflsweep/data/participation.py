"""Draw the cohort of a round. All methods with the same seed see the same cohorts."""

import sys

import numpy as np
import torch
from torch import Tensor

from pflsweep.data.federation import Federation
from pflsweep.ops.random import generator

# The smallest probability: a cohort can be filled even where few clients have a larger one.
_LEAST = 1e-9


def cohort_size(clients: int, participation: float) -> int:
    """Return M = floor(N * participation), at least 1 (PGFed: 25 clients at 25% are 6)."""
    return max(1, int(clients * participation + 1e-9))


def draw_cohort(federation: Federation, size: int, round: int, kind: str) -> Tensor:
    """Return the cohort of a round, [size] client numbers: the prescribed one if there is one, else a draw.

    Draws are made in the order of the clients' keys, so the numbering of clients does not matter. kind: as
    train.sampling.
    """
    if federation.cohorts is not None:
        return torch.from_numpy(federation.cohorts[round - 1])
    keys, order = federation.stable_ids.sort()
    rng = generator(federation.seed, "cohort", 1 if kind == "fixed" else round)
    if federation.participation_probabilities is None:
        drawn = rng.permutation(len(keys))[:size]
    else:
        drawn = rng.choice(len(keys), size, replace=False, p=federation.participation_probabilities[order.numpy()])
    return order[torch.from_numpy(drawn).sort().values]


def participation_probabilities(federation: Federation, kind: str, alpha: float) -> np.ndarray | None:
    """Return each client's probability to be drawn first into a cohort, [N] with sum 1; None if all are equal.

    kind: `size` is in proportion to the training samples; `dirichlet` is Dir(alpha), with gamma draws keyed by client
    (a smaller alpha gives most places to fewer clients); `uniform` and `fixed` are equal, and with `fixed` every round
    has the first round's cohort.
    """
    if kind in ("uniform", "fixed"):
        return None
    if kind == "size":
        drawn = federation.sizes.numpy().astype(float)
    else:
        alpha = max(alpha, 1e-300)  # below, 1 / alpha overflows; one client has all long before
        rngs = [generator(federation.seed, "chances", int(key)) for key in federation.stable_ids]
        drawn = np.array([rng.standard_gamma(alpha) for rng in rngs])
        if drawn.sum() < sys.float_info.min:  # all are too small for a float: G(alpha) is G(alpha + 1) U^(1 / alpha)
            logs = np.array([np.log(rng.standard_gamma(alpha + 1)) + np.log1p(-rng.random()) / alpha for rng in rngs])
            drawn = np.exp(logs - logs.max())
    share = np.maximum(drawn / drawn.sum(), _LEAST)
    return share / share.sum()
