"""The last step of every loader: arrays to a Dataset, with its checksum."""

import hashlib
from collections.abc import Sequence

import numpy as np
import torch

from pflsweep.data.dataset import Dataset
from pflsweep.errors import UserError


def pack(
    name: str,
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    *,
    classes: int,
    scale: float,
    mean: Sequence[float],
    std: Sequence[float],
    owner: np.ndarray | None = None,
) -> Dataset:
    """(x [n, ...], y [n]) of the training and of the test split -> a Dataset.

    Images are [n, channels, H, W]; mean and std have one value a channel. owner: [n] of all rows. Raises
    UserError where mean and std do not fit the data.
    """
    x = torch.from_numpy(np.concatenate([train[0], test[0]]))
    y = torch.from_numpy(np.concatenate([train[1], test[1]]).astype(np.int64))
    channels = x.shape[1] if x.dim() == 4 else 1
    for option, values in (("mean", mean), ("std", std)):
        if len(values) != channels:
            raise UserError(f"dataset.{option} is {list(values)}: {name} needs {channels} value(s), one a channel.")
    if min(std) <= 0:
        raise UserError(f"dataset.std is {list(std)}: each value must be greater than 0.")
    broadcast = (channels, *[1] * (x.dim() - 2))
    return Dataset(
        name=name,
        x=x,
        y=y,
        train=len(train[1]),
        classes=classes,
        scale=scale,
        mean=torch.tensor(list(mean)).view(broadcast),
        std=torch.tensor(list(std)).view(broadcast),
        checksum=checksum(x.numpy(), y.numpy(), owner),
        owner=owner,
    )


def checksum(*arrays: np.ndarray | None) -> str:
    """BLAKE2b of the arrays' types, shapes and bytes, in hexadecimal: 32 digits."""
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        if array is not None:
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
