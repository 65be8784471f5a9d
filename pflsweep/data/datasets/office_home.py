"""Office-Home (Venkateswara et al., CVPR 2017, https://arxiv.org/abs/1706.07522): 65 kinds of objects in four styles.

From <root>/OfficeHomeDataset_10072016/<domain>/<class>/*.jpg, as its archive unpacks; it cannot be fetched by program.
The domain of each image is its natural client. There is no test split of its own. How many images a domain has is known
here from other people's code and not from the archive, so another number is a warning: what is there is trained on, and
is in the checksum.
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
DOMAINS = {"Art": 2427, "Clipart": 4365, "Product": 4439, "Real World": 4357}  # images of each, as commonly stated
CLASSES = 65
BY_HAND = "unpack the archive from https://www.hemanthdv.org/officeHomeDataset.html there"


def load(
    root: Path, download: bool, name: str, mean: Sequence[float], std: Sequence[float], size: int, augment: str = "none"
) -> Dataset:
    """x [n, 3, size, size] uint8; owner: the domain, in the order of DOMAINS. Raises UserError on bad files."""
    if size < 1:
        raise UserError(f"dataset.size is {size}: it must be at least 1, as in dataset.size=32.")
    folder = root / FOLDER
    rows = prepared(root, f"{name}-{size}", folder, [1, size], lambda: _read(name, folder, size))
    _compare(name, folder, rows)
    return pack(name, rows, classes=CLASSES, scale=1 / 255, mean=mean, std=std, augment=augment, owners=list(DOMAINS))


def _read(name: str, folder: Path, size: int) -> Content:
    """All images, domain by domain and class by class."""
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
    """Warns, in each start, where a domain has not as many images as is commonly stated."""
    counts = np.bincount(np.asarray(rows.owner), minlength=len(DOMAINS))
    pairs = zip(DOMAINS.items(), counts, strict=True)
    odd = [f"{count} in {domain} (commonly {usual})" for (domain, usual), count in pairs if count != usual]
    if odd:
        log.warning("dataset=%s: %s has other numbers of images than usual: %s", name, folder, ", ".join(odd))
