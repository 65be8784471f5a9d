"""Which clients are in a round, and how likely each is: all methods under one seed see the same cohorts."""

import numpy as np
import torch
from torch import Tensor

from pflsweep.data.federation import Federation
from pflsweep.ops.random import generator

KINDS = ("uniform", "size", "dirichlet", "fixed")
_LEAST = 1e-9  # so that everybody can be drawn where only a few others are left


def cohort(federation: Federation, size: int, round: int, kind: str) -> Tensor:
    """Return a round's cohort [size], in the order of the clients' keys: the prescribed one, or one that is drawn from
    keys, so that labels do not matter. kind: one of KINDS.
    """
    if federation.cohorts is not None:
        return torch.from_numpy(federation.cohorts[round - 1])
    keys, order = federation.keys.sort()
    rng = generator(federation.seed, "cohort", 1 if kind == "fixed" else round)
    if federation.chances is None:
        drawn = rng.permutation(len(keys))[:size]
    else:
        drawn = rng.choice(len(keys), size, replace=False, p=federation.chances[order.numpy()])
    return order[torch.from_numpy(drawn).sort().values]


def participation_probabilities(federation: Federation, kind: str, alpha: float) -> np.ndarray | None:
    """Return each client's probability [N], to the sum 1; None where all are alike.

    size: in proportion to the training samples. dirichlet: Dir(alpha), whose gamma draws are keyed by client; the
    smaller alpha, the fewer clients make up most cohorts. fixed: alike; the first round's cohort is every round's.
    """
    if kind in ("uniform", "fixed"):
        return None
    if kind == "size":
        drawn = federation.sizes.numpy().astype(float)
    else:
        rngs = [generator(federation.seed, "chances", int(key)) for key in federation.keys]
        drawn = np.array([rng.standard_gamma(alpha) for rng in rngs])
    share = np.maximum(drawn / max(drawn.sum(), 1e-300), _LEAST)
    return share / share.sum()
