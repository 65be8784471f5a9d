"""Each client has a few classes only, and clients with the same classes form groups."""

import logging
import math

import numpy as np

from pflsweep.data.dataset import Dataset, Rows
from pflsweep.data.partition.common import check_clients, labels, pooled, require, rows_of_classes
from pflsweep.ops.random import generator

log = logging.getLogger(__name__)


def split(
    dataset: Dataset,
    seed: int,
    clients: int,
    classes_per_client: int,
    balanced: bool,
    least: int,
    test_fraction: float,
) -> Rows:
    """Return a partition that gives each class, in order, to the first clients with fewer than classes_per_client.

    A class goes to ceil(clients * classes_per_client / classes) clients. This is PFLlib's scheme (FedALA), and with
    balanced=true Pat-2 of FedPG's platform. Training and test split are pooled. A class is cut evenly, n samples a
    client, or with balanced=false in sizes drawn from max(n / 10, least / classes) to n, the last client taking the
    rest. Where the numbers do not divide, the last classes stay unused or the last clients have fewer classes, with a
    warning in the log. Classes without rows do not count. Raises UserError on options that do not fit.
    """
    classes = len(np.unique(labels(dataset)))
    check_clients(clients, len(dataset.y), "samples")
    require(classes_per_client >= 1, "classes_per_client", classes_per_client, "it must be at least 1")
    rule = f"it cannot exceed the {classes} classes of {dataset.name} that have rows"
    require(classes_per_client <= classes, "classes_per_client", classes_per_client, rule)
    require(least >= 1, "least", least, "it must be at least 1")
    rng = generator(seed, "partition pathological")
    parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
    quota = np.full(clients, classes_per_client)
    unused = []
    for k, rows in enumerate(rows_of_classes(dataset, slice(None), rng)):
        if not len(rows):
            continue
        holders = np.flatnonzero(quota)[: math.ceil(clients * classes_per_client / classes)]
        if not len(holders):
            unused.append(k)
            continue
        quota[holders] -= 1
        cuts = np.cumsum(_sizes(len(rows), len(holders), balanced, least, classes, rng))[:-1]
        for holder, piece in zip(holders, np.split(rows, cuts), strict=True):
            parts[holder].append(piece)
    if unused:
        log.warning("partition.clients=%d leaves classes %s unused", clients, unused)
    if quota.any():
        short = np.flatnonzero(quota).tolist()
        log.warning(
            "partition.clients=%d leaves clients %s with fewer than %d classes",
            clients,
            short,
            classes_per_client,
        )
    empty = np.zeros(0, dtype=np.int64)
    return pooled([np.concatenate([empty, *part]) for part in parts], test_fraction, seed)


def _sizes(total: int, holders: int, balanced: bool, least: int, classes: int, rng: np.random.Generator) -> list[int]:
    """Return the number of samples of a class for each of its `holders` clients. total: the samples of the class."""
    even = total / holders
    if balanced or holders == 1:
        sizes = [int(even)] * (holders - 1)
    else:
        low, high = int(max(even / 10, least / classes)), int(even)
        rule = (
            f"least / {classes} must be below {high}, the whole samples that each of a class's {holders} clients has "
            "evenly, and so must a tenth of these; use a smaller least, fewer clients, or balanced=true"
        )
        require(low < high, "least", least, rule)
        sizes = rng.integers(low, high, holders - 1).tolist()
    return [*sizes, total - sum(sizes)]
