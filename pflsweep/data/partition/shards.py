"""Rows sorted by label, cut into shards and dealt: McMahan et al. 2017, https://arxiv.org/abs/1602.05629, section 3."""

import numpy as np

from pflsweep.data.dataset import Dataset, Rows
from pflsweep.data.partition.common import (
    check_clients,
    check_test_split,
    labels,
    require,
    rows_of_classes,
    sorted_rows,
)
from pflsweep.data.partition.stats import label_counts
from pflsweep.ops.random import generator


def split(dataset: Dataset, seed: int, clients: int, shards_per_client: int) -> Rows:
    """Return a partition of the training split, sorted by label and cut into even shards, dealt at random.

    There are clients * shards_per_client shards. The dataset's own split is kept: each class of the test split is cut
    among the clients in proportion to their training samples of it, so a client is tested on the classes that it trains
    on. Raises UserError on options that do not fit.
    """
    check_test_split(dataset, "shards")
    check_clients(clients, dataset.train, "training samples")
    require(shards_per_client >= 1, "shards_per_client", shards_per_client, "it must be at least 1")
    shards = clients * shards_per_client
    rule = f"{clients} clients make {shards} shards of only {dataset.train} training samples"
    require(shards <= dataset.train, "shards_per_client", shards_per_client, rule)
    rng = generator(seed, "partition shards")
    in_order = np.concatenate(rows_of_classes(dataset, slice(0, dataset.train), rng))
    return _with_test(dataset, np.array_split(in_order, shards), shards_per_client, rng)


def by_class(dataset: Dataset, seed: int, clients: int, classes_per_client: int) -> Rows:
    """Return a partition that cuts each class into equally many even pieces and deals classes_per_client to a client.

    LG-FedAvg's `noniid` (Liang et al. 2020, https://arxiv.org/abs/2001.01523), which FedFomo's pathological setting
    uses: shards that never mix classes. A client may draw the same class twice. Test rows are dealt as in `split`.
    Raises UserError if the number of pieces is not a multiple of the classes, and on options that do not fit.
    """
    check_test_split(dataset, "classes")
    check_clients(clients, dataset.train, "training samples")
    require(classes_per_client >= 1, "classes_per_client", classes_per_client, "it must be at least 1")
    pieces, rest = divmod(clients * classes_per_client, dataset.classes)
    rule = f"times partition.clients={clients} it must be a multiple of the {dataset.classes} classes of {dataset.name}"
    require(rest == 0, "classes_per_client", classes_per_client, rule)
    rng = generator(seed, "partition classes")
    cut = [p for rows in rows_of_classes(dataset, slice(0, dataset.train), rng) for p in np.array_split(rows, pieces)]
    return _with_test(dataset, cut, classes_per_client, rng)


def _with_test(dataset: Dataset, cut: list[np.ndarray], each: int, rng: np.random.Generator) -> Rows:
    """Return the Rows of shards dealt at random, `each` to a client, with test rows of the classes that it holds."""
    train = [np.concatenate([cut[shard] for shard in own]) for own in rng.permutation(len(cut)).reshape(-1, each)]
    tested = rows_of_classes(dataset, slice(dataset.train, len(dataset.y)), rng)
    return sorted_rows(train, _alike(tested, label_counts(train, labels(dataset), dataset.classes)))


def _alike(by_class: list[np.ndarray], counts: np.ndarray) -> list[np.ndarray]:
    """Return the rows of each client, cut from the rows of each class in proportion to counts [N, K]."""
    parts: list[list[np.ndarray]] = [[] for _ in counts]
    for rows, column in zip(by_class, counts.T, strict=True):
        shares = np.cumsum(column) / max(column.sum(), 1)
        pieces = np.split(rows, np.round(shares * len(rows)).astype(int)[:-1])
        for client, piece in enumerate(pieces):
            if column[client]:  # a class that nobody trains on is not tested
                parts[client].append(piece)
    empty = np.zeros(0, dtype=np.int64)
    return [np.concatenate([empty, *part]) for part in parts]
