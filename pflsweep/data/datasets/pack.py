"""The last steps of every loader: arrays become Content with a checksum, and Content becomes a Dataset."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from pflsweep.data.augment import KINDS
from pflsweep.data.dataset import Dataset
from pflsweep.util.errors import UserError
from pflsweep.util.once import warn_once

LOOKED_AT = 1000  # images that tell whether a dataset's values are odd
FAR = 10.0  # a mean so far from 0, or a standard deviation above it, of the values that a model sees is warned about
NAMED = 3  # features that such a warning names
CHANNELS = (1, 3, 4)


class Content(NamedTuple):
    """All rows of a dataset, the training split first, before any preprocessing."""

    x: np.ndarray  # [n, ...] as in Dataset
    y: np.ndarray  # [n] int64
    train: int  # number of rows of the training split
    owner: np.ndarray | None  # [n] natural client of each row
    checksum: str  # of x, y and owner


def content(x: np.ndarray, y: np.ndarray, train: int, owner: np.ndarray | None = None) -> Content:
    """Return the Content of arrays that have all rows, the training split first. train: the rows of that split."""
    y = y.astype(np.int64)
    return Content(x, y, train, owner, checksum(x, y, owner))


def joined(train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray]) -> Content:
    """Return the Content of two splits, each (x [n, ...], y [n])."""
    x, y = (np.concatenate(pair) for pair in zip(train, test, strict=True))
    return content(x, y, len(train[1]))


def pack(
    name: str,
    rows: Content,
    *,
    classes: int,
    scale: float,
    mean: Sequence[float],
    std: Sequence[float],
    augment: str = "none",
    owners: Sequence[str] = (),
    overlap: int = 0,
    own: bool = False,
) -> Dataset:
    """Return the Dataset of a Content.

    Images are [n, channels, H, W], features [n, F]; mean and std have one value, or one for each channel or feature.
    owners: names of the natural clients. overlap: as in Dataset. own: True for the user's own data; their checksum
    includes the size of the training split, the number of classes and the overlap, which no config states. Raises
    UserError where mean and std do not fit the data, on an unknown augmentation, and on augmentation of data that are
    no images.
    """
    x = torch.from_numpy(rows.x)
    width = x.shape[1]
    for option, values in (("mean", mean), ("std", std)):
        if len(values) not in (1, width):
            each = "channel" if x.dim() == 4 else "feature"
            needs = "1 value" if width == 1 else f"1 value or {width}, one a {each}"
            raise UserError(f"dataset.{option} is {list(values)}: {name} needs {needs}.")
    if not torch.tensor(std).ge(torch.finfo(torch.float32).tiny).all():
        raise UserError(f"dataset.std is {list(std)}: each value must be greater than 0, in single precision too.")
    if not torch.tensor([*mean, *std]).isfinite().all():
        raise UserError(f"dataset.mean is {list(mean)} and dataset.std {list(std)}: too large for single precision.")
    if augment not in KINDS or (augment != "none" and x.dim() != 4):
        allowed = f"one of {', '.join(KINDS)}" if x.dim() == 4 else "none, since the rows are no images"
        raise UserError(f"dataset.augment is '{augment}': it must be {allowed}.")
    if x.dim() == 4:
        _warn_if_odd(name, rows.x, scale, mean, std)
    one = [1] * (x.dim() - 2)
    stated = [rows.train, classes, *([overlap] if overlap else [])] if own else []
    return Dataset(
        name=name,
        x=x,
        y=torch.from_numpy(rows.y),
        train=rows.train,
        classes=classes,
        scale=scale,
        mean=torch.tensor(list(mean)).view(-1, *one).expand(width, *one),
        std=torch.tensor(list(std)).view(-1, *one).expand(width, *one),
        checksum="-".join(map(str, [rows.checksum, *stated])),
        owner=rows.owner,
        augment=augment,
        owners=tuple(owners),
        overlap=overlap,
    )


def warn_if_far(file: Path, names: Sequence[str], dataset: Dataset, advice: str) -> None:
    """Warn about features [n, F], as a model is given them, that are far from mean 0 and standard deviation 1.

    names: of the features. advice: what to do.
    """
    x = (dataset.x.numpy() * dataset.scale - dataset.mean.numpy()) / dataset.std.numpy()
    mean, std = x.mean(0, dtype=np.float64), x.std(0, dtype=np.float64)
    far = np.flatnonzero((abs(mean) > FAR) | (std > FAR))
    if not len(far):
        return
    some = ", ".join(f"{names[k]} (mean {mean[k]:.4g}, std {std[k]:.4g})" for k in far[:NAMED])
    more = f" and {len(far) - NAMED} more" if len(far) > NAMED else ""
    warn_once(
        __name__,
        f"{file}: {some}{more}: a mean beyond {FAR:g} or a standard deviation above it, with which models hardly "
        f"learn. {advice}",
    )


def _warn_if_odd(name: str, x: np.ndarray, scale: float, mean: Sequence[float], std: Sequence[float]) -> None:
    """Warn about images [n, channels, H, W] whose values are far from 0, or whose channels seem to come last."""
    some = x[:: max(1, len(x) // LOOKED_AT)] * scale
    channels = [np.broadcast_to(np.array(values).reshape(-1, 1, 1), (x.shape[1], 1, 1)) for values in (mean, std)]
    seen = (some - channels[0]) / channels[1]
    if abs(seen.mean()) > FAR or seen.std() > FAR:
        warn_once(
            __name__,
            f"{name}: a model would see pixels of mean {seen.mean():.4g} and standard deviation {seen.std():.4g}, with "
            "which it hardly learns. Give pixels of 0 to 255 as uint8, others between 0 and 1, and set dataset.mean "
            "and dataset.std.",
        )
    if x.shape[1] not in CHANNELS and x.shape[3] in CHANNELS:
        warn_once(
            __name__,
            f"{name}: images have {x.shape[1]} channels of {x.shape[2]} x {x.shape[3]} pixels. If their channels come "
            "last, move them: x.transpose(0, 3, 1, 2).",
        )


def checksum(*arrays: np.ndarray | None) -> str:
    """Return the BLAKE2b hash of the types, shapes and bytes of arrays, 32 hex digits. None is skipped."""
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        if array is not None:
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
