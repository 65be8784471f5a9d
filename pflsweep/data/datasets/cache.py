"""A cache on disk of the arrays that a loader decodes or tokenises from a dataset's files.

There is one file for each dataset, <root>/prepared/<name>.bin: a line with a hash and the JSON header that it covers
(types and shapes of the arrays, their checksum), then the bytes of the arrays. It is valid as long as the source files
have the same names, sizes and times, and its content has the same checksum; otherwise it is written anew.
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
# The version of the file format: raising it rewrites all files.
FORMAT = 1


def prepared(root: Path, name: str, source: Path | None, options: list, make: Callable[[], Content]) -> Content:
    """Return the cached result of `make`, or call it and cache the result.

    source: the file or folder that `make` reads, if any. options: what else its result depends on, with a version of
    its code. Where the cache cannot be written, a warning is logged and the result is returned all the same.
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
    """Return a hash of the names, sizes and times of the source files, and of the options.

    Their content is not hashed, since that would take as long as reading it.
    """
    files = sorted(_files(source)) if source else []
    return _hash(json.dumps([FORMAT, options, str(source), files]))


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _files(source: Path | str) -> Iterator[tuple[str, int, int]]:
    """Yield (path, size, modification time) of a file, or of all files below a folder; nothing if it does not exist."""
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
    """Return the content of a cache file, or None if it is missing, damaged, or has another signature."""
    try:
        with open(path, "rb") as file:
            digest, _, line = file.readline().decode().rstrip("\n").partition(" ")
            header = json.loads(line) if digest == _hash(line) else {}
            if header.get("signature") != signature:
                return None
            arrays = [np.fromfile(file, kind, math.prod(shape)).reshape(shape) for kind, shape in header["arrays"]]
    except (OSError, ValueError):  # ValueError where the header is not a text, or where bytes are missing
        return None
    (x, y), owner = arrays[:2], arrays[2] if len(arrays) == 3 else None
    right = checksum(x, y, owner) == header["checksum"]
    return Content(x, y, header["train"], owner, header["checksum"]) if right else None
