"""Label skew from a Dirichlet distribution, in the two variants of the literature: by class and by client."""

import numpy as np

from pflsweep.data.dataset import Dataset, Rows
from pflsweep.data.partition.common import (
    check_alpha,
    check_clients,
    check_least,
    check_test_split,
    pooled,
    redraw_until_least,
    rows_of_classes,
    sorted_rows,
)
from pflsweep.ops.random import generator


def by_class(
    dataset: Dataset, seed: int, clients: int, alpha: float, least: int, tries: int, test_fraction: float
) -> Rows:
    """Return a partition that cuts each class among the clients in proportions q ~ Dir(alpha).

    The variant of PFLlib, pgfed and FedLF. Training and test split are pooled, and all rows are dealt, so sizes differ.
    A client that already holds its even share, samples / clients, gets nothing of further classes, but for the few rows
    that rounding leaves to the last client. All is drawn again, up to `tries` times, until each client has `least`
    samples, training and test together. Raises UserError if that is not reached.
    """
    samples = len(dataset.y)
    check_clients(clients, samples, "samples")
    check_alpha(alpha)
    rng = generator(seed, "partition dirichlet by class")
    rows = rows_of_classes(dataset, slice(None), rng)
    parts = skewed(rows, clients, alpha, least, tries, rng, f"{samples} samples")
    return pooled(parts, test_fraction, seed)


def skewed(
    by_class: list[np.ndarray], clients: int, alpha: float, least: int, tries: int, rng: np.random.Generator, kind: str
) -> list[np.ndarray]:
    """Return the rows of each client, at least `least` of them. by_class: the rows of each class. kind: what the rows
    are, for the message.
    """
    samples = sum(map(len, by_class))
    check_least(least, samples, clients)
    what = f"{clients} clients of {kind} and alpha {alpha}"
    return redraw_until_least(
        lambda: _cut_classes(by_class, clients, alpha, samples / clients, rng), least, tries, what
    )


def _cut_classes(
    by_class: list[np.ndarray], clients: int, alpha: float, even: float, rng: np.random.Generator
) -> list[np.ndarray]:
    """Return the rows of each client in one draw. even: the size from which a client gets no further class."""
    parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
    sizes = np.zeros(clients)
    for rows in by_class:
        # some client always has room: not all can be above the mean before the last row is dealt
        room = sizes < even
        q = rng.dirichlet(np.full(clients, alpha)) * room
        if q.sum() > 0:
            q = q / q.sum()
        elif room.any():  # with a tiny alpha all clients that have room may have drawn 0
            q[room] = rng.dirichlet(np.full(room.sum(), alpha))
        pieces = np.split(rows, (np.cumsum(q)[:-1] * len(rows)).astype(int))
        for client, piece in enumerate(pieces):
            parts[client].append(piece)
            sizes[client] += len(piece)
    return [np.concatenate(part) for part in parts]


def by_client(dataset: Dataset, seed: int, clients: int, alpha: float) -> Rows:
    """Return a partition of equal sizes in which each client draws its rows by class proportions q ~ Dir(alpha).

    T.-M. H. Hsu, H. Qi and M. Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification", 2019, https://arxiv.org/abs/1909.06335; PGFed's text refers to it. The dataset's own split is
    kept: training rows are dealt from the training split, and test rows from the test split by the same q, both without
    replacement. Clients draw sample by sample in random order, so a class that runs out affects all alike; a client
    whose classes are used up draws evenly from those left. The remainder of rows / clients is not dealt. Raises
    UserError on options that do not fit.
    """
    check_test_split(dataset, "dirichlet_client")
    splits = slice(0, dataset.train), slice(dataset.train, len(dataset.y))
    check_alpha(alpha)
    for part, name in zip(splits, ("training samples", "test samples"), strict=True):
        check_clients(clients, part.stop - part.start, name)
    rng = generator(seed, "partition dirichlet by client")
    q = rng.dirichlet(np.full(dataset.classes, alpha), clients)
    train, test = (_deal(rows_of_classes(dataset, part, rng), q, rng) for part in splits)
    return sorted_rows(train, test)


def _deal(by_class: list[np.ndarray], q: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Return equal parts of the rows, dealt one sample at a time. q: [N, K] class proportions."""
    left = np.array([len(rows) for rows in by_class])
    clients = len(q)
    order = rng.permutation(np.repeat(np.arange(clients), left.sum() // clients))
    parts: list[list[int]] = [[] for _ in range(clients)]
    for client, u in zip(order.tolist(), rng.random(len(order)).tolist(), strict=True):
        cumulative = (q[client] * (left > 0)).cumsum()
        if cumulative[-1] <= 0:
            cumulative = (left > 0).cumsum()
        # The product of a subnormal sum and u < 1 may round up to the sum, where no class is left
        last = cumulative.searchsorted(cumulative[-1])
        k = int(min(cumulative.searchsorted(u * cumulative[-1], side="right"), last))
        left[k] -= 1
        parts[client].append(by_class[k][left[k]])
    return [np.array(part) for part in parts]
