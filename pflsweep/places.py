"""Where what comes with pflsweep lies: conf/, sweeps/ and reports/."""

from pathlib import Path


def shipped(name: str) -> Path:
    """The folder `name` inside the package (a wheel) or beside it (an editable install)."""
    inside = Path(__file__).parent / name
    return inside if inside.is_dir() else inside.parent.parent / name


def own_and_shipped(name: str) -> list[Path]:
    """The user's folder `name`, in the working directory, then pflsweep's: where something is looked for."""
    return [Path.cwd() / name, shipped(name)]
