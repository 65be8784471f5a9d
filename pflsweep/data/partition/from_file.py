"""A partition that is read from a file: each client's training and test rows, and optionally its validation rows.

JSON: {"train": [[0, 1], [5]], "test": [[2], [6]]}, a list of row numbers for each client; "validation" is optional.
npz: arrays train_0, train_1, .., test_0, test_1, .. for clients 0, 1, ..; validation_0, .. are optional.

Rows are numbered as in the dataset: those of its training split first, from 0, then those of its test split.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from pflsweep.data.dataset import Dataset, Rows
from pflsweep.data.datasets.files import own_path
from pflsweep.data.datasets.npz import read_npz
from pflsweep.data.prescribed import SPLITS, prescribed
from pflsweep.util.errors import UserError, one_line

FORM = "lists of rows named train and test, and maybe validation, with one list per client (docs/data.md)"
KEYS = "train_0, train_1, .., test_0, test_1, .. and maybe validation_0, .., the rows of clients 0, 1, .."


def split(dataset: Dataset, seed: int, path: str | None) -> Rows:
    """Return the partition in a file.

    Its checksum is that of the row numbers, so the same split is the same trial, whatever file holds it. Raises
    UserError where the file is missing or cannot be read, and on rows that do not fit.
    """
    file = own_path("from_file", path, folder=False, group="partition")
    if dataset.limit is not None:
        raise UserError(
            f"data.limit is {dataset.limit}, which draws a part of the dataset, and partition=from_file names rows of "
            "the whole: leave data.limit out."
        )
    try:
        given = prescribed(_npz(file) if file.suffix == ".npz" else _json(file))
        rows = given.rows_of(dataset, None)
    except UserError as error:
        raise UserError(f"partition=from_file: {file}: {error}") from error
    return rows._replace(checksum=str(given.digest))


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # ValueError where the text is not JSON, or not UTF-8
        raise UserError(f"it cannot be read as JSON ({one_line(error)}). It should have {FORM}.") from error
    if not isinstance(found, dict):
        raise UserError(f"it is JSON of a {type(found).__name__}, and should be an object with {FORM}.")
    return _present(found)


def _npz(file: Path) -> dict[str, Any]:
    parts: dict[str, dict[int, Any]] = {}
    for key, array in read_npz(file, KEYS).items():
        named = re.fullmatch(rf"({'|'.join(SPLITS)})_(0|[1-9]\d*)", key)
        if named is None:
            raise UserError(f"it has an array '{key}', and should have {KEYS}.")
        parts.setdefault(named[1], {})[int(named[2])] = array
    for split, arrays in parts.items():
        missing = set(range(len(arrays))) - arrays.keys()
        if missing:
            raise UserError(
                f"it has {len(arrays)} arrays of {split}, but no {split}_{min(missing)}: clients count from 0."
            )
    return _present({split: [arrays[client] for client in sorted(arrays)] for split, arrays in parts.items()})


def _present(parts: dict[str, Any]) -> dict[str, Any]:
    """Return the parts, without a validation part that is empty for all clients: other platforms write one."""
    held = parts.get("validation")
    if isinstance(held, list) and all(isinstance(own, list | np.ndarray) and not len(own) for own in held):
        return {split: own for split, own in parts.items() if split != "validation"}
    return parts
