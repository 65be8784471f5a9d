"""What a loader made of a dataset's files, kept on disk, so that the next start neither decodes nor tokenises.

One file a dataset, <root>/prepared/<name>.bin: a line of JSON behind its hash, which says the arrays' types and shapes,
then their bytes. It counts as long as the source files have the names, sizes and times they had, and its own content
the checksum it had; else it is made anew.
"""

import hashlib
import json
import logging
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pflsweep.data.datasets.pack import Content, checksum
from pflsweep.util.files import atomic

log = logging.getLogger(__name__)
FORMAT = 1  # of the file; another number makes all of them anew


def prepared(root: Path, name: str, source: Path | None, options: list, make: Callable[[], Content]) -> Content:
    """`make()`, or what it gave last time. source: the file or folder that it reads, if any. options: what else its
    result depends on, and a version of the code that makes it. A folder that cannot be written to costs time only.
    """
    path = root / "prepared" / f"{name}.bin"
    signature = _signature(source, options)
    found = _read(path, signature)
    if found is not None:
        return found
    made = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        header = {"signature": _signature(source, options), "train": made.train, "checksum": made.checksum}
        atomic(path, lambda temporary: _write(temporary, header, made))
    except OSError as error:
        log.warning("dataset=%s is prepared anew in each start: %s cannot be written (%s)", name, path, error)
    return made


def _signature(source: Path | None, options: list) -> str:
    """A hash of how the source files look from outside. Not of their content: that would take as long as reading."""
    files = sorted(_files(source)) if source else []
    return _hash(json.dumps([FORMAT, options, str(source), files]))


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _files(source: Path | str) -> Iterator[tuple[str, int, int]]:
    """(path, size, time of the last change) of a file, or of all below a folder; nothing where there is none."""
    if os.path.isdir(source):
        with os.scandir(source) as entries:
            for entry in entries:
                yield from _files(entry.path)
    elif os.path.exists(source):
        stat = os.stat(source)
        yield str(source), stat.st_size, stat.st_mtime_ns


def _write(path: Path, header: dict[str, Any], made: Content) -> None:
    arrays = [np.ascontiguousarray(array) for array in (made.x, made.y, made.owner) if array is not None]
    line = json.dumps({**header, "arrays": [(array.dtype.str, array.shape) for array in arrays]})
    with open(path, "wb") as file:
        file.write(f"{_hash(line)} {line}\n".encode())
        for array in arrays:
            file.write(array.data)


def _read(path: Path, signature: str) -> Content | None:
    """The file's content, None where it is missing, of other sources, or damaged."""
    try:
        with open(path, "rb") as file:
            digest, _, line = file.readline().decode().rstrip("\n").partition(" ")
            header = json.loads(line) if digest == _hash(line) else {}
            if header.get("signature") != signature:
                return None
            arrays = [np.fromfile(file, kind, math.prod(shape)).reshape(shape) for kind, shape in header["arrays"]]
    except (OSError, ValueError):  # of text that is none, and of fewer numbers than the shape needs
        return None
    (x, y), owner = arrays[:2], arrays[2] if len(arrays) == 3 else None
    right = checksum(x, y, owner) == header["checksum"]
    return Content(x, y, header["train"], owner, header["checksum"]) if right else None
