"""Latent distributions: clients of one cluster have images that look alike to a network.

M. Zhang, K. Sapra, S. Fidler, S. Yeung and J. M. Alvarez, "Personalized Federated Learning with First Order Model
Optimization", ICLR 2021, https://arxiv.org/abs/2012.08565, section 4 and appendix (FedFomo).
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from pflsweep.data.dataset import Dataset, Rows
from pflsweep.data.partition.common import check_test_split, finished, require
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
    """K-means over training and test rows together, as `embedding.embed` sees them. Exhaustive.

    Each cluster belongs to clients / clusters clients that stand side by side, which share its training rows and its
    test rows evenly. The embedder is the same for every seed of a trial; clusters (k-means++, the best of `starts`)
    and deals are not. Raises UserError on options that do not fit.
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
    train, test = (_dealt(found[part], part.start, group, rng) for part in _splits(dataset))
    return finished(train, test)._replace(group=group, checksum=seen.checksum, accuracy=seen.accuracy)


def cluster(z: np.ndarray, clusters: int, starts: int, rng: np.random.Generator) -> np.ndarray:
    """z [n, D] -> [n] the cluster of each row, 0 to clusters - 1."""
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    state = int(rng.integers(2**31))
    with threadpool_limits(1):  # sums of several threads differ in their last digits, and rows then change clusters
        return KMeans(clusters, init="k-means++", n_init=starts, random_state=state).fit_predict(z)


def _splits(dataset: Dataset) -> tuple[slice, slice]:
    return slice(0, dataset.train), slice(dataset.train, len(dataset.y))


def _dealt(found: np.ndarray, start: int, group: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """One split's rows, numbered from `start`: each cluster's cut evenly among its clients, in one shuffled order of
    all, so that a row which falls to another cluster on another machine moves few others.
    """
    parts: list[np.ndarray] = []
    order = rng.permutation(len(found))
    for k in range(group.max() + 1):  # clients of a cluster stand side by side, clusters in order
        rows = start + order[found[order] == k]
        parts += np.array_split(rows, int((group == k).sum()))
    return parts
