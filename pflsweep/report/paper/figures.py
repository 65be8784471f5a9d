"""The figures that go with a reproduced table."""

from pathlib import Path

from pflsweep.report.paper.table import Reproduced


def draw(of: Reproduced, folder: Path) -> dict[str, str]:
    """Saves the figures that a layout asks for as PNG and SVG; file name of each PNG -> what it shows."""
    return {}
