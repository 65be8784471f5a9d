"""Tiny-ImageNet (Stanford's CS231n, 2015): 200 of ImageNet's classes in 64x64 pixels.

It is read from <root>/tiny-imagenet-200/ or <root>/tiny-imagenet-200.zip. Its test images have no labels, so its
validation images are the test split here. Classes are numbered by their sorted WordNet ids, as in torchvision's
ImageFolder.
"""

import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pflsweep.data.dataset import Dataset
from pflsweep.data.datasets import images
from pflsweep.data.datasets.cache import prepared
from pflsweep.data.datasets.files import downloads, require_files, unavailable
from pflsweep.data.datasets.pack import Content, content, pack

FOLDER = "tiny-imagenet-200"
URL = f"http://cs231n.stanford.edu/{FOLDER}.zip"
MD5 = "90528d7ca1a48142e341f4ef8d21d0de"
# A download does not replace files that are already unpacked, so the user has to.
BY_HAND = f"replace it by what the archive from {URL} holds"


class Counts(NamedTuple):
    """The numbers of a complete dataset."""

    classes: int
    train: int  # training images of each class
    val: int  # validation images in all
    side: int  # pixels


WHOLE = Counts(200, 500, 10_000, 64)
Read = Callable[[str], bytes]  # a file's bytes by its name in the dataset's folder


def load(
    root: Path, download: bool, name: str, mean: Sequence[float], std: Sequence[float], val: bool, augment: str = "none"
) -> Dataset:
    """Return Tiny-ImageNet: x [110000, 3, 64, 64] uint8, or without `val` [100000, ..] and no test split.

    Raises UserError on missing or damaged files.
    """
    folder, packed = root / FOLDER, root / f"{FOLDER}.zip"
    source = folder if folder.is_dir() else packed
    rows = prepared(root, name, source, [1, val], lambda: _read(name, root, source, download, val))
    return pack(name, rows, classes=WHOLE.classes, scale=1 / 255, mean=mean, std=std, augment=augment)


def _read(name: str, root: Path, source: Path, download: bool, val: bool) -> Content:
    if source.suffix == ".zip":
        md5s = {source.name: MD5}
        require_files(name, root, md5s, downloads(name, root, md5s, {source.name: URL}) if download else None)
    with ExitStack() as stack:
        if source.suffix == ".zip":
            archive = stack.enter_context(zipfile.ZipFile(source))
            return _whole(name, source, lambda file: archive.read(f"{FOLDER}/{file}"), val)
        return _whole(name, source, lambda file: (source / file).read_bytes(), val)


def _whole(name: str, source: Path, read: Read, val: bool) -> Content:
    """Return all labelled images, first those of the training split, ordered by class. read: reads a file by name."""

    def get(file: str) -> bytes:
        try:
            return read(file)
        except (FileNotFoundError, KeyError) as error:
            raise unavailable(name, source, {file: "missing from it"}, BY_HAND) from error
        except (zipfile.BadZipFile, zlib.error) as error:
            raise unavailable(name, source, {file: f"damaged ({error})"}, BY_HAND) from error

    wnids = sorted(get("wnids.txt").decode().split())
    if len(set(wnids)) != WHOLE.classes:
        wrong = f"not whole: {len(set(wnids))} of {WHOLE.classes} classes"
        raise unavailable(name, source, {"wnids.txt": wrong}, BY_HAND)
    held = _validation(name, source, get("val/val_annotations.txt").decode(), wnids) if val else []
    train = [(f"train/{w}/images/{w}_{i}.JPEG", k) for k, w in enumerate(wnids) for i in range(WHOLE.train)]
    files = chain(train, held)
    every: Iterator[tuple[str, bytes]] = ((file, get(file)) for file, _ in files)
    x = images.read(every, len(train) + len(held), name, channels=3, size=None)
    if x.shape[2:] != (WHOLE.side, WHOLE.side):
        wrong = f"of another version: not {WHOLE.side}x{WHOLE.side} pixels"
        raise unavailable(name, source, {train[0][0]: wrong}, BY_HAND)
    return content(x, np.array([k for _, k in [*train, *held]]), len(train))


def _validation(name: str, source: Path, text: str, wnids: list[str]) -> list[tuple[str, int]]:
    """Return (file, class) of each line of val_annotations.txt: file, WordNet id and a box, separated by tabs."""
    classes = {wnid: k for k, wnid in enumerate(wnids)}
    lines = [line.split("\t") for line in text.splitlines() if line]
    if len(lines) != WHOLE.val or any(len(line) < 2 or line[1] not in classes for line in lines):
        wrong = f"not whole: {len(lines)} of {WHOLE.val} lines of image, class, box, or classes that are not its own"
        raise unavailable(name, source, {"val/val_annotations.txt": wrong}, BY_HAND)
    return [(f"val/images/{line[0]}", classes[line[1]]) for line in lines]
