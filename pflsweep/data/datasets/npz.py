"""The user's own arrays, in a .npz file: x_train, y_train, and optionally x_test, y_test and group."""

import logging
import re
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pflsweep.data.dataset import Dataset
from pflsweep.data.datasets.files import own_path
from pflsweep.data.datasets.pack import content, pack, warn_if_far
from pflsweep.util.errors import UserError, nearest, one_line

log = logging.getLogger(__name__)

NAMES = ("x_train", "y_train", "x_test", "y_test", "group")
KEYS = "x_train, y_train and, if there is a test split, x_test, y_test; group, if rows have clients of their own"
# An image whose last dimension is at most this has its channels last: RGB and alpha.
CHANNELS = 4
# RuntimeError is raised for encrypted files, its subclass NotImplementedError for newer zip features.
ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, RuntimeError)


def load(
    root: Path,
    download: bool,
    name: str,
    mean: Sequence[float],
    std: Sequence[float],
    path: str | None,
    augment: str = "none",
    owner_column: str | None = None,
) -> Dataset:
    """Return the dataset in a .npz file.

    x [n, channels, H, W], [n, H, W, channels] with at most 4 channels, [n, H, W] or [n, features]. uint8 is scaled to
    [0, 1] and then normalised; other types are normalised as they are. y [n] whole numbers from 0. group [n] a number
    or name for each row, training rows first. owner_column: the array that the partition names instead of group. Other
    arrays are not read. Raises UserError on anything else, and if an array's name is nearly one that is missing.
    """
    file = own_path(name, path, folder=False)
    arrays = read_npz(file, KEYS)
    _check_names(file, [each for each in arrays if each != owner_column])
    train, test = (_split(file, arrays, part) for part in ("train", "test"))
    if len(test[1]) and (train[0].shape[1:] != test[0].shape[1:] or train[0].dtype != test[0].dtype):
        raise UserError(
            f"{file}: rows of x_train have shape {train[0].shape[1:]} and type {train[0].dtype}, of x_test "
            f"{test[0].shape[1:]} and {test[0].dtype}: they must be the same."
        )
    x, y = (np.concatenate(pair) for pair in zip(train, test, strict=True)) if len(test[1]) else train
    classes = _classes(file, y)
    if owner_column not in (None, *arrays):
        raise UserError(
            f"partition.column is '{owner_column}': {file} has no such array."
            f"{nearest(str(owner_column), list(arrays))} Its arrays are {', '.join(arrays)}."
        )
    group = owner_column or "group"
    owners, owner = _owners(file, group, arrays[group], len(y)) if group in arrays else ([], None)
    rows = content(x, y, len(train[1]), owner)
    scale = 1 / 255 if x.dtype == np.uint8 else 1.0
    packed = pack(
        name, rows, classes=classes, scale=scale, mean=mean, std=std, augment=augment, owners=owners, own=True
    )
    if x.ndim == 2:
        advice = "Set dataset.mean and dataset.std, to one value or one a feature."
        warn_if_far(file, [f"feature {k}" for k in range(x.shape[1])], packed, advice)
    return packed


def read_npz(file: Path, wanted: str) -> dict[str, np.ndarray]:
    """Return the arrays of a .npz file by name. wanted: the arrays that it should have, for the message.

    Raises UserError if the file cannot be read.
    """
    try:
        with open(file, "rb") as opened:
            loaded = np.load(opened, allow_pickle=False)
            if not isinstance(loaded, np.ndarray):
                return dict(loaded)
        why = "it is a .npy file, of one array without a name"
    except (OSError, ValueError, EOFError, TypeError, AttributeError, *ZIP_ERRORS) as error:
        why = _why(file, error)
    raise UserError(
        f"{file} cannot be read as a .npz file of numbers ({why}). It should have {wanted}, written by numpy.savez."
    )


def _check_names(file: Path, names: Sequence[str]) -> None:
    """Raise UserError on a misspelt array: without it the file would have no test split, or no clients of its own."""
    missing = [name for name in NAMES if name not in names]
    for name in names:
        if name in NAMES:
            continue
        word = re.sub(r"^(train|test)_?([xy])$", r"\2_\1", name.lower())
        if guess := nearest(word, missing):
            raise UserError(f"{file}: its array {name} would not be read.{guess} It should have {KEYS}.")


def _why(file: Path, error: Exception) -> str:
    """Return what is wrong with a file that numpy cannot read."""
    # numpy's own error is of no use: it takes any file that is not an archive for pickled objects
    try:
        with open(file, "rb") as opened:
            start = opened.read(6)
    except OSError as refused:
        return refused.strerror or str(refused)
    if not start:
        return "it is empty"
    if not start.startswith((b"PK", b"\x93NUMPY")):
        return "it is not a zip archive, as .npz files are"
    if "allow_pickle" in str(error):
        return "it has an array of Python objects, not of numbers"
    return f"it is cut short or damaged: {one_line(error)}"


def _classes(file: Path, y: np.ndarray) -> int:
    """Return the number of classes, the largest class + 1. Raises UserError if y cannot be classes."""
    largest = int(y.max())
    if largest >= len(y):
        raise UserError(
            f"{file}: the largest class in y_train and y_test is {largest}, and there are {len(y)} rows in all. "
            "Classes must be numbered from 0, without large gaps."
        )
    present = np.unique(y)
    if len(present) == len(y):
        raise UserError(f"{file}: each row of y_train and y_test is a class of its own; a class needs several rows.")
    if len(present) == 1:
        raise UserError(f"{file}: y_train and y_test have one class only, {largest}; two are needed.")
    missing = np.setdiff1d(np.arange(largest), present)
    if len(missing):
        log.warning("%s: no row of y_train and y_test is of class %d, so that it has no samples", file, missing[0])
    return largest + 1


def _owners(file: Path, name: str, group: np.ndarray, rows: int) -> tuple[list[str], np.ndarray]:
    """Return the clients' sorted names, and for each row the index of its client. name: the array's, for messages."""
    if group.shape != (rows,):
        raise UserError(f"{file}: {name} has shape {group.shape}, and there are {rows} rows in all.")
    if group.dtype.kind == "f" and np.isnan(group).any():
        raise UserError(f"{file}: {name} is NaN in row {int(np.isnan(group).argmax())}: each row needs a client.")
    names, owner = np.unique(group, return_inverse=True)
    return [str(one) for one in names], owner


def _split(file: Path, arrays: dict[str, np.ndarray], part: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (x, y) of a split, both empty if the file has no test split. part: `train` or `test`."""
    if part == "test" and not {"x_test", "y_test"} & set(arrays):
        return np.zeros(0), np.zeros(0, np.int64)
    missing = [key for key in (f"x_{part}", f"y_{part}") if key not in arrays]
    if missing:
        raise UserError(f"{file} has no {missing[0]}; it has {', '.join(sorted(arrays))}. It should have {KEYS}.")
    x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
    if y.ndim != 1 or x.shape[:1] != y.shape or not len(y) or y.dtype.kind not in "iu" or y.min() < 0:
        raise UserError(
            f"{file}: y_{part} has shape {y.shape} and type {y.dtype}, x_{part} {x.shape}: y must be whole numbers "
            "from 0, the class of each row of x."
        )
    return _rows(file, x, part), y


def _rows(file: Path, x: np.ndarray, part: str) -> np.ndarray:
    """Return x with the shape and type that a Dataset has: channels first, uint8 or float32."""
    if x.ndim not in (2, 3, 4) or 0 in x.shape or x.dtype.kind not in "uif":
        raise UserError(
            f"{file}: x_{part} has shape {x.shape} and type {x.dtype}: it must be numbers, images [n, channels, H, W] "
            "or [n, H, W], or features [n, F]."
        )
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[3] <= CHANNELS < x.shape[1]:
        x = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    if x.dtype != np.uint8:
        with np.errstate(over="ignore"):  # infinite values are refused below
            x = x.astype(np.float32)
    if x.dtype == np.float32 and not np.isfinite(x).all():
        row = int(np.flatnonzero(~np.isfinite(x.reshape(len(x), -1)).all(1))[0])
        raise UserError(
            f"{file}: x_{part} has values that are no finite numbers of type float32, such as in row {row}."
        )
    return x
