"""Clients that the dataset has of its own, such as the writers of FEMNIST."""

import numpy as np

from pflsweep.data.dataset import Dataset, Rows
from pflsweep.data.partition.common import check_owner, pooled, require
from pflsweep.ops.random import generator


def split(
    dataset: Dataset, seed: int, clients: int | None, least: int, test_fraction: float, column: str | None = None
) -> Rows:
    """The rows of each owner, training and test split together, cut anew.

    Owners with fewer than `least` samples are left out; of the others `clients` are drawn at random, or all
    are taken where it is null. column: the dataset's column of owners; its loader has read it, so that it is in
    Dataset.owner. Raises UserError on a dataset without owners and on options that do not fit.
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
