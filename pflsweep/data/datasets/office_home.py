"""Office-Home (Venkateswara et al., CVPR 2017, https://arxiv.org/abs/1706.07522): 65 kinds of objects in four styles.

It is read from <root>/OfficeHomeDataset_10072016/<domain>/<class>/*.jpg, the layout of its archive, which has to be
downloaded by hand. The domain of each image is its natural client. There is no test split. The numbers of images in
DOMAINS are from other public code, not from the archive, so a different number is only a warning: training uses the
images that are there, and they are part of the checksum.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pflsweep.data.dataset import Dataset
from pflsweep.data.datasets import images
from pflsweep.data.datasets.cache import prepared
from pflsweep.data.datasets.files import unavailable
from pflsweep.data.datasets.pack import Content, content, pack
from pflsweep.util.errors import UserError

log = logging.getLogger(__name__)
FOLDER = "OfficeHomeDataset_10072016"
# Images in each domain, as commonly stated.
DOMAINS = {"Art": 2427, "Clipart": 4365, "Product": 4439, "Real World": 4357}
CLASSES = 65
BY_HAND = "unpack the archive from https://www.hemanthdv.org/officeHomeDataset.html there"


def load(
    root: Path, download: bool, name: str, mean: Sequence[float], std: Sequence[float], size: int, augment: str = "none"
) -> Dataset:
    """Return Office-Home: x [n, 3, size, size] uint8; the owner of a row is its domain, in the order of DOMAINS.

    Raises UserError on missing or damaged files.
    """
    if size < 1:
        raise UserError(f"dataset.size is {size}: it must be at least 1, as in dataset.size=32.")
    folder = root / FOLDER
    rows = prepared(root, f"{name}-{size}", folder, [1, size], lambda: _read(name, folder, size))
    _compare(name, folder, rows)
    return pack(name, rows, classes=CLASSES, scale=1 / 255, mean=mean, std=std, augment=augment, owners=list(DOMAINS))


def _read(name: str, folder: Path, size: int) -> Content:
    """Return all images, ordered by domain and class."""
    missing = {domain: "missing" for domain in DOMAINS if not (folder / domain).is_dir()}
    if missing:
        whole = {domain: missing.get(domain) for domain in DOMAINS}
        raise unavailable(name, folder, whole, BY_HAND)
    classes = images.subfolders(folder / next(iter(DOMAINS)))
    found, problems = [], {}
    for number, domain in enumerate(DOMAINS):
        named = images.subfolders(folder / domain)
        files = [(path, k, number) for k, one in enumerate(named) for path in images.files_of(folder / domain / one)]
        if len(named) != CLASSES or named != classes or not files:
            problems[domain] = f"not whole: {len(files)} images in {len(named)} classes; all have the same {CLASSES}"
        found += files
    if problems:
        raise unavailable(name, folder, problems, BY_HAND)
    every = ((str(path.relative_to(folder)), path.read_bytes()) for path, _, _ in found)
    x = images.read(every, len(found), name, channels=3, size=size)
    return content(x, np.array([k for _, k, _ in found]), len(found), np.array([number for *_, number in found]))


def _compare(name: str, folder: Path, rows: Content) -> None:
    """Log a warning, also for a cached dataset, where a domain's number of images is not the one in DOMAINS."""
    counts = np.bincount(np.asarray(rows.owner), minlength=len(DOMAINS))
    pairs = zip(DOMAINS.items(), counts, strict=True)
    odd = [f"{count} in {domain} (commonly {usual})" for (domain, usual), count in pairs if count != usual]
    if odd:
        log.warning("dataset=%s: %s has other numbers of images than usual: %s", name, folder, ", ".join(odd))
