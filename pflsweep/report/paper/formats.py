"""Numbers as pages, tables and pictures show them."""

import math
import re

from pflsweep.config.keys import as_override, is_number
from pflsweep.report import tables
from pflsweep.report.paper.comparison import Cell
from pflsweep.report.stats import rounded

MINUS = "\N{MINUS SIGN}"
CITATION = re.compile(r"\s*(?:\([^()]*(?:19|20)\d\d[^()]*\)|\[\d+\])$")  # (Li et al., 2020) or [26]


def value(cell: Cell) -> str:
    """Return our mean of a cell, with its std where there is one."""
    mean, std, decimals = cell.value.mean, cell.value.std, cell.metric.decimals
    return number(mean, decimals) + ("" if std is None else f" ± {number(std, decimals)}")


def number(x: float, decimals: int, sign: str = "") -> str:
    """Return a number with so many decimals and a true minus sign. sign: "+" marks positive ones."""
    if math.isnan(x):
        return tables.NONE
    return f"{rounded(x, decimals):{sign}.{decimals}f}".replace("inf", "∞").replace("-", MINUS)


def points(x: float) -> str:
    """Return a difference of accuracies in points."""
    return tables.NONE if math.isnan(x) else f"{number(x, 1)} points"


def in_order(value: object) -> tuple[bool, float, str]:
    """Return the key by which values of a hyperparameter are sorted: numbers by size, then all else by name."""
    return (False, value, "") if is_number(value) else (True, 0.0, as_override(value))


def short(label: str) -> str:
    """Return a row's label without the citation at its end, for pictures and lists."""
    return CITATION.sub("", label)
