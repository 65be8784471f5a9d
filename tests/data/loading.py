"""Load datasets as their YAML files describe them."""

import builtins
import errno
import io
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml
from hydra.utils import get_method
from PIL import Image

from pflsweep.config.compose import compose
from pflsweep.data.dataset import Dataset
from pflsweep.ops.torchvision_compat import torchvision
from pflsweep.trial.build import build_federation

CONF = Path(__file__).parents[2] / "conf/dataset"
NOWHERE = Path("nowhere")


def from_yaml(name: str, root: Path = NOWHERE, download: bool = False, **changes) -> Dataset:
    config = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    config.pop("defaults", None)
    return get_method(config.pop("_target_"))(root=root, download=download, **{**config, **changes})


def serve(monkeypatch: pytest.MonkeyPatch, contents: dict[str, bytes]) -> list[str]:
    """Let downloads return these contents by file name. Return a list to which each requested address is added."""
    asked = []

    def download_url(url: str, root: str, filename: str, md5: str) -> None:
        asked.append(url)
        (Path(root) / filename).write_bytes(contents[filename])

    monkeypatch.setattr(torchvision().datasets.utils, "download_url", download_url)
    return asked


def chosen(name: str, root: Path, *overrides: str) -> Dataset:
    """Return the dataset of a trial, as the command builds it."""
    return build_federation(compose([f"dataset={name}", f"data.root={root}", "device=cpu", *overrides]))[0].dataset


def forbid(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    """Forbid opening a file or listing a folder. Permissions alone would not stop an administrator."""

    def guarded(function: Callable) -> Callable:
        def ask(path, *args, **kwargs):
            if not isinstance(path, int) and Path(os.fsdecode(path)) == place:
                raise PermissionError(errno.EACCES, "Permission denied", os.fsdecode(path))
            return function(path, *args, **kwargs)

        return ask

    for module, function in ((builtins, "open"), (io, "open"), (os, "scandir"), (os, "listdir")):
        monkeypatch.setattr(module, function, guarded(getattr(module, function)))


def picture(number: int, size: tuple[int, int] = (64, 64), mode: str = "RGB", kind: str = "JPEG") -> bytes:
    """Write an image file of one colour, which encodes its number."""
    file = io.BytesIO()
    array = np.full((size[1], size[0], *([3] if mode == "RGB" else [])), number * 7 % 256, np.uint8)
    Image.fromarray(array).save(file, kind)
    return file.getvalue()


def idx(array: np.ndarray) -> bytes:
    """Return an array as a file of MNIST's format."""
    return struct.pack(f">BBBB{array.ndim}i", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()
