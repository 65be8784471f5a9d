"""Files that are whole or not there: written under a temporary name, then renamed. And who may write to a folder."""

import errno
import fcntl
import io
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import pandas as pd
import yaml

from pflsweep.util.errors import UserError

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast where libyaml is there
TEMPORARY = ".tmp"  # what a file's name ends with until it is whole


# What a disk that takes nothing more is called by the system, SQLite, PostgreSQL and PyTorch
FULL_ERRNO = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
FULL_TEXT = re.compile(
    "no space left|disk is full|DiskFull|read-?only (database|file system)|quota exceeded|file write failed",
    re.IGNORECASE,
)
# SQLite says these where the files beside its database cannot grow, but also where its folder was deleted
SQLITE_TEXT = re.compile("disk i/o error|unable to open database file", re.IGNORECASE)
LITTLE = 2**20  # bytes of free space under which SQLITE_TEXT means that the disk is full


class Locked(UserError):  # noqa: N818 (a state)
    """Another process has the folder."""


class DiskFull(UserError):  # noqa: N818 (a state)
    """A disk that is full or read-only. It is never waited for, and no trial has failed by it."""


def full(error: BaseException | None, place: Path | str) -> DiskFull | None:
    """Return the error for the user if `error`, or what it came from, says that a disk is full or read-only. place: the
    folder that was written to, or the address of a server.
    """
    there = existing(place) if isinstance(place, Path) else None
    while error is not None and not isinstance(error, DiskFull):
        little = there is not None and shutil.disk_usage(there).free < LITTLE
        found = FULL_TEXT.search(str(error)) or (SQLITE_TEXT.search(str(error)) if little else None)
        if getattr(error, "errno", None) in FULL_ERRNO or found:
            said = os.strerror(error.errno) if found is None else found[0]  # type: ignore[attr-defined]
            room = "" if there is None else f"; {free(there)} of space are free there"
            return DiskFull(
                f"{place} cannot be written to ({said}{room}). Make room, or choose another folder (paths.runs, "
                "tracking.uri, workers.storage). Nothing that was written is lost: the same command goes on."
            )
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return error


def free(folder: Path) -> str:
    """Return how much space a folder's disk has left, for messages; of a folder that is missing, its parent's."""
    return f"{shutil.disk_usage(existing(folder)).free / 1e6:,.1f} MB"


def existing(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


@contextmanager
def claimed(folder: Path, choice: str = "paths.runs") -> Iterator[None]:
    """Holds a folder for this process; the operating system lets go of it when the process dies. What a killed one
    has left half-written there is removed.

    Made where it is missing, and removed again where nothing came to stand in it. Raises Locked where another process
    trains there, UserError where the folder cannot be written to.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    with writing(folder, choice):
        lock = _locked(folder)
    with lock:
        try:
            with writing(folder, choice):
                for left in folder.glob(f".*{TEMPORARY}"):
                    left.unlink()
            yield
        finally:
            with suppress(OSError):  # a folder further up that somebody else uses by now
                if made and os.listdir(folder) == ["lock"]:
                    (folder / "lock").unlink()
                    for path in made:
                        path.rmdir()


def _locked(folder: Path) -> IO[str]:
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock = open(folder / "lock", "w")  # noqa: SIM115 (closed by the caller: the lock lives as long as it is open)
        except FileNotFoundError:  # who held it before has removed the folder
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock.fileno()), os.stat(lock.name)):
                return lock
        except BlockingIOError as error:
            lock.close()
            raise Locked(
                f"Another process is training this trial now ({folder}). Wait for it or stop it first."
            ) from error
        except FileNotFoundError:
            pass
        lock.close()  # who held it before has removed the file: a lock on that one is worth nothing


@contextmanager
def writing(folder: Path, choice: str = "paths.runs") -> Iterator[None]:
    """Turn what the disk refuses into a UserError, DiskFull where it has no room. choice: what chooses the folder."""
    try:
        yield
    except OSError as error:
        if no_room := full(error, folder):
            raise no_room from error
        why = error.strerror or str(error)
        raise UserError(f"{folder} cannot be written to ({why}). Choose another folder: {choice}.") from error


def atomic(path: Path, save: Callable[[Path], Any]) -> None:
    """`save` writes a file, which takes its place when all of it is on the disk. Of two processes the last one wins."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}{TEMPORARY}")
    try:
        save(temporary)
        _synced(temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _synced(path.parent)


def replace_all(folder: Path, files: dict[str, bytes]) -> None:
    """All are on the disk before the first takes its place; the last one stands there when all others do."""
    *_, last = files
    staged = {name: folder / f".{name}.{uuid.uuid4().hex[:8]}{TEMPORARY}" for name in files}
    try:
        for name, path in staged.items():
            path.write_bytes(files[name])
            _synced(path)
        (folder / last).unlink(missing_ok=True)
        for name, path in staged.items():
            os.replace(path, folder / name)
    except BaseException:
        for path in staged.values():
            path.unlink(missing_ok=True)
        raise
    _synced(folder)


def _synced(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    atomic(path, lambda p: p.write_text(text))


def write_json(path: Path, content: dict[str, Any]) -> None:
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_parquet(path: Path, table: pd.DataFrame) -> None:
    atomic(path, lambda p: table.to_parquet(p, index=False))


def write_npz(path: Path, arrays: dict[str, np.ndarray]) -> None:
    def save(temporary: Path) -> None:
        with open(temporary, "wb") as file:  # savez would add .npz to a name
            np.savez(file, **arrays)  # type: ignore[arg-type]

    atomic(path, save)


class Readable(Protocol):
    """A file on the disk, or in an archive."""

    def read_bytes(self) -> bytes: ...
    def read_text(self) -> str: ...


def source(path: Readable) -> Path | io.BytesIO:
    """Return what libraries read a file from: its path, or all it holds where it lies in an archive."""
    return path if isinstance(path, Path) else io.BytesIO(path.read_bytes())


def read_json(path: Readable) -> dict[str, Any]:
    content = json.loads(path.read_text())
    if not isinstance(content, dict):
        raise ValueError("not an object")
    return content


def read_yaml(path: Readable) -> dict[str, Any]:
    content = yaml.load(path.read_text(), LOADER)
    if not isinstance(content, dict):
        raise ValueError("not a mapping")
    return content


def read_npz(path: Readable) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
        return dict(arrays)
