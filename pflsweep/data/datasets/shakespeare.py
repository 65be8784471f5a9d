"""Shakespeare of LEAF (Caldas et al. 2018, https://arxiv.org/abs/1812.01097): the next character of a role's lines.

LEAF's scripts create the files, and their options decide how much of the text is in them, so these are the user's own
data. dataset.path is the folder `data` that the scripts write, with train/*.json and test/*.json, or a folder of such
files without a split, or one file. A file is {"users": [...], "user_data": {user: {"x": [80 characters, ...], "y":
[character, ...]}}}. A user, a role in a play, is a client. Characters are LEAF's 80; any other counts as a space, which
LEAF itself uses for unknown text.
"""

import json
import logging
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pflsweep.data.dataset import Dataset
from pflsweep.data.datasets.pack import content, pack
from pflsweep.util.errors import UserError, one_line

log = logging.getLogger(__name__)
CHARACTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
UNKNOWN = CHARACTERS.index(" ")
FORM = '{"user_data": {user: {"x": [text, ...], "y": [character, ...]}}}, as LEAF\'s preprocess.sh writes them'


class User(NamedTuple):
    """The samples of one user in one file."""

    name: str
    x: np.ndarray  # [n, length] int32 indices in CHARACTERS
    y: np.ndarray  # [n] int32 index of the next character
    unknown: int  # number of characters that are not in CHARACTERS


def load(root: Path, download: bool, name: str, path: str | None) -> Dataset:
    """Return Shakespeare: x [n, 80] int32 indices of characters, y [n] that of the next one; the owner is the user.

    Nothing is read from root. Raises UserError if the files cannot be read.
    """
    if not path:
        raise UserError(
            f"dataset={name} reads what LEAF's data/shakespeare/preprocess.sh makes: say where it is, "
            "dataset.path=leaf/data/shakespeare/data."
        )
    place = Path(path).expanduser().absolute()
    if not place.exists():
        raise UserError(f"dataset.path is {path}: there is no such file or folder.")
    splits = [[user for file in files for user in _users(file)] for files in _splits(place)]
    users = [user for split in splits for user in split if len(user.y)]
    lengths = {user.x.shape[1] for user in users}
    if len(lengths) != 1:
        why = (
            f"texts of {', '.join(map(str, sorted(lengths)))} characters; all need one length" if users else "no texts"
        )
        raise UserError(f"dataset.path: {place} has {why}.")
    if unknown := sum(user.unknown for user in users):
        log.warning("dataset=%s: %d characters that are none of LEAF's 80 count as spaces", name, unknown)
    owners, owner = np.unique([user.name for user in users], return_inverse=True)
    x, y = np.concatenate([user.x for user in users]), np.concatenate([user.y for user in users])
    train = sum(len(user.y) for user in splits[0])
    rows = content(x, y, train, np.repeat(owner, [len(user.y) for user in users]))
    names = [str(one) for one in owners]
    # A user's samples are windows of one text, each a character further than the one before
    overlap, classes = lengths.pop() - 1, len(CHARACTERS)
    data = pack(name, rows, classes=classes, scale=1.0, mean=[0.0], std=[1.0], owners=names, overlap=overlap, own=True)
    return data._replace(vocabulary=classes)


def _splits(place: Path) -> list[list[Path]]:
    """Return the files of the training split, and those of the test split where there is one.

    Raises UserError if the folder has neither form.
    """
    if place.is_file():
        return [[place]]
    halves = [place / part for part in ("train", "test") if (place / part).is_dir()]
    found = [sorted(folder.glob("*.json")) for folder in halves or [place]]
    if len(halves) == 1 or not all(found):
        raise UserError(
            f"dataset.path: {place} should have train/*.json and test/*.json, as LEAF's preprocess.sh makes them, or "
            "*.json alone, for data without a split of their own."
        )
    return found


def _users(file: Path) -> list[User]:
    try:
        texts = json.loads(file.read_text(encoding="utf-8"))["user_data"]
        return [_user(user, said["x"], said["y"]) for user, said in texts.items()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"dataset.path: {file} is not as it should be ({one_line(error)}): JSON of {FORM}.") from error


def _user(name: str, x: list[str], y: list[str]) -> User:
    length = len(x[0]) if x else 0
    if len(x) != len(y) or any(len(text) != length for text in x) or any(len(one) != 1 for one in y):
        raise ValueError(f"user {name} has {len(x)} texts, not all of one length, or not each with a next character")
    texts, next_ones = _numbers("".join(x)), _numbers("".join(y))
    unknown = int((texts < 0).sum() + (next_ones < 0).sum())
    texts, next_ones = (np.where(part < 0, np.int32(UNKNOWN), part) for part in (texts, next_ones))
    return User(name, texts.reshape(len(x), length), next_ones, unknown)


def _numbers(text: str) -> np.ndarray:
    """Return the index of each character of a text in CHARACTERS, -1 for any other. [len(text)] int32."""
    known = np.full(128, -1, np.int32)
    known[[ord(character) for character in CHARACTERS]] = np.arange(len(CHARACTERS), dtype=np.int32)
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    return np.where(points < 128, known[np.minimum(points, 127)], np.int32(-1))
