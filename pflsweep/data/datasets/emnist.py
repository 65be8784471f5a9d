"""EMNIST (Cohen et al., IJCNN 2017, https://arxiv.org/abs/1702.05373): handwritten digits and letters of 28x28 pixels.

It is read from <root>/EMNIST/raw, where torchvision puts the files emnist-<split>-<part>-ubyte. Compressed files (.gz)
are read too, also from raw/gzip, the layout of the archive. As in torchvision, images stay transposed as they are in
the files. MD5s of single files are not published: files are checked for completeness, and their content is part of the
dataset's checksum.
"""

import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pflsweep.data.dataset import Dataset
from pflsweep.data.datasets.cache import prepared
from pflsweep.data.datasets.files import download_archive, unavailable
from pflsweep.data.datasets.mnist import idx_array
from pflsweep.data.datasets.pack import Content, joined, pack
from pflsweep.ops.torchvision_compat import torchvision
from pflsweep.util.errors import UserError, nearest


class Split(NamedTuple):
    """One of the authors' splits of the dataset."""

    classes: int
    train: int  # number of training images, as published with the archive
    test: int  # number of test images
    first: int = 0  # the number of the first class in the files


SPLITS = {
    "byclass": Split(62, 697_932, 116_323),
    "bymerge": Split(47, 697_932, 116_323),
    "balanced": Split(47, 112_800, 18_800),
    "letters": Split(26, 124_800, 20_800, first=1),
    "digits": Split(10, 240_000, 40_000),
    "mnist": Split(10, 60_000, 10_000),
}


def load(
    root: Path,
    download: bool,
    name: str,
    mean: Sequence[float],
    std: Sequence[float],
    split: str,
    augment: str = "none",
) -> Dataset:
    """Return EMNIST: x [n, 1, 28, 28] uint8. split: one of SPLITS.

    Raises UserError on another split, and on missing or damaged files.
    """
    if split not in SPLITS:
        raise UserError(
            f"dataset.split is '{split}': it must be one of {', '.join(SPLITS)}.{nearest(split, list(SPLITS))}"
        )
    folder = root / "EMNIST" / "raw"
    rows = prepared(root, f"{name}-{split}", folder, [1, split], lambda: _read(name, folder, split, download))
    classes = SPLITS[split].classes
    return pack(name, rows, classes=classes, scale=1 / 255, mean=mean, std=std, augment=augment)


def _read(name: str, folder: Path, split: str, download: bool) -> Content:
    parts = [f"{part}-{kind}" for part in ("train", "test") for kind in ("images-idx3", "labels-idx1")]
    files = [f"emnist-{split}-{part}-ubyte" for part in parts]
    found = {file: _array(folder, file) for file in files}
    if download and any(isinstance(array, str) for array in found.values()):
        official = torchvision().datasets.EMNIST
        download_archive(name, folder, official.url, "gzip.zip", official.md5)
        found = {file: _array(folder, file) for file in files}
    problems = {file: array if isinstance(array, str) else None for file, array in found.items()}
    arrays = [array for array in found.values() if not isinstance(array, str)]
    first, classes = SPLITS[split].first, SPLITS[split].classes
    for images, labels, file in zip(arrays[::2], arrays[1::2], files[1::2], strict=True) if len(arrays) == 4 else ():
        if not 0 < len(images) == len(labels) or labels.min() < first or labels.max() >= first + classes:
            problems[file] = "not of these images, or of other classes"
    if any(problems.values()):
        raise unavailable(name, folder, problems)
    train, test = ((arrays[k][:, None], arrays[k + 1].astype(np.int64) - first) for k in (0, 2))
    return joined(train, test)


def _array(folder: Path, file: str) -> np.ndarray | str:
    """Return an array from the first place that has a complete file, or `missing` or `damaged` if none has."""
    problem = "missing"
    for path in (folder / file, folder / f"{file}.gz", folder / "gzip" / f"{file}.gz"):
        if not path.exists():
            continue
        try:
            content = path.read_bytes()
            return idx_array(gzip.decompress(content) if path.suffix == ".gz" else content)
        except (gzip.BadGzipFile, EOFError, zlib.error, ValueError):
            problem = "damaged"
    return problem
