"""The natural clients of a dataset, such as the writers of FEMNIST."""

import numpy as np

from pflsweep.data.dataset import Dataset, Rows
from pflsweep.data.partition.common import check_owner, pooled, require
from pflsweep.ops.random import generator


def split(
    dataset: Dataset, seed: int, clients: int | None, least: int, test_fraction: float, column: str | None = None
) -> Rows:
    """Return a partition with a client for each owner of rows, whose rows are cut into training and test rows anew.

    Owners with fewer than `least` samples are left out. Of the others `clients` are drawn at random, or all are taken
    if it is null. column: the dataset's column of owners, which its loader has read into Dataset.owner. Raises
    UserError on a dataset without owners, and on options that do not fit.
    """
    owner = check_owner(dataset, "natural", "clients")
    require(least >= 1, "least", least, "it must be at least 1")
    owners, index, sizes = np.unique(owner, return_inverse=True, return_counts=True)
    able = np.flatnonzero(sizes >= least)
    rule = f"{dataset.name} has {len(owners)} clients, the largest of {sizes.max()} samples"
    require(len(able) > 0, "least", least, rule)
    if clients is not None:
        rule = f"it must be 1 to {len(able)}, the clients with at least {least} samples, or null for all"
        require(1 <= clients <= len(able), "clients", clients, rule)
        able = np.sort(generator(seed, "partition natural").permutation(able)[:clients])
    return pooled([np.flatnonzero(index == owner) for owner in able], test_fraction, seed)
