"""Where what comes with pflsweep lies: conf/, sweeps/ and reports/."""

from pathlib import Path


def shipped(name: str) -> Path:
    """The folder `name`, such as reports/paper, inside the package (a wheel) or beside it (an editable install)."""
    package = Path(__file__).parents[1]
    return package / name if (package / name).is_dir() else package.parent / name


def own_and_shipped(name: str) -> list[Path]:
    """The user's folder `name`, in the working directory, then pflsweep's: where something is looked for."""
    return [Path.cwd() / name, shipped(name)]
