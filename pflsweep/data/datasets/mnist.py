"""MNIST (LeCun, Cortes and Burges 1998) and Fashion-MNIST (Xiao, Rasul and Vollgraf 2017), from idx files.

The files are where torchvision puts them, in <root>/MNIST/raw or <root>/FashionMNIST/raw. torchvision downloads them,
but they are read here, since torchvision needs them decompressed and does not check them.
"""

import gzip
import hashlib
import struct
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pflsweep.data.dataset import Dataset
from pflsweep.data.datasets.files import FAILURES, unavailable
from pflsweep.data.datasets.files import download as run_download
from pflsweep.data.datasets.pack import joined, pack
from pflsweep.ops.torchvision_compat import torchvision


class Source(NamedTuple):
    """The source of a dataset.

    torchvision states MD5s of the .gz files only; those here were computed from files that agree with them.
    """

    cls: str  # torchvision's class, and the name of the folder
    files: dict[str, str]  # MD5 of the decompressed content of each file


SOURCES = {
    "mnist": Source(
        "MNIST",
        {
            "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
            "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
            "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
            "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
        },
    ),
    "fmnist": Source(
        "FashionMNIST",
        {
            "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
            "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
            "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
        },
    ),
}


def load(
    root: Path, download: bool, name: str, mean: Sequence[float], std: Sequence[float], augment: str = "none"
) -> Dataset:
    """Return MNIST or Fashion-MNIST: x [70000, 1, 28, 28] uint8. name: `mnist` or `fmnist`.

    Raises UserError on missing or damaged files.
    """
    source = SOURCES[name]
    folder = root / source.cls / "raw"
    found = {file: _content(folder, file, md5) for file, md5 in source.files.items()}
    if download and any(isinstance(content, str) for content in found.values()):
        wanted = [file for file, content in found.items() if isinstance(content, str)]
        run_download(name, folder, lambda: _fetch(source.cls, folder, wanted))
        found.update({file: _content(folder, file, source.files[file]) for file in wanted})
    problems = {file: content if isinstance(content, str) else None for file, content in found.items()}
    if any(problems.values()):
        raise unavailable(name, folder, problems)
    arrays = [idx_array(content) for content in found.values() if isinstance(content, bytes)]
    train, test = (arrays[0][:, None], arrays[1]), (arrays[2][:, None], arrays[3])
    return pack(name, joined(train, test), classes=10, scale=1 / 255, mean=mean, std=std, augment=augment)


def _content(folder: Path, file: str, md5: str) -> bytes | str:
    """Return the decompressed content of <file> or <file>.gz, or `missing` or `damaged` where neither is good."""
    problem = "missing"
    for path in (folder / file, folder / f"{file}.gz"):
        try:
            content = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            continue
        try:
            content = gzip.decompress(content) if path.suffix == ".gz" else content
        except (gzip.BadGzipFile, EOFError, zlib.error):  # not gzip, truncated, corrupt
            content = b""
        if hashlib.md5(content, usedforsecurity=False).hexdigest() == md5:
            return content
        problem = "damaged"
    return problem


def _fetch(cls: str, folder: Path, files: list[str]) -> None:
    """Download files from torchvision's mirrors, checked by its MD5s of the .gz files."""
    official = getattr(torchvision().datasets, cls)
    for gz, md5 in official.resources:
        if gz.removesuffix(".gz") in files:
            _fetch_one(official.mirrors, folder, gz, md5)


def _fetch_one(mirrors: list[str], folder: Path, gz: str, md5: str) -> None:
    from torchvision.datasets.utils import download_url

    for mirror in mirrors[:-1]:
        with suppress(*FAILURES):
            return download_url(f"{mirror}{gz}", str(folder), filename=gz, md5=md5)
    return download_url(f"{mirrors[-1]}{gz}", str(folder), filename=gz, md5=md5)


def idx_array(content: bytes) -> np.ndarray:
    """Return the uint8 array of an idx file. Raises ValueError if it is no such file, or not complete.

    The format is two zero bytes, 8 for uint8, the number of dimensions, each dimension as big-endian int32, the data.
    """
    if content[:3] != b"\0\0\x08" or len(content) < 4 + 4 * content[3]:
        raise ValueError("no idx file of uint8")
    dimensions = content[3]
    shape = struct.unpack(f">{dimensions}i", content[4 : 4 + 4 * dimensions])
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)
