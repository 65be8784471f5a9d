"""OrganAMNIST of MedMNIST (Yang et al., Scientific Data 2023): slices of abdominal CT scans, 28x28 pixels, 11 organs.

https://doi.org/10.1038/s41597-022-01721-8. It is read from <root>/organamnist.npz, the file of version 2, which PGFed's
code reads. Version 3, which leaves out 20 images, is refused.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pflsweep.data.dataset import Dataset
from pflsweep.data.datasets.files import downloads, require_files
from pflsweep.data.datasets.pack import joined, pack

FILE = "organamnist.npz"
URL = "https://zenodo.org/record/6496656/files/organamnist.npz?download=1"
MD5 = "866b832ed4eeba67bfb9edee1d5544e6"
VERSION = "MedMNIST 2"


def load(
    root: Path, download: bool, name: str, mean: Sequence[float], std: Sequence[float], augment: str = "none"
) -> Dataset:
    """Return OrganAMNIST: x [58850, 1, 28, 28] uint8.

    The training split is its training rows followed by its validation rows. Raises UserError on a missing, damaged or
    newer file.
    """
    md5s = {FILE: MD5}
    fetch = downloads(name, root, md5s, {FILE: URL}) if download else None
    require_files(name, root, md5s, fetch, version=VERSION)
    with np.load(root / FILE, allow_pickle=False) as arrays:
        train, val, test = (
            (arrays[f"{split}_images"][:, None], arrays[f"{split}_labels"].ravel())
            for split in ("train", "val", "test")
        )
    train = (np.concatenate([train[0], val[0]]), np.concatenate([train[1], val[1]]))
    return pack(name, joined(train, test), classes=11, scale=1 / 255, mean=mean, std=std, augment=augment)
