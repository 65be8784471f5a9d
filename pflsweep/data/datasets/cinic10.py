"""CINIC-10 (Darlow et al. 2018, https://arxiv.org/abs/1810.03505): CIFAR-10's classes, images of CIFAR-10 and ImageNet.

It is read from <root>/CINIC-10/{train,valid,test}/<class>/*.png, the layout of its archive. Training rows are the
images of the training part followed by those of the validation part, the larger training set that the authors describe.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pflsweep.data.dataset import Dataset
from pflsweep.data.datasets import images
from pflsweep.data.datasets.cache import prepared
from pflsweep.data.datasets.files import download_archive, unavailable
from pflsweep.data.datasets.pack import Content, content, pack

FOLDER = "CINIC-10"
URL = "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz"
MD5 = "6ee4d0c996905fe93221de577967a372"
PARTS = ("train", "valid", "test")
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
EACH = 9_000  # images of a class in a part


def load(
    root: Path, download: bool, name: str, mean: Sequence[float], std: Sequence[float], augment: str = "none"
) -> Dataset:
    """Return CINIC-10: x [270000, 3, 32, 32] uint8, 180,000 training and 90,000 test images.

    Raises UserError on missing or damaged files.
    """
    folder = root / FOLDER
    rows = prepared(root, name, folder, [1], lambda: _read(name, folder, download))
    return pack(name, rows, classes=len(CLASSES), scale=1 / 255, mean=mean, std=std, augment=augment)


def _read(name: str, folder: Path, download: bool) -> Content:
    if download and any(_problems(folder).values()):
        download_archive(name, folder.parent, URL, f"{FOLDER}.tar.gz", MD5, into=folder)
    problems = _problems(folder)
    if any(problems.values()):
        raise unavailable(name, folder, problems)
    found = [(file, k) for part in PARTS for k, one in enumerate(CLASSES) for file in _files(folder / part / one)]
    every = ((str(file.relative_to(folder)), file.read_bytes()) for file, _ in found)
    x = images.read(every, len(found), name, channels=3, size=None)
    return content(x, np.array([k for _, k in found]), 2 * EACH * len(CLASSES))


def _problems(folder: Path) -> dict[str, str | None]:
    """Return what is wrong with each part of the dataset; None if it is complete."""
    found: dict[str, str | None] = {}
    for part in PARTS:
        counts = {one: len(_files(folder / part / one)) for one in CLASSES}
        odd = [f"{count} images in {one}" for one, count in counts.items() if count != EACH]
        whole = f"not whole: {', '.join(odd)}, and each class has {EACH:,}"
        found[part] = None if not odd else whole if any(counts.values()) else "missing"
    return found


def _files(folder: Path) -> list[Path]:
    return images.files_of(folder) if folder.is_dir() else []
