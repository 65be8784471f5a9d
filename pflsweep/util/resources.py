"""Where files lie: what comes with pflsweep (conf/, sweeps/, reports/), and the user's cache."""

import os
from pathlib import Path


def shipped(name: str) -> Path:
    """The folder `name`, such as reports/paper, inside the package (a wheel) or beside it (an editable install)."""
    package = Path(__file__).parents[1]
    return package / name if (package / name).is_dir() else package.parent / name


def own_and_shipped(name: str) -> list[Path]:
    """The user's folder `name`, in the working directory, then pflsweep's: where something is looked for."""
    return [Path.cwd() / name, shipped(name)]


def user_cache() -> Path:
    """Return the user's cache folder of pflsweep, which need not exist: datasets, and an empty MLflow store."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "pflsweep"
