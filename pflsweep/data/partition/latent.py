"""Latent distributions: each client has rows of one cluster of a network's embedding.

M. Zhang, K. Sapra, S. Fidler, S. Yeung and J. M. Alvarez, "Personalized Federated Learning with First Order Model
Optimization", ICLR 2021, https://arxiv.org/abs/2012.08565, section 4 and appendix (FedFomo).
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from pflsweep.data.dataset import Dataset, Rows
from pflsweep.data.partition.common import check_test_split, require, sorted_rows
from pflsweep.data.partition.embedding import embed
from pflsweep.ops.random import generator


def split(
    dataset: Dataset,
    seed: int,
    clients: int,
    clusters: int,
    components: int,
    starts: int,
    expected: float,
    embedder: Callable[..., nn.Sequential],
    training: Mapping[str, Any],
    root: Path,
    device: str,
) -> Rows:
    """Return a partition by k-means clusters of the embedding of all rows, training and test (embedding.embed).

    Each cluster belongs to clients / clusters consecutive clients, which share its training rows and its test rows
    evenly. The embedder is the same for every seed of a trial; the clusters (k-means++, the best of `starts`) and the
    order in which rows are dealt depend on the seed. Raises UserError on options that do not fit.
    """
    check_test_split(dataset, "latent")
    rows = len(dataset.y)
    require(2 <= clusters <= rows, "clusters", clusters, f"it must be 2 to {rows}, the samples of {dataset.name}")
    require(clients >= clusters, "clients", clients, f"each of the {clusters} clusters needs a client")
    require(starts >= 1, "starts", starts, "it must be at least 1")
    require(components >= 1, "components", components, "it must be at least 1")
    seen = embed(dataset, embedder, training, components, expected, root, device)
    rng = generator(seed, "partition latent")
    found = cluster(seen.z, clusters, starts, rng)
    group = np.arange(clients) * clusters // clients
    splits = slice(0, dataset.train), slice(dataset.train, rows)
    train, test = (_dealt(found[part], part.start, group, rng) for part in splits)
    return sorted_rows(train, test)._replace(group=group, checksum=seen.checksum, accuracy=seen.accuracy)


def cluster(z: np.ndarray, clusters: int, starts: int, rng: np.random.Generator) -> np.ndarray:
    """Return the cluster of each row by k-means. z [n, D] -> [n], 0 to clusters - 1."""
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    state = int(rng.integers(2**31))
    # sums by several threads differ in their last digits, which moves rows to other clusters
    with threadpool_limits(1):
        return KMeans(clusters, init="k-means++", n_init=starts, random_state=state).fit_predict(z)


def _dealt(found: np.ndarray, start: int, group: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the rows of each client in one split: each cluster's rows, cut evenly among its clients.

    found: the cluster of each row of the split. start: the number of its first row. group: [N] each client's cluster,
    ascending.
    """
    parts: list[np.ndarray] = []
    # one shuffled order of all rows: where another machine puts a row into another cluster, few other rows move
    order = rng.permutation(len(found))
    for k in range(group.max() + 1):
        rows = start + order[found[order] == k]
        parts += np.array_split(rows, int((group == k).sum()))
    return parts
