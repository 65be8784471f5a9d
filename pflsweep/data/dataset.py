"""Dataset and Rows: what a loader and a partition return."""

import hashlib
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pflsweep.ops import random


class Dataset(NamedTuple):
    """A whole dataset as compact tensors. Rows [0, train) are the original training split, the others the test split.

    A row of numbers is normalised when it is gathered: (x * scale - mean) / std. Texts are not normalised.
    """

    name: str
    x: Tensor  # [n, ...] uint8 (images, channels first), float32 (features) or int32 (token ids of texts, 0 is padding)
    y: Tensor  # [n] int64 class of each row
    train: int  # number of rows of the original training split
    classes: int
    scale: float
    mean: Tensor  # broadcastable to one row of x, e.g. [3, 1, 1]
    std: Tensor  # as mean
    checksum: str  # of x, y and owner; part of a trial's identity
    owner: np.ndarray | None = None  # [n] natural client of each row, where the dataset has natural clients
    vocabulary: int | None = None  # texts only: all token ids are below it
    augment: str = "none"  # augmentation of training batches, see augment.py
    owners: tuple[str, ...] = ()  # names of the natural clients 0, 1, .., where they have names
    overlap: int = 0  # of windows of a text: a row shares text with as many rows of its owner before and after it
    limit: int | None = None  # data.limit, where only some rows were kept: their numbers are not those of the files
    place: np.ndarray | None = None  # [n] number of each row before that; None if it is the row's number
    # Whether rows are normalised by mean and standard deviation of all clients' training rows, not by `mean` and `std`
    standardise: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row, as a model sees it."""
        return tuple(self.x.shape[1:])

    @property
    def owner_count(self) -> int:
        """The number of natural clients that have rows; 0 if the dataset has none."""
        return 0 if self.owner is None else len(np.unique(self.owner))

    def fault(self) -> str:
        """Return what is wrong with the arrays, as the end of a sentence; "" if they fit together."""
        if not isinstance(self.x, Tensor) or not isinstance(self.y, Tensor):
            return "x and y have to be tensors: torch.from_numpy makes one of an array"
        rows = len(self.x)
        if self.y.shape != (rows,) or self.y.dtype != torch.int64:
            return (
                f"y is {self.y.dtype} of shape {list(self.y.shape)}, and has to be int64 [{rows}], a class a row of x"
            )
        if not isinstance(self.train, int | np.integer) or not 0 < self.train <= rows:
            return f"train is {self.train!r}, and has to be from 1 to {rows}, the number of rows"
        if not 0 <= int(self.y.min()) <= int(self.y.max()) < self.classes:
            return (
                f"y has classes {int(self.y.min())} to {int(self.y.max())}, and with classes={self.classes} they go "
                f"from 0 to {self.classes - 1}"
            )
        if self.x.is_floating_point() and not bool(self.x.isfinite().all()):
            row = int((~self.x.isfinite()).flatten(1).any(1).nonzero()[0])
            return f"x has a number that is not finite (nan or inf) in row {row}"
        if self.owner is not None and np.shape(self.owner) != (rows,):
            return f"owner is of shape {list(np.shape(self.owner))}, and has to be [{rows}], a client per row of x"
        return ""

    def before(self, own: np.ndarray, cut: int) -> np.ndarray:
        """Return those of own[:cut] that share no text with own[cut]. own: a client's rows, sorted."""
        if not self.overlap or cut == len(own):
            return own[:cut]
        place = self.places(own)
        return own[:cut][place[:cut] < place[cut] - self.overlap]

    def places(self, rows: np.ndarray) -> np.ndarray:
        """Return where rows stood before data.limit left others out: windows of a text overlap by that distance."""
        return rows if self.place is None else self.place[rows]

    def part(self, limit: int, seed: int) -> "Dataset":
        """Return a dataset of at most `limit` rows, drawn from both splits in proportion, with another checksum."""
        if limit >= len(self.y):
            return self
        train = round(limit * self.train / len(self.y))
        generator = random.generator(seed, "part")
        trained = generator.permutation(self.train)
        tested = self.train + generator.permutation(len(self.y) - self.train)
        rows = np.concatenate([np.sort(trained[:train]), np.sort(tested[: limit - train])])
        owner = None if self.owner is None else self.owner[rows]
        checksum = hashlib.blake2b(f"{self.checksum} {limit} {seed}".encode(), digest_size=8).hexdigest()
        part = self._replace(x=self.x[rows], y=self.y[rows], train=train, owner=owner, checksum=checksum)
        return part._replace(limit=limit, place=self.places(rows))


class Rows(NamedTuple):
    """A partition: for each client, the rows of the dataset that it trains on and is tested on."""

    train: list[np.ndarray]  # N arrays of int64 row numbers
    test: list[np.ndarray]  # as train
    group: np.ndarray | None = None  # [N] number or name of each client's cluster or domain, or its own name
    checksum: str = ""  # of inputs other than config and dataset (a file, an embedding); part of a trial's identity
    accuracy: float | None = None  # of the embedder on the test split, where the partition was learnt
    validation: list[np.ndarray] | None = None  # prescribed validation rows, as train; None: they are drawn
