"""Every client draws from the same distribution."""

import numpy as np

from pflsweep.data.dataset import Dataset, Rows
from pflsweep.data.partition.common import check_clients, pooled
from pflsweep.ops.random import generator


def split(dataset: Dataset, seed: int, clients: int, test_fraction: float) -> Rows:
    """Return a partition of all rows, training and test split pooled, shuffled and cut into equal parts.

    Raises UserError on options that do not fit.
    """
    samples = len(dataset.y)
    check_clients(clients, samples, "samples")
    order = generator(seed, "partition iid").permutation(samples)
    return pooled(np.array_split(order, clients), test_fraction, seed)
