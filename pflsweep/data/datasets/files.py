"""Where datasets lie, and what is said when they do not."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from pflsweep.errors import UserError


def find_root(value: str | None) -> Path:
    """The data folder: config's data.root, else the environment's PFLSWEEP_DATA, else the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(value or os.environ.get("PFLSWEEP_DATA") or f"{cache}/pflsweep").expanduser().absolute()


def unavailable(name: str, folder: Path, problems: Mapping[str, str | None]) -> UserError:
    """The error of a dataset that is not there, or not as it should be. problems: what each file is, if not good."""
    named = ", ".join(f"{file} is {problem}" for file, problem in problems.items() if problem)
    nothing = all(problem == "missing" for problem in problems.values())
    what = f"not found in {folder}" if nothing else f"{named}. Looked in {folder}"
    return UserError(
        f"dataset={name}: {what}. Either let the program fetch what is missing "
        "(data.download=true), or say where the data are: data.root=FOLDER, or PFLSWEEP_DATA=FOLDER in the "
        "environment."
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
