"""Draw our numbers against the published ones, one point per cell, one colour per reading: a page's first picture."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pflsweep.report import style
from pflsweep.report.paper.agreement import NEAR, POINTS
from pflsweep.report.paper.comparison import Cell, Comparison, title
from pflsweep.report.paper.formats import short
from pflsweep.report.paper.published import Column
from pflsweep.report.style import Picture

if TYPE_CHECKING:
    from matplotlib.text import Text

FEWEST = 3  # numbers of a unit that say more in a picture than in the table
NAMED = 6  # points with a name: of each row the one that is furthest from the published numbers
ACCURACY = "accuracy (%)"
Box = tuple[float, float, float, float]
SHOWS = "Our numbers against the published ones: a filled point agrees, and on the line both are the same"


class PlottedCell(NamedTuple):
    """A cell whose own and published number are both finite; accuracies are in percent."""

    cell: Cell
    column: Column
    printed: float
    ours: float


def plotted_cells(of: Comparison) -> dict[str, list[PlottedCell]]:
    """Return the cells that can be drawn, by the unit of their axes."""
    found: dict[str, list[PlottedCell]] = {}
    for cell in of.paper_cells:
        printed, ours, unit = cell.line.value, cell.value.mean, cell.line.unit
        column = of.layout.column_of(cell.line)
        if column is None or printed is None or not (math.isfinite(printed) and math.isfinite(ours)):
            continue
        factor, name = (1 / POINTS[unit], ACCURACY) if unit in POINTS else (1.0, f"{cell.line.metric} ({unit})")
        found.setdefault(name, []).append(PlottedCell(cell, column, factor * printed, factor * ours))
    return found


def picture(readings: Mapping[str, Comparison]) -> Picture | None:
    """Return the picture, one panel for each unit of at least FEWEST numbers; None if there is none."""
    by_unit: dict[str, dict[str, list[PlottedCell]]] = {}
    for reading, of in readings.items():
        for unit, drawn in plotted_cells(of).items():
            by_unit.setdefault(unit, {})[reading] = drawn
    by_unit = {unit: found for unit, found in by_unit.items() if sum(map(len, found.values())) >= FEWEST}
    if not by_unit:
        return None
    with style.panels(len(by_unit), (4.6, 4.2)) as (made, all_axes):
        for axes, (unit, found) in zip(all_axes, by_unit.items(), strict=True):
            _panel(axes, unit, found, next(iter(readings.values())))
    return Picture("agreement", SHOWS, made)


def _panel(axes: Any, unit: str, readings: dict[str, list[PlottedCell]], of: Comparison) -> None:
    every = [point for found in readings.values() for point in found]
    numbers = [number for point in every for number in (point.printed, point.ours)]
    low, high = _limits(numbers, unit)
    axes.plot([low, high], [low, high], color="#777777", linewidth=1, zorder=1)
    if unit == ACCURACY:
        near = f"within {NEAR} points"
        axes.fill_between([low, high], [low - NEAR, high - NEAR], [low + NEAR, high + NEAR],
                          color="#e3e3e3", linewidth=0, zorder=0, label=near)  # fmt: skip
    for colour, (reading, found) in zip(style.PALETTE, readings.items(), strict=False):
        agree, apart = ([point for point in found if bool(point.cell.agrees) is wanted] for wanted in (True, False))
        for name, fill, drawn in (("agrees", colour, agree), ("apart", "white", apart)):
            look = {"s": 30, "color": fill, "edgecolor": colour, "linewidth": 1.3, "zorder": 3, "clip_on": False}
            at = ([point.printed for point in drawn], [point.ours for point in drawn])
            axes.scatter(*at, **look, gid=f"against print {reading} {name}")
        axes.scatter([], [], s=30, color=colour, label=f"{reading}: {len(agree)} of {len(found)} agree (filled)")
    axes.set(xlabel=f"printed {unit}", ylabel=f"our {unit}", xlim=(low, high), ylim=(low, high))
    axes.set_aspect("equal", adjustable="box")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.02), fontsize=8.5, borderaxespad=0, handletextpad=0.4)
    _name(axes, every, of, low, high - low)


def _limits(numbers: list[float], unit: str) -> tuple[float, float]:
    """Return both axes' ends: all numbers with a margin, for accuracies inside 0 and 100."""
    margin = 0.06 * (max(numbers) - min(numbers)) or 1.0
    low, high = min(numbers) - margin, max(numbers) + margin
    return (max(low, 0.0), min(high, 100.0)) if unit == ACCURACY else (low, high)


def _name(axes: Any, every: list[PlottedCell], of: Comparison, low: float, span: float) -> None:
    """Write beside the furthest points what they are, each row once, without overlaps. low: both axes' lower end."""
    furthest: dict[int, PlottedCell] = {}
    for point in sorted(every, key=lambda point: -abs(point.ours - point.printed)):
        if not point.cell.agrees:
            furthest.setdefault(point.cell.line.row, point)
    named = list(furthest.values())[:NAMED]
    columns, groups = {point.column for point in every}, {point.column.group for point in every}
    dots = [_box(point.printed, point.ours, 0.02 * span, 0.03 * span) for point in every]
    names: list[Text] = []
    for point in named:
        head = title(point.column) if len(groups) > 1 else point.column.header
        column = head if len(columns) > 1 else ""
        text = ", ".join(filter(None, [short(of.layout.rows[point.cell.line.row]), column]))
        names.append(axes.text(point.printed, point.ours, text, fontsize=8, va="center", color="#444444", zorder=4))
    # Letters have a size in the units of the axes only in a layout, and names beside the axes change the layout
    for _ in range(2):
        axes.figure.draw_without_rendering()
        taken: list[Box] = []
        for point, name in zip(named, names, strict=True):
            size = name.get_window_extent().transformed(axes.transData.inverted()).size
            others = [dot for other, dot in zip(every, dots, strict=True) if other is not point]
            x, y, align = _place(point.printed, point.ours, *size, low, others, taken)
            name.set(x=x, y=y, ha=align)


def _place(
    x: float, y: float, width: float, height: float, low: float, dots: list[Box], names: list[Box]
) -> tuple[float, float, str]:
    """Return where the name of a point (x, y), printed and ours, hides no other name and the fewest points, and add its
    box to the names.

    dots, names: boxes of the other points, and of the names so far. It does not end at another point, whose name it
    would seem to be. It stands beside its point rather than higher or lower, and rather away from the line, on which
    the points that agree lie. It does not cross the axes, which begin at `low` and have their numbers there.
    """
    out = 0.6 * height
    sides = [(x + out, y, "left", x + out + width / 2), (x - out, y, "right", x - out - width / 2)]
    if y > x:
        sides.reverse()
    steps = [(at, y + step * height, align, middle) for step in (0.8, -0.8) for at, _, align, middle in sides]
    sides += [*steps, (x, y + 1.1 * height, "center", x), (x, y - 1.1 * height, "center", x)]
    boxes = [_box(middle, at, width, height) for _, at, _, middle in sides]
    hidden = [
        (
            min(box[0], box[2]) < low,
            sum(_meet(box, name) for name in names),
            sum(_meet((box[0] - out, box[1] + out, *box[2:]), _middle(dot)) for dot in dots),
            sum(_meet(box, dot) for dot in dots),
        )
        for box in boxes
    ]
    best = hidden.index(min(hidden))
    names.append(boxes[best])
    return sides[best][:3]


def _box(x: float, y: float, width: float, height: float) -> Box:
    """Return the box around a middle: left, right, bottom, top."""
    return x - width / 2, x + width / 2, y - height / 2, y + height / 2


def _middle(box: Box) -> Box:
    """Return the middle of a box, as a box without width and height."""
    return _box((box[0] + box[1]) / 2, (box[2] + box[3]) / 2, 0, 0)


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[1] and other[0] < one[1] and one[2] < other[3] and other[2] < one[3]
