"""What a loader returns: one dataset as compact tensors, original training rows first."""

import hashlib
from typing import NamedTuple

import numpy as np
from torch import Tensor

from pflsweep.ops import random


class Dataset(NamedTuple):
    """A whole dataset. Rows [0, train) are the original training split, the others its test split."""

    name: str
    x: Tensor  # [n, ...] uint8 (images, channels first), float32 (features) or int32 (texts); converted when gathered
    y: Tensor  # [n] int64 class of each row
    train: int  # number of rows of the original training split
    classes: int
    scale: float  # x.float() * scale is then shifted by mean and divided by std
    mean: Tensor  # broadcastable to one row of x, e.g. [3, 1, 1]
    std: Tensor
    checksum: str  # of x and y: part of a trial's identity
    owner: np.ndarray | None = None  # [n] natural client of each row, where the dataset has clients of its own
    vocabulary: int | None = None  # of texts: x is int32 token ids below it, 0 is padding, and not normalised
    augment: str = "none"  # what is done to training batches, see augment.py
    owners: tuple[str, ...] = ()  # names of the natural clients 0, 1, .., where they have some
    limit: int | None = None  # rows that were drawn of the whole dataset (data.limit), which numbers them anew

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one row, as a model sees it."""
        return tuple(self.x.shape[1:])

    def part(self, limit: int, seed: int) -> "Dataset":
        """At most `limit` of its rows, drawn; training and test keep their proportion. Its checksum is its own."""
        if limit >= len(self.y):
            return self
        train = round(limit * self.train / len(self.y))
        generator = random.generator(seed, "part")
        trained = generator.permutation(self.train)
        tested = self.train + generator.permutation(len(self.y) - self.train)
        rows = np.concatenate([np.sort(trained[:train]), np.sort(tested[: limit - train])])
        owner = None if self.owner is None else self.owner[rows]
        checksum = hashlib.blake2b(f"{self.checksum} {limit} {seed}".encode(), digest_size=8).hexdigest()
        return self._replace(x=self.x[rows], y=self.y[rows], train=train, owner=owner, checksum=checksum, limit=limit)


class Rows(NamedTuple):
    """A partition: for each client, the rows of the dataset that it trains on and is tested on."""

    train: list[np.ndarray]  # N arrays of int64 row numbers
    test: list[np.ndarray]
    group: np.ndarray | None = None  # [N] number or name of each client's cluster or domain, where there are some
    checksum: str = ""  # of what they were cut by beside the config: part of a trial's identity, as the data's
    accuracy: float | None = None  # of the model that learnt it, on the dataset's test split
    validation: list[np.ndarray] | None = None  # rows that are held back, where a user says which; None: they are drawn
