"""Correct the artifact locations of a store in a file whose folder was moved or copied.

MLflow keeps the location of an experiment's artifacts as an absolute path from when the experiment is created. After
`mv proj proj2` it would go on writing artifacts to proj/mlruns, which it creates anew without a word.
"""

import hashlib
import logging
import os
import sqlite3
from contextlib import closing
from pathlib import Path

from pflsweep.util.once import warn_once

FOLDER = "mlruns"  # the folder beside a store in which the artifacts of its experiments are
FILE_NAME = 255  # bytes of a file's name that a file system takes
# Columns that begin with the location of an experiment. MLflow has no call that changes them.
COLUMNS = (("experiments", "artifact_location"), ("runs", "artifact_uri"), ("logged_models", "artifact_location"))

log = logging.getLogger(__name__)


def folder_of(experiment: str) -> str:
    """Return the folder of an experiment's artifacts. Names may have slashes, or be too long for a file system."""
    name = experiment.replace("%", "%25").replace("/", "%2F")
    if len(name.encode()) > FILE_NAME:
        digest = hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
        name = name.encode()[: FILE_NAME - len(digest) - 1].decode(errors="ignore") + f"-{digest}"
    return name if name.strip(".") else name.replace(".", "%2E")


def correct(file: Path) -> None:
    """Let the experiments of a store whose folder was moved have their artifacts beside the store again, and say it.

    Locations that the user has chosen elsewhere stay: only folders are corrected that have the name that `folder_of`,
    or MLflow itself, gives them below a folder `mlruns`. Where both folders exist and it is open which one is meant, a
    warning says what to do.
    """
    used = set()
    with closing(sqlite3.connect(file, timeout=30)) as connection:
        known = connection.execute("select experiment_id, name, artifact_location from experiments").fetchall()
        wrong = []
        for number, name, location in known:
            place = _place(location, {folder_of(name), str(number)})
            if place is not None and _has_moved(place, file):
                wrong.append((number, location, place))
        if not wrong:
            return
        # One transaction, so that a run never has another location than its experiment
        connection.execute("begin immediate")
        for number, location, place in wrong:
            now = (file.parent / FOLDER / place.name).as_uri()
            for table, column in COLUMNS:
                changed = connection.execute(
                    f"update {table} set {column} = ? || substr({column}, ?) "
                    f"where experiment_id = ? and ({column} = ? or substr({column}, 1, ?) = ?)",
                    (now, len(location) + 1, number, location, len(location) + 1, f"{location}/"),
                ).rowcount
                if table == "runs" and changed:
                    used.add(place.parent)
        connection.commit()
    if used:
        log.warning(
            "The MLflow store %s was moved or copied: its artifacts are in %s now, no longer in %s.",
            file, file.parent / FOLDER, ", ".join(sorted(map(str, used))),
        )  # fmt: skip


def _place(location: str | None, names: set[str]) -> Path | None:
    """Return the local folder of an artifact location; None for others and for those that a user has chosen.

    names: what pflsweep or MLflow call the experiment's folder.
    """
    from mlflow.utils.file_utils import local_file_uri_to_path

    if not location or not location.startswith(("file:", "/")):
        return None
    place = Path(local_file_uri_to_path(location))
    return place if place.parent.name == FOLDER and place.name in names else None


def _has_moved(place: Path, file: Path) -> bool:
    """Return whether an experiment's folder was beside the store when it was created, and is not any more.

    Warn where that is open.
    """
    before, now = place.parents[1], file.parent / FOLDER / place.name
    # Also by another path, such as a link
    if before == file.parent or _same(before, file.parent):
        return False
    # A copied project leaves the store there that this one is a copy of
    copied = os.path.exists(before / file.name) and not _same(before / file.name, file)
    if copied or not os.path.exists(before) or (now.exists() and not os.path.exists(place)):
        return True
    if now.exists():
        warn_once(
            __name__,
            f"The MLflow store {file} has its artifacts in {place}, although there is {now}. If the store was moved, "
            f"move what is in {place} there, too, and remove that folder: the next command then corrects the store.",
        )
    return False


def _same(one: Path, other: Path) -> bool:
    """Return whether two paths are of the same file or folder."""
    return os.path.exists(one) and os.path.samefile(one, other)
