"""Tiny federations with every awkward client, and tiny models: what methods are tried on."""

from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from pflsweep.data.dataset import Dataset, Rows
from pflsweep.data.federation import Federation
from pflsweep.models.blocks import model_of
from pflsweep.models.layers import BatchNorm2d, Dropout

CLIENTS = 6
CLASSES = 3
_TRAIN = (11, 1, 7, 6, 10, 5)  # client 1 has a single sample
_ONE_CLASS = 3
_UNTESTED = 4
_TEST = 4  # test samples of the other clients
GARBAGE = 1e6  # what padding is filled with, where it is to be ignored visibly


class Fixture(NamedTuple):
    federation: Federation
    model: nn.Sequential


def fixture(
    *,
    images: bool = False,
    seed: int = 0,
    order: list[int] | None = None,
    garbage: bool = False,
    even: bool = False,
    device: str = "cpu",
    dtype: torch.dtype = torch.float64,
) -> Fixture:
    """Six clients; data and first model are always the same, what training draws depends on `seed`.

    images: a convolution with batch norm and dropout; otherwise an MLP. order: the clients in another order,
    with their keys. garbage: padded rows hold huge numbers. even: all clients alike in size and classes.
    device: where the federation lies. dtype: of its data and of the model.
    """
    sizes = (2 * CLASSES,) * CLIENTS if even else _TRAIN
    dataset = _dataset((1, 6, 6) if images else (5,), sum(sizes) + CLIENTS * _TEST)
    rows = _rows(dataset, sizes, even)
    order = list(range(CLIENTS)) if order is None else order
    federation = Federation(
        dataset,
        Rows([rows.train[i] for i in order], [rows.test[i] for i in order]),
        validation=0.0,
        seed=seed,
        device=device,
        dtype=dtype,
        keys=[100 + 7 * i for i in order],
    )
    if garbage:
        federation.padding = len(dataset.x) - 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return Fixture(federation, (_convolution() if images else _perceptron()).to(dtype))


def _dataset(shape: tuple[int, ...], n: int) -> Dataset:
    """Three overlapping clouds; the last row belongs to nobody and holds garbage."""
    draw = np.random.default_rng(0)
    y = np.arange(n + 1) % CLASSES
    centres = draw.normal(size=(CLASSES, *shape))
    x = (centres[y] + draw.normal(size=(n + 1, *shape))).astype(np.float32)
    x[-1] = GARBAGE
    zero, one = torch.zeros(1), torch.ones(1)
    return Dataset("tiny", torch.from_numpy(x), torch.from_numpy(y), n, CLASSES, 1.0, zero, one, "tiny")


def _rows(dataset: Dataset, sizes: tuple[int, ...], even: bool) -> Rows:
    """Rows in turn, which mixes the classes; one client has a single class, and one has no test rows."""
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
    """Smooth, so that rounding is not blown up by a kink."""
    return model_of(
        fc1=nn.Sequential(nn.Linear(5, 6), nn.Tanh()),
        fc2=nn.Sequential(nn.Linear(6, 5), nn.Tanh()),
        head=nn.Linear(5, CLASSES),
    )


def _convolution() -> nn.Sequential:
    return model_of(
        conv1=nn.Sequential(nn.Conv2d(1, 4, 3), BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
        fc1=nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.ReLU(), Dropout(0.3)),
        head=nn.Linear(6, CLASSES),
    )
