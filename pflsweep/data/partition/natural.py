"""The natural clients of a dataset, such as the writers of FEMNIST."""

import numpy as np

from pflsweep.data.dataset import Dataset, Rows
from pflsweep.data.partition.common import check_owner, check_test_split, consecutive, pooled, require, sorted_rows
from pflsweep.ops.random import generator
from pflsweep.util.once import warn_once


def split(
    dataset: Dataset,
    seed: int,
    clients: int | None,
    least: int,
    test_fraction: float | None,
    column: str | None = None,
) -> Rows:
    """Return a partition with a client for each owner of rows.

    Owners with fewer than `least` samples are left out, which a warning says. Of the others `clients` are drawn at
    random, or all are taken if it is null. A share `test_fraction` of a client's rows, drawn from both splits of the
    dataset, is its test data; where rows overlap it is the last ones. Null keeps the dataset's own split. column: the
    dataset's column of owners, which its loader has read into Dataset.owner. A client's group is its owner's name,
    where owners have names. Raises UserError on a dataset without owners, and on options that do not fit.
    """
    owner = check_owner(dataset, "natural", "clients")
    require(least >= 1, "least", least, "it must be at least 1")
    owners, index, sizes = np.unique(owner, return_inverse=True, return_counts=True)
    able = np.flatnonzero(sizes >= least)
    if len(able) < len(owners):
        few = f"{len(owners) - len(able)} of {len(owners)} clients have fewer rows"
        warn_once(__name__, f"partition.least={least}: {few}, and are left out")
    rule = f"{dataset.name} has {len(owners)} clients, the largest of {sizes.max()} samples"
    require(len(able) > 0, "least", least, rule)
    if clients is not None:
        rule = f"it must be 1 to {len(able)}, the clients with at least {least} samples, or null for all"
        require(1 <= clients <= len(able), "clients", clients, rule)
        able = np.sort(generator(seed, "partition natural").permutation(able)[:clients])
    by_owner = np.split(np.argsort(index, kind="stable"), np.cumsum(sizes)[:-1])
    parts = [by_owner[owner] for owner in able]
    names = np.array([dataset.owners[owners[owner]] for owner in able]) if dataset.owners else None
    if test_fraction is None:
        check_test_split(dataset, "natural partition.test_fraction=null")
        of_splits = [own[own < dataset.train] for own in parts], [own[own >= dataset.train] for own in parts]
        rows = sorted_rows(*of_splits, "; or a larger partition.least")
    elif dataset.overlap:
        rows = consecutive(dataset, parts, test_fraction)
    else:
        rows = pooled(parts, test_fraction, seed)
    return rows._replace(group=names)
