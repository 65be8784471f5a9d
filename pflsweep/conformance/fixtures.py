"""Tiny federations with difficult clients, and tiny models, on which methods are tested."""

from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from pflsweep.data.dataset import Dataset, Rows
from pflsweep.data.federation import Federation
from pflsweep.models.blocks import model_of
from pflsweep.models.layers import BatchNorm2d, Dropout
from pflsweep.ops import random

CLIENTS = 6
CLASSES = 3
_TRAIN = (11, 1, 7, 6, 10, 5)  # training samples of each client; client 1 has a single one
_ONE_CLASS = 3  # the client that has samples of one class only
_UNTESTED = 4  # the client without test samples
_TEST = 4  # test samples of each other client
GARBAGE = 1e6  # value in padded rows, large enough that a method that does not ignore them fails


class Fixture(NamedTuple):
    """A federation, and a model for its data."""

    federation: Federation
    model: nn.Sequential


def fixture(
    *,
    images: bool = False,
    seed: int = 0,
    order: list[int] | None = None,
    garbage: bool = False,
    other_test: bool = False,
    even: bool = False,
    device: str = "cpu",
    dtype: torch.dtype = torch.float64,
) -> Fixture:
    """Return a federation of six clients and a model. Only what training draws depends on `seed`.

    images: the model is a convolution with batch norm and dropout, otherwise an MLP. order: permutes the clients, with
    their keys. garbage: padded rows hold huge numbers.
    other_test: test rows have other inputs and classes. even: all clients have the same number of samples and classes.
    device: of the federation. dtype: of its data and the model.
    """
    sizes = (2 * CLASSES,) * CLIENTS if even else _TRAIN
    dataset = _dataset((1, 6, 6) if images else (5,), sum(sizes) + CLIENTS * _TEST)
    rows = _rows(dataset, sizes, even)
    if other_test:
        tested = torch.from_numpy(np.concatenate(rows.test))
        dataset.x[tested] = -dataset.x[tested]
        dataset.y[tested] = (dataset.y[tested] + 1) % CLASSES
    order = list(range(CLIENTS)) if order is None else order
    federation = Federation(
        dataset,
        Rows([rows.train[i] for i in order], [rows.test[i] for i in order]),
        validation=0.0,
        seed=seed,
        device=device,
        dtype=dtype,
        stable_ids=[100 + 7 * i for i in order],
    )
    if garbage:
        federation.padding = len(dataset.x) - 1
    with random.seeded(1):
        return Fixture(federation, (_convolution() if images else _perceptron()).to(dtype))


def _dataset(shape: tuple[int, ...], n: int) -> Dataset:
    """Return a dataset of three overlapping clouds of n rows, and one more row of garbage that no client has."""
    draw = np.random.default_rng(0)
    y = np.arange(n + 1) % CLASSES
    centres = draw.normal(size=(CLASSES, *shape))
    x = (centres[y] + draw.normal(size=(n + 1, *shape))).astype(np.float32)
    x[-1] = GARBAGE
    zero, one = torch.zeros(1), torch.ones(1)
    return Dataset("tiny", torch.from_numpy(x), torch.from_numpy(y), n, CLASSES, 1.0, zero, one, "tiny")


def _rows(dataset: Dataset, sizes: tuple[int, ...], even: bool) -> Rows:
    """Return the clients' rows: consecutive ones, in which classes alternate.

    Unless `even`, one client has a single class, and one has no test rows.
    """
    free = list(range(dataset.train))
    train, test = [], []
    for i, size in enumerate(sizes):
        usable = [r for r in free if even or i != _ONE_CLASS or r % CLASSES == 0]
        mine = usable[: size + (0 if i == _UNTESTED and not even else _TEST)]
        free = [r for r in free if r not in mine]
        train.append(np.array(mine[:size], dtype=np.int64))
        test.append(np.array(mine[size:], dtype=np.int64))
    return Rows(train, test)


def _perceptron() -> nn.Sequential:
    """Return a smooth MLP: at the kink of a ReLU rounding could become a large difference."""
    return model_of(
        fc1=nn.Sequential(nn.Linear(5, 6), nn.Tanh()),
        fc2=nn.Sequential(nn.Linear(6, 5), nn.Tanh()),
        head=nn.Linear(5, CLASSES),
    )


def _convolution() -> nn.Sequential:
    """Return a convolution with batch norm and dropout."""
    return model_of(
        conv1=nn.Sequential(nn.Conv2d(1, 4, 3), BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
        fc1=nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.ReLU(), Dropout(0.3)),
        head=nn.Linear(6, CLASSES),
    )
