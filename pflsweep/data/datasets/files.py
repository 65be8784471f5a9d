"""Find, download and check the files of datasets, and report what is missing."""

import hashlib
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPException
from pathlib import Path

from pflsweep.util.errors import UserError, nearest
from pflsweep.util.files import locked
from pflsweep.util.resources import user_cache

# What urllib, torchvision and the readers of archives raise where a download breaks or is not an archive
FAILURES = (OSError, RuntimeError, EOFError, HTTPException, tarfile.TarError, zipfile.BadZipFile, zlib.error)


def find_root(value: str | None) -> Path:
    """Return the data folder: data.root of the config, else PFLSWEEP_DATA of the environment, else the user's cache."""
    return Path(value or os.environ.get("PFLSWEEP_DATA") or user_cache()).expanduser().absolute()


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn an OSError of a loader into a UserError. Loaders report missing or damaged files themselves."""
    try:
        yield
    except OSError as error:
        what, why = error.filename or "a file", error.strerror or str(error)
        raise UserError(
            f"dataset={name}: {what} cannot be read ({why}). Make it readable for you, or put the original in its "
            "place; another folder is chosen with data.root=FOLDER or PFLSWEEP_DATA=FOLDER, data of your own with "
            "dataset.path."
        ) from error


@contextmanager
def one_at_a_time(root: Path, name: str) -> Iterator[None]:
    """Wait until no other process makes what `name` is, such as a download, in this data folder.

    It would find files that are half written, and write into them. Where nothing can be locked, such as in a read-only
    folder, nothing waits.
    """
    with ExitStack() as stack:
        with suppress(OSError):
            stack.enter_context(locked(root / "prepared" / f"{name}.lock"))
        yield


def own_path(name: str, value: str | None, folder: bool, group: str = "dataset") -> Path:
    """Return the path of the user's own data: dataset.path, or the `path` of another config group.

    name: the option of the group. folder: True for a folder, False for a file. Raises UserError if the path is not
    set or does not exist.
    """
    kind = "folder" if folder else "file"
    if not value:
        raise UserError(f"{group}={name} reads data of your own: say where they are, {group}.path={kind.upper()}.")
    path = Path(value).expanduser().absolute()
    if not (path.is_dir() if folder else path.is_file()):
        if path.is_file() if folder else path.is_dir():
            other = "file" if folder else "folder"
            raise UserError(f"{group}.path is {value}, which is a {other}: {group}={name} reads a {kind}.")
        # No error where the folder is missing or may not be read
        there = sorted(each.name for each in path.parent.glob("*"))
        raise UserError(
            f"{group}.path is {value}: there is no such {kind} in {path.parent}.{nearest(path.name, there)}"
        )
    return path


def unavailable(name: str, folder: Path, problems: Mapping[str, str | None], by_hand: str = "") -> UserError:
    """Return the UserError for a dataset whose files are missing or damaged.

    problems: what is wrong with each file, None if it is good. by_hand: how to obtain a dataset that cannot be
    downloaded.
    """
    named = ", ".join(f"{file} is {problem}" for file, problem in problems.items() if problem)
    nothing = all(problem == "missing" for problem in problems.values())
    what = f"not found in {folder}" if nothing else f"{named}. Looked in {folder}"
    fetch = by_hand or "let the program fetch what is missing or damaged (data.download=true)"
    return UserError(
        f"dataset={name}: {what}. Either {fetch}, or say where the data are: data.root=FOLDER, or "
        "PFLSWEEP_DATA=FOLDER in the environment."
    )


def require_files(
    name: str,
    folder: Path,
    md5s: Mapping[str, str],
    fetch: Callable[[list[str]], None] | None = None,
    by_hand: str = "",
    version: str = "the original",
) -> None:
    """Raise UserError unless the files of a folder, by name, have these MD5s.

    fetch: downloads the named files, which are missing or damaged; None: nothing is downloaded. by_hand: as for
    `unavailable`. version: what has these MD5s, for the message.
    """

    def checked() -> dict[str, str | None]:
        return {file: problem(folder / file, md5, version) for file, md5 in md5s.items()}

    problems = checked()
    if fetch is not None and any(problems.values()):
        fetch([file for file, why in problems.items() if why])
        problems = checked()
    if any(problems.values()):
        raise unavailable(name, folder, problems, by_hand)


def download(name: str, folder: Path, fetch: Callable[[], None]) -> None:
    """Run `fetch`, which writes below `folder`. Raises UserError on an error of the network or the disk."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fetch()
    except FAILURES as error:
        raise UserError(
            f"dataset={name}: the download into {folder} failed ({type(error).__name__}: {error}). Check the "
            "network and that the folder can be written to, or copy the files there by hand; another folder "
            "is chosen with data.root=FOLDER or PFLSWEEP_DATA=FOLDER."
        ) from error


def download_file(name: str, path: Path, url: str, md5: str) -> None:
    """Download a file and check its MD5. Raises UserError if that fails."""

    def fetch() -> None:
        from pflsweep.ops.torchvision_compat import torchvision

        torchvision().datasets.utils.download_url(url, str(path.parent), filename=path.name, md5=md5)

    download(name, path.parent, fetch)


def downloads(name: str, folder: Path, md5s: Mapping[str, str], urls: Mapping[str, str]) -> Callable[[list[str]], None]:
    """Return a `fetch` for `require_files` that downloads each file of a folder from a URL of its own."""

    def fetch(wrong: list[str]) -> None:
        for file in wrong:
            download_file(name, folder / file, urls[file], md5s[file])

    return fetch


def download_archive(name: str, folder: Path, url: str, file: str, md5: str, into: Path | None = None) -> None:
    """Download an archive `file` into `folder`, check its MD5, and unpack it there or in `into`.

    Raises UserError if that fails.
    """

    def fetch() -> None:
        from pflsweep.ops.torchvision_compat import torchvision

        utils = torchvision().datasets.utils
        utils.download_and_extract_archive(url, str(folder), str(into or folder), filename=file, md5=md5)

    download(name, folder, fetch)


def problem(path: Path, md5: str, version: str) -> str | None:
    """Return what is wrong with a file of known MD5, or None. version: what has this MD5, for the message."""
    if not path.is_file():
        return "missing"
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    return None if found == md5 else f"damaged or of another version (its MD5 is {found}, that of {version} is {md5})"
