"""Files that are whole or not there: written under a temporary name, then renamed. And who may write to a folder."""

import fcntl
import json
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
import yaml

from pflsweep.errors import UserError

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast where libyaml is there
TEMPORARY = ".tmp"  # what a file's name ends with until it is whole


class Busy(UserError):  # noqa: N818 (a state)
    """Another process has the folder."""


@contextmanager
def claimed(folder: Path, choice: str = "paths.runs") -> Iterator[None]:
    """Holds a folder for this process; the operating system lets go of it when the process dies. What a killed one
    has left half-written there is removed.

    Made where it is missing, and removed again where nothing came to stand in it. Raises Busy where another process
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
            raise Busy(
                f"Another process is training this trial now ({folder}). Wait for it or stop it first."
            ) from error
        except FileNotFoundError:
            pass
        lock.close()  # who held it before has removed the file: a lock on that one is worth nothing


@contextmanager
def writing(folder: Path, choice: str = "paths.runs") -> Iterator[None]:
    """Turns what the disk refuses into a UserError. choice: what chooses the folder."""
    try:
        yield
    except OSError as error:
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


def write_torch(path: Path, content: Any) -> None:
    import torch

    def save(temporary: Path) -> None:
        try:
            torch.save(content, temporary)
        except RuntimeError as error:  # how torch says that the disk is full
            raise OSError(str(error).partition("\n")[0]) from error

    atomic(path, save)


def read_json(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text())
    if not isinstance(content, dict):
        raise ValueError("not an object")
    return content


def read_yaml(path: Path) -> dict[str, Any]:
    content = yaml.load(path.read_text(), LOADER)
    if not isinstance(content, dict):
        raise ValueError("not a mapping")
    return content


def read_npz(path: Path) -> dict[str, np.ndarray]:
    with open(path, "rb") as file, np.load(file) as arrays:
        return dict(arrays)


def read_torch(path: Path) -> Any:
    import torch

    # on the CPU, since it may be another machine's; mapped, since of many clients it may be larger than the memory
    return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
