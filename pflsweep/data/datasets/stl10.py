"""STL-10 (Coates, Ng and Lee, AISTATS 2011, https://cs.stanford.edu/~acoates/stl10): photographs of 96x96 pixels.

It is read from <root>/stl10_binary/{train,test}_{X,y}.bin, the layout of its archive. The 100,000 images without labels
are neither read nor needed. In the files, images are [channels, W, H] and classes are numbered from 1.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pflsweep.data.dataset import Dataset
from pflsweep.data.datasets.cache import prepared
from pflsweep.data.datasets.files import download_archive, require_files
from pflsweep.data.datasets.pack import Content, joined, pack
from pflsweep.ops.torchvision_compat import torchvision

SIDE = 96  # pixels


def load(
    root: Path, download: bool, name: str, mean: Sequence[float], std: Sequence[float], augment: str = "none"
) -> Dataset:
    """Return STL-10: x [13000, 3, 96, 96] uint8, 5,000 training and 8,000 test images.

    Raises UserError on missing or damaged files.
    """
    folder = root / "stl10_binary"
    rows = prepared(root, name, folder, [1], lambda: _read(name, folder, download))
    return pack(name, rows, classes=10, scale=1 / 255, mean=mean, std=std, augment=augment)


def _read(name: str, folder: Path, download: bool) -> Content:
    official = torchvision().datasets.STL10
    md5s = {file: md5 for file, md5 in (*official.train_list, *official.test_list) if "unlabeled" not in file}

    def fetch(_: list[str]) -> None:
        download_archive(name, folder.parent, official.url, official.filename, official.tgz_md5)

    require_files(name, folder, md5s, fetch if download else None)
    train, test = ((_images(folder / f"{part}_X.bin"), _labels(folder / f"{part}_y.bin")) for part in ("train", "test"))
    return joined(train, test)


def _images(file: Path) -> np.ndarray:
    by_columns = np.fromfile(file, np.uint8).reshape(-1, 3, SIDE, SIDE)
    return np.ascontiguousarray(by_columns.transpose(0, 1, 3, 2))


def _labels(file: Path) -> np.ndarray:
    return np.fromfile(file, np.uint8).astype(np.int64) - 1
