"""Images of the user's own: path/train/<class>/*.png and path/test/<class>/*.png, or path/<class>/*.png."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pflsweep.data.dataset import Dataset
from pflsweep.data.datasets import images
from pflsweep.data.datasets.cache import prepared
from pflsweep.data.datasets.files import own_path
from pflsweep.data.datasets.pack import Content, content, pack
from pflsweep.util.errors import UserError
from pflsweep.util.once import warn_once


def load(
    root: Path,
    download: bool,
    name: str,
    mean: Sequence[float],
    std: Sequence[float],
    path: str | None,
    size: int | None,
    channels: int,
    augment: str = "none",
) -> Dataset:
    """Return the images of a folder: x [n, channels, H, W] uint8. Classes are numbered by the folders' sorted names.

    Without train/ and test/ there is no test split, and the partition cuts one. Raises UserError if the folder or
    an image cannot be read.
    """
    if channels not in (1, 3):
        raise UserError(f"dataset.channels is {channels}: it must be 3, for colour, or 1, for grey.")
    if size is not None and size < 1:
        raise UserError(f"dataset.size is {size}: it must be at least 1, or null where the images have one size.")
    folder = own_path(name, path, folder=True)
    split = _has_split(folder)
    top = folder / "train" if split else folder
    if split and (unread := sorted({*images.subfolders(folder)} - {"train", "test"})):
        warn_once(__name__, f"dataset.path: {folder / unread[0]} is not read: only train/ and test/ are")
    classes = images.subfolders(top)
    if len(classes) < 2:
        raise UserError(
            f"dataset.path: {top} has {len(classes)} folder(s): there must be one for each class, two or more."
        )
    place = hashlib.blake2b(f"{folder} {size} {channels}".encode(), digest_size=4).hexdigest()
    tops = [top, folder / "test"] if split else [top]
    rows = prepared(
        root, f"{name}-{place}", folder, [1, size, channels], lambda: _read(name, tops, classes, size, channels)
    )
    return pack(name, rows, classes=len(classes), scale=1 / 255, mean=mean, std=std, augment=augment, own=True)


def _has_split(folder: Path) -> bool:
    """Return True if the folder has train/ and test/.

    Raises UserError if it has only one of them with class folders inside; without those, it is a class of that name.
    """
    found = [part for part in ("train", "test") if (folder / part).is_dir()]
    if len(found) == 1 and images.subfolders(folder / found[0]) and not images.files_of(folder / found[0]):
        other = "test" if found == ["train"] else "train"
        raise UserError(
            f"dataset.path: {folder} has {found[0]}/ with classes in it and no {other}/. Its folders are "
            f"{', '.join(images.subfolders(folder))}: rename the one of the {other} split to {other}, or, for data "
            f"without a split of their own, choose dataset.path={folder / found[0]}."
        )
    return len(found) == 2


def _read(name: str, tops: list[Path], classes: list[str], size: int | None, channels: int) -> Content:
    found: list[tuple[Path, int]] = []
    train = 0
    for top in tops:
        strange = sorted(set(images.subfolders(top)) - set(classes))
        if strange:
            raise UserError(f"dataset.path: {top} has a class '{strange[0]}', of which {tops[0]} has no folder.")
        by_class = [images.files_of(top / one) if (top / one).is_dir() else [] for one in classes]
        empty = [one for one, files in zip(classes, by_class, strict=True) if not files]
        if len(empty) == len(classes) or (top == tops[0] and empty):
            where = f"the folders of {top}" if len(empty) == len(classes) else f"{top / empty[0]}"
            kinds = ", ".join(sorted(images.SUFFIXES))
            splits = {one.lower() for one in classes} >= {"train", "test"}
            raise UserError(
                f"dataset.path: there are no images in {where}. Files that count end in {kinds}; folders inside a "
                f"class are not read.{' The folders of the splits are called train and test.' * splits}"
            )
        found += [(file, k) for k, files in enumerate(by_class) for file in files]
        train = train or len(found)
    every = ((str(file), file.read_bytes()) for file, _ in found)
    x = images.read(every, len(found), name, channels, size)
    return content(x, np.array([k for _, k in found]), train)
