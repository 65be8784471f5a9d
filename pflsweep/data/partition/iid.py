"""Every client draws from the same distribution."""

import numpy as np

from pflsweep.data.dataset import Dataset, Rows
from pflsweep.data.partition.common import check_clients, pooled
from pflsweep.ops.random import generator


def split(dataset: Dataset, seed: int, clients: int, test_fraction: float) -> Rows:
    """All rows, training and test split together, shuffled and dealt in equal parts. Exhaustive.

    Raises UserError on options that do not fit.
    """
    samples = len(dataset.y)
    check_clients(clients, samples, "samples")
    order = generator(seed, "partition iid").permutation(samples)
    return pooled(np.array_split(order, clients), test_fraction, seed)
