"""How likely each client is in a round: all methods under one seed see the same cohorts."""

import numpy as np

from pflsweep.data.federation import Federation
from pflsweep.ops.random import generator

KINDS = ("uniform", "size", "dirichlet", "fixed")
_LEAST = 1e-9  # so that everybody can be drawn where only a few others are left


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
