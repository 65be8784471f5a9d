"""Atomic writes (a temporary file, then a rename), folder locks, and errors of a full disk."""

import errno
import fcntl
import io
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import yaml

from pflsweep.util.errors import UserError

# Imported where they are used: Tab waits for what this module imports.
if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

# The C loader is ten times as fast; it needs libyaml.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


# The suffix of a file that is not yet complete.
TEMPORARY = ".tmp"


# How the system, SQLite, PostgreSQL and PyTorch report a disk that is full or read-only.
FULL_ERRNO = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
FULL_TEXT = re.compile(
    "no space left|disk is full|DiskFull|read-?only (database|file system)|quota exceeded|file too large"
    # PyTorch's words where it could not write all
    "|file write failed|unexpected pos",
    re.IGNORECASE,
)
# SQLite says these where the files beside its database cannot grow, but also where its folder was deleted.
SQLITE_TEXT = re.compile("disk i/o error|unable to open database file", re.IGNORECASE)
# SQLITE_TEXT means a full disk only where fewer bytes than these are free.
LITTLE = 2**20


class Locked(UserError):  # noqa: N818 (a state)
    """Another process holds the lock of the folder."""


class DiskFull(UserError):  # noqa: N818 (a state)
    """A disk is full or read-only. This is never retried, and does not count as the failure of a trial."""


def as_disk_full(
    error: BaseException | None, place: Path | str, choice: str = "paths.runs, tracking.uri, workers.storage"
) -> DiskFull | None:
    """Return a DiskFull for the user if `error` or one of its causes says that a disk is full or read-only, else None.

    place: the folder that was written to, or the address of a server. choice: the config keys or the argument that
    choose it.
    """
    there = existing(place) if isinstance(place, Path) else None
    while error is not None and not isinstance(error, DiskFull):
        little = there is not None and shutil.disk_usage(there).free < LITTLE
        found = FULL_TEXT.search(str(error)) or (SQLITE_TEXT.search(str(error)) if little else None)
        if getattr(error, "errno", None) in FULL_ERRNO or found:
            said = os.strerror(error.errno) if found is None else found[0]  # type: ignore[attr-defined]
            read_only = re.match("read-?only file", said, re.IGNORECASE)  # a database is read-only on a full disk too
            room = "" if there is None or read_only else f"; {free(there)} of space are free there"
            return DiskFull(
                f"{place} cannot be written to ({said}{room}). {'Choose' if read_only else 'Make room, or choose'} "
                f"another folder ({choice}). What was written stays; the same command goes on from there."
            )
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return error


def free(folder: Path) -> str:
    """Return the free space of a folder's disk as text, such as "12.3 MB". The folder need not exist."""
    return f"{shutil.disk_usage(existing(folder)).free / 1e6:,.1f} MB"


def require_readable(folder: Path) -> None:
    """Raise PermissionError if a folder is there and cannot be read, in which a search would find nothing."""
    if os.path.isdir(folder) and not os.access(folder, os.R_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


def existing(folder: Path) -> Path:
    """Return the folder, or its nearest parent that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))


@contextmanager
def locked_folder(folder: Path, choice: str = "paths.runs") -> Iterator[None]:
    """Hold the exclusive lock of a folder, and remove the incomplete files that a killed process left in it.

    The operating system releases the lock when the process dies. A missing folder is created, and removed again if it
    stays empty. choice: the config key that chooses the folder, for messages. Raises Locked if another process
    holds the lock, UserError where the folder cannot be written to.
    """
    # Unlike Path.exists, os.path.exists does not raise where a name is too long, which `locked` then does
    made = [path for path in (folder, *folder.parents) if not os.path.exists(path)]
    with ExitStack() as held:
        with writing(folder, choice):
            try:
                held.enter_context(locked(folder / "lock", wait=False))
            except BlockingIOError as error:
                raise Locked(
                    f"Another process is training this trial now ({folder}). Wait for it or stop it first."
                ) from error
        try:
            with writing(folder, choice):
                for left in folder.glob(f".*{TEMPORARY}"):
                    left.unlink()
            yield
        finally:
            with suppress(OSError):  # another process may have put files into one of these folders meanwhile
                if made and os.listdir(folder) == ["lock"]:
                    (folder / "lock").unlink()
                    for path in made:
                        path.rmdir()


# Not the library filelock, which was tried (4.2). Where the previous holder removes the file meanwhile, a lock that may
# not wait fails as if somebody held it. Where a file system has no flock, it makes a file that outlives its process.
@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[None]:
    """Hold the exclusive lock of a file, which is created where it is missing, or of a folder that exists.

    The operating system releases the lock when the process dies. wait: for a process that holds it; otherwise raises
    BlockingIOError. Raises OSError if the file cannot be written to.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:  # its previous holder has removed the folder
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            # Where the previous holder has removed the file, others would lock a new one.
            try:
                is_there = os.path.samestat(os.fstat(descriptor), os.stat(path))
            except FileNotFoundError:
                is_there = False
            if is_there:
                try:
                    yield
                finally:
                    # Forks have a copy of the descriptor, so that closing ours alone would not release the lock
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
                return
        finally:
            os.close(descriptor)


@contextmanager
def writing(folder: Path, choice: str = "paths.runs") -> Iterator[None]:
    """Turn an OSError into a UserError, or DiskFull.

    choice: the config key or the argument that chooses the folder, for messages.
    """
    try:
        yield
    except OSError as error:
        if no_room := as_disk_full(error, folder, choice):
            raise no_room from error
        why = error.strerror or str(error)
        if error.filename and Path(error.filename) != folder:
            why = f"{why}: {error.filename}"
        raise UserError(f"{folder} cannot be written to ({why}). Choose another folder: {choice}.") from error


def atomic(path: Path, save: Callable[[Path], Any]) -> None:
    """Write a file atomically: `save` writes a temporary file, which replaces `path` once all of it is on the disk.

    Of two processes that write the same path, the last one wins.
    """
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
    """Replace several files of a folder, by name and content. All are on the disk before the first is renamed.

    The last one is removed first and renamed last, so where it exists all files are of the same call.
    """
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
    """Write a text file in UTF-8, whatever the locale's encoding."""
    atomic(path, lambda p: p.write_text(text, "utf-8"))


def write_json(path: Path, content: dict[str, Any]) -> None:
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_parquet(path: Path, table: "pd.DataFrame") -> None:
    """Write a table without its index, with the same values in half the bytes that pandas' defaults take."""
    # Bytes of the same place of all floats lie together, which compresses; a dictionary of losses only adds to them
    floats = [name for name in table.columns if table[name].dtype.kind == "f"]
    encoding = dict.fromkeys(floats, "BYTE_STREAM_SPLIT")
    others = [name for name in table.columns if name not in floats]

    def write(temporary: Path) -> None:
        table.to_parquet(temporary, index=False, compression="zstd", use_dictionary=others, column_encoding=encoding)

    atomic(path, write)


def write_npz(path: Path, arrays: "dict[str, np.ndarray]") -> None:
    import numpy as np

    def save(temporary: Path) -> None:
        with open(temporary, "wb") as file:  # given a name, savez would append .npz
            np.savez(file, **arrays)  # type: ignore[arg-type]

    atomic(path, save)


class Readable(Protocol):
    """A file that can be read, on the disk or in an archive."""

    def read_bytes(self) -> bytes: ...


def source(path: Readable) -> Path | io.BytesIO:
    """Return what a library can read a file from: its path on the disk, or its content if it is in an archive."""
    return path if isinstance(path, Path) else io.BytesIO(path.read_bytes())


def read_json(path: Readable) -> dict[str, Any]:
    content = json.loads(path.read_bytes())
    if not isinstance(content, dict):
        raise ValueError("not an object")
    return content


def without_duplicate_keys(base: Any) -> Any:
    """Return a loader of YAML that raises where a key stands twice in a mapping. base: the loader that it refines.

    Keys are also duplicates where they are written otherwise: 1 and 1.0 would be one entry, and 1 and "1" one name.
    """

    class Loader(base):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
            seen: dict[Any, str] = {}
            for key_node, _ in node.value:
                if isinstance(key_node, yaml.ScalarNode) and not key_node.tag.endswith(":merge"):
                    key, written = self.construct_object(key_node), key_node.value
                    before = seen.get(key, seen.get(str(key)))
                    if before is not None:
                        said = f"found duplicate key {written}" + f", the same as {before}" * (before != written)
                        raise yaml.constructor.ConstructorError(None, None, said, key_node.start_mark)
                    seen |= {key: written, str(key): written}
            return super().construct_mapping(node, deep=deep)

    return Loader


OF_PEOPLE = without_duplicate_keys(LOADER)


def read_yaml(path: Readable) -> dict[str, Any]:
    """Return the mapping of a YAML file that a person has written. Raises yaml.YAMLError or ValueError."""
    return parse_yaml(path.read_bytes(), OF_PEOPLE)


def parse_yaml(text: bytes, loader: Any = LOADER) -> dict[str, Any]:
    """Return the mapping that a YAML text is. Raises ValueError if it is something else."""
    content = yaml.load(text, loader)
    if not isinstance(content, dict):
        raise ValueError("not a mapping")
    return content


def write_yaml(path: Path, content: dict[str, Any]) -> None:
    """Write a YAML file in which no value is an alias of another."""
    write_text(path, yaml.dump(content, Dumper=_Dumper, sort_keys=False))
