"""Where datasets lie, how files are fetched and checked, and what is said when they are not there."""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pflsweep.util.errors import UserError
from pflsweep.util.resources import user_cache


def find_root(value: str | None) -> Path:
    """The data folder: config's data.root, else the environment's PFLSWEEP_DATA, else the user's cache."""
    return Path(value or os.environ.get("PFLSWEEP_DATA") or user_cache()).expanduser().absolute()


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turns what the disk refuses to a loader into a UserError. Loaders say themselves what is missing or damaged."""
    try:
        yield
    except OSError as error:
        what, why = error.filename or "a file", error.strerror or str(error)
        raise UserError(
            f"dataset={name}: {what} cannot be read ({why}). Make it readable for you, or put the original in its "
            "place; another folder is chosen with data.root=FOLDER or PFLSWEEP_DATA=FOLDER, data of your own with "
            "dataset.path."
        ) from error


def own_path(name: str, value: str | None, folder: bool, group: str = "dataset") -> Path:
    """dataset.path of data of the user's own, or that of another group. Raises UserError where it is not set or not
    there.
    """
    kind = "folder" if folder else "file"
    if not value:
        raise UserError(f"{group}={name} reads data of your own: say where they are, {group}.path={kind.upper()}.")
    path = Path(value).expanduser().absolute()
    if not (path.is_dir() if folder else path.is_file()):
        raise UserError(f"{group}.path is {value}: there is no such {kind}.")
    return path


def unavailable(name: str, folder: Path, problems: Mapping[str, str | None], by_hand: str = "") -> UserError:
    """The error of a dataset that is not there, or not as it should be. problems: what each file is, if not good.
    by_hand: how to come by it where it cannot be downloaded.
    """
    named = ", ".join(f"{file} is {problem}" for file, problem in problems.items() if problem)
    nothing = all(problem == "missing" for problem in problems.values())
    what = f"not found in {folder}" if nothing else f"{named}. Looked in {folder}"
    fetch = by_hand or "let the program fetch what is missing or damaged (data.download=true)"
    return UserError(
        f"dataset={name}: {what}. Either {fetch}, or say where the data are: data.root=FOLDER, or "
        "PFLSWEEP_DATA=FOLDER in the environment."
    )


def download(name: str, folder: Path, fetch: Callable[[], None]) -> None:
    """Run `fetch`, which writes below `folder`. Raises UserError where network or disk do not let it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fetch()
    except (OSError, RuntimeError, EOFError) as error:  # as raised by urllib, torchvision, tarfile
        raise UserError(
            f"dataset={name}: the download into {folder} failed ({type(error).__name__}: {error}). Check the "
            "network and that the folder can be written to, or copy the files there by hand; another folder "
            "is chosen with data.root=FOLDER or PFLSWEEP_DATA=FOLDER."
        ) from error


def download_file(name: str, path: Path, url: str, md5: str) -> None:
    """One file from its only source, checked. Raises UserError."""

    def fetch() -> None:
        from pflsweep.ops.torchvision_compat import torchvision

        torchvision().datasets.utils.download_url(url, str(path.parent), filename=path.name, md5=md5)

    download(name, path.parent, fetch)


def download_archive(name: str, folder: Path, url: str, file: str, md5: str, into: Path | None = None) -> None:
    """An archive from its only source into `folder`, checked, and unpacked there or in `into`. Raises UserError."""

    def fetch() -> None:
        from pflsweep.ops.torchvision_compat import torchvision

        utils = torchvision().datasets.utils
        utils.download_and_extract_archive(url, str(folder), str(into or folder), filename=file, md5=md5)

    download(name, folder, fetch)


def problem(path: Path, md5: str, version: str) -> str | None:
    """What is wrong with a file of which the MD5 is known; None where nothing is."""
    if not path.is_file():
        return "missing"
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    return None if found == md5 else f"damaged or of another version (its MD5 is {found}, that of {version} is {md5})"
