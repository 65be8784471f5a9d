"""Paths of what is shipped with pflsweep (conf/, sweeps/, reports/) and of the user's cache."""

import os
from pathlib import Path


def shipped(name: str) -> Path:
    """Return the shipped folder `name`, such as reports/paper.

    It is inside the package in a wheel, and beside it in an editable install.
    """
    package = Path(__file__).parents[1]
    return package / name if (package / name).is_dir() else package.parent / name


def own_and_shipped(name: str) -> list[Path]:
    """Return the folders in which `name` is looked up: the working directory's first, then the shipped one."""
    return [Path.cwd() / name, shipped(name)]


def yaml_names(folder: str) -> list[str]:
    """Return the names of all YAML files below a folder, the working directory's first: `pgfed/table1` in sweeps."""
    found = {
        file.relative_to(root).with_suffix("").as_posix(): None
        for root in own_and_shipped(folder)
        for file in sorted(root.rglob("*.yaml"))
    }
    return list(found)


def sweep_names() -> list[str]:
    """Return the sweeps that can be run by name; files that they include are none."""
    apart = ("scale", "space", "reading")
    return [n for n in yaml_names("sweeps") if n.split("/")[0] not in apart and "common" not in n.split("/")]


def user_cache() -> Path:
    """Return the cache folder of pflsweep, for datasets and an empty MLflow store. It need not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "pflsweep"
