"""Quantity skew: clients differ in their number of samples, not in their distribution.

Q. Li, Y. Diao, Q. Chen and B. He, "Federated Learning on Non-IID Data Silos: An Experimental Study", ICDE 2022,
https://arxiv.org/abs/2102.02079, section IV-C.
"""

import numpy as np

from pflsweep.data.dataset import Dataset, Rows
from pflsweep.data.partition.common import check_alpha, check_clients, check_least, pooled, redraw_until_least
from pflsweep.ops.random import generator


def split(
    dataset: Dataset, seed: int, clients: int, alpha: float, least: int, tries: int, test_fraction: float
) -> Rows:
    """Return a partition of all rows, training and test split pooled, cut in proportions q ~ Dir(alpha).

    The proportions are drawn again, up to `tries` times, until each client has `least` samples, training and test
    together. Raises UserError if that is not reached, and on options that do not fit.
    """
    samples = len(dataset.y)
    check_clients(clients, samples, "samples")
    check_alpha(alpha)
    check_least(least, samples, clients)
    rng = generator(seed, "partition quantity")
    order = rng.permutation(samples)

    def cut() -> list[np.ndarray]:
        q = rng.dirichlet(np.full(clients, alpha))
        return np.split(order, np.round(np.cumsum(q)[:-1] * samples).astype(int))

    return pooled(
        redraw_until_least(cut, least, tries, f"{clients} clients of {samples} samples and alpha {alpha}"),
        test_fraction,
        seed,
    )
