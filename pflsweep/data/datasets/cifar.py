"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009), read by torchvision.

The files are in <root>/cifar-10-batches-py and <root>/cifar-100-python. They are pickles; torchvision compares their
MD5s with the published ones before it opens them.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pflsweep.data.dataset import Dataset
from pflsweep.data.datasets.cache import prepared
from pflsweep.data.datasets.files import download as run_download
from pflsweep.data.datasets.files import unavailable
from pflsweep.data.datasets.pack import Content, joined, pack
from pflsweep.ops.torchvision_compat import torchvision

SOURCES = {"cifar10": ("CIFAR10", "cifar-10-batches-py", 10), "cifar100": ("CIFAR100", "cifar-100-python", 100)}


def load(
    root: Path, download: bool, name: str, mean: Sequence[float], std: Sequence[float], augment: str = "none"
) -> Dataset:
    """Return CIFAR-10 or CIFAR-100: x [60000, 3, 32, 32] uint8. name: `cifar10` or `cifar100`.

    Raises UserError on missing or damaged files.
    """
    cls, folder, classes = SOURCES[name]
    rows = prepared(root, name, root / folder, [1], lambda: _read(root, download, name, cls))
    return pack(name, rows, classes=classes, scale=1 / 255, mean=mean, std=std, augment=augment)


def _read(root: Path, download: bool, name: str, cls: str) -> Content:
    official = getattr(torchvision().datasets, cls)
    if download and any(_problems(official, root).values()):
        run_download(name, root, lambda: official(str(root), train=True, download=True))
    try:
        splits = [official(str(root), train=train) for train in (True, False)]
    except RuntimeError as error:
        raise unavailable(name, root / official.base_folder, _problems(official, root)) from error
    # torchvision's images are [n, H, W, channels]
    train, test = (
        (np.ascontiguousarray(split.data.transpose(0, 3, 1, 2)), np.array(split.targets)) for split in splits
    )
    return joined(train, test)


def _problems(official: Any, root: Path) -> dict[str, str | None]:
    """Return what is wrong with each file, `missing` or `damaged`; None if it is good."""
    from torchvision.datasets.utils import check_integrity

    files = [*official.train_list, *official.test_list, (official.meta["filename"], official.meta["md5"])]
    folder = root / official.base_folder
    return {
        file: None if check_integrity(str(folder / file), md5) else "damaged" if (folder / file).exists() else "missing"
        for file, md5 in files
    }
