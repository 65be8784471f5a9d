"""SVHN (Netzer et al., NIPS workshop 2011, http://ufldl.stanford.edu/housenumbers): digits of house numbers, cropped.

It is read from <root>/SVHN/{train,test}_32x32.mat by torchvision; the files' MD5s are compared with the published ones.
The 531,131 `extra` images are not used. Class 0 is the digit 0, which is class 10 in the files.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pflsweep.data.dataset import Dataset
from pflsweep.data.datasets.cache import prepared
from pflsweep.data.datasets.files import downloads, require_files
from pflsweep.data.datasets.pack import Content, joined, pack
from pflsweep.ops.torchvision_compat import torchvision

FOLDER = "SVHN"


def load(
    root: Path, download: bool, name: str, mean: Sequence[float], std: Sequence[float], augment: str = "none"
) -> Dataset:
    """Return SVHN: x [99289, 3, 32, 32] uint8, 73,257 training and 26,032 test images.

    Raises UserError on missing or damaged files.
    """
    folder = root / FOLDER
    rows = prepared(root, name, folder, [1], lambda: _read(name, folder, download))
    return pack(name, rows, classes=10, scale=1 / 255, mean=mean, std=std, augment=augment)


def _read(name: str, folder: Path, download: bool) -> Content:
    official = torchvision().datasets.SVHN
    sources = [official.split_list[split] for split in ("train", "test")]
    urls, md5s = {file: url for url, file, _ in sources}, {file: md5 for _, file, md5 in sources}
    require_files(name, folder, md5s, downloads(name, folder, md5s, urls) if download else None)
    splits = [official(str(folder), split=split) for split in ("train", "test")]
    train, test = ((np.ascontiguousarray(split.data), split.labels) for split in splits)
    return joined(train, test)
