"""Draw our numbers against the published ones, one point per cell, one colour per reading: a page's first picture."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pflsweep.report import style
from pflsweep.report.paper.agreement import NEAR, POINTS
from pflsweep.report.paper.comparison import Cell, Comparison, title
from pflsweep.report.paper.formats import short
from pflsweep.report.paper.published import Column
from pflsweep.report.style import Picture

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


def plotted_cells(comparison: Comparison) -> dict[str, list[PlottedCell]]:
    """Return the cells that can be drawn, by the unit of their axes."""
    found: dict[str, list[PlottedCell]] = {}
    for cell in comparison.paper_cells:
        printed, ours, unit = cell.printed.value, cell.value.mean, cell.printed.unit
        metric = cell.printed.metric.replace("_", " ")
        column = comparison.layout.column_of(cell.printed)
        if column is None or printed is None or not (math.isfinite(printed) and math.isfinite(ours)):
            continue
        factor, name = (1 / POINTS[unit], ACCURACY) if unit in POINTS else (1.0, f"{metric} ({unit})")
        found.setdefault(name, []).append(PlottedCell(cell, column, factor * printed, factor * ours))
    return found


def picture(readings: Mapping[str, Comparison]) -> Picture | None:
    """Return the picture, one panel for each unit of at least FEWEST numbers; None if there is none."""
    by_unit: dict[str, dict[str, list[PlottedCell]]] = {}
    for reading, comparison in readings.items():
        for unit, drawn in plotted_cells(comparison).items():
            by_unit.setdefault(unit, {})[reading] = drawn
    by_unit = {unit: found for unit, found in by_unit.items() if sum(map(len, found.values())) >= FEWEST}
    if not by_unit:
        return None
    with style.panels(len(by_unit), (4.6, 4.2)) as (made, all_axes):
        for axes, (unit, found) in zip(all_axes, by_unit.items(), strict=True):
            _panel(axes, unit, found)
        made.draw_without_rendering()
        for axes, found in zip(all_axes, by_unit.values(), strict=True):
            _name(axes, [point for points in found.values() for point in points], next(iter(readings.values())))
        if len(by_unit) == 1:  # without the room that no name has needed; axes of several panels would move
            ends = [name.get_window_extent().x1 / made.dpi for name in all_axes[0].texts]
            made.set_figwidth(max(made.get_tightbbox().x1, *ends) + 0.15)
    return Picture("agreement", SHOWS, made)


def _panel(axes: Any, unit: str, readings: dict[str, list[PlottedCell]]) -> None:
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
    axes.set(xlabel=f"published {unit}", ylabel=f"our {unit}", xlim=(low, high), ylim=(low, high))
    axes.set_aspect("equal", adjustable="box", anchor="W")  # names have the room at the right
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.02), fontsize=8.5, borderaxespad=0, handletextpad=0.4)


def _limits(numbers: list[float], unit: str) -> tuple[float, float]:
    """Return both axes' ends: all numbers with a margin, for accuracies inside 0 and 100."""
    margin = 0.06 * (max(numbers) - min(numbers)) or 1.0
    low, high = min(numbers) - margin, max(numbers) + margin
    return (max(low, 0.0), min(high, 100.0)) if unit == ACCURACY else (low, high)


def _name(axes: Any, every: list[PlottedCell], comparison: Comparison) -> None:
    """Write beside the furthest points what they are, each row once. The figure has to be laid out: letters have a size
    in the units of the axes only then. Names change no layout.
    """
    furthest: dict[int, PlottedCell] = {}
    for point in sorted(every, key=lambda point: -abs(point.ours - point.printed)):
        if not point.cell.agrees:
            furthest.setdefault(point.cell.printed.row, point)
    columns, groups = {point.column for point in every}, {point.column.group for point in every}
    room = _room(axes)
    span = axes.get_xlim()[1] - axes.get_xlim()[0]
    dots = [_box(point.printed, point.ours, 0.02 * span, 0.03 * span) for point in every]
    names: list[Box] = []
    lines: list[Box] = []
    for point in list(furthest.values())[:NAMED]:
        head = title(point.column) if len(groups) > 1 else point.column.header
        column = head if len(columns) > 1 else ""
        text = ", ".join(filter(None, [short(comparison.layout.rows[point.cell.printed.row]), column]))
        at = (point.printed, point.ours)
        look = {"fontsize": 8, "ha": "center", "va": "center", "color": "#444444", "zorder": 4, "in_layout": False}
        name = axes.text(*at, text, **look)
        width, height = name.get_window_extent().transformed(axes.transData.inverted()).size
        others = [dot for other, dot in zip(every, dots, strict=True) if other is not point]
        box, leader = _place(*at, width, height, room, others, names, lines)
        name.set_position(_centre(box))
        names.append(box)
        if leader:
            xs, ys = zip(*leader, strict=True)
            axes.plot(xs, ys, color="#999999", linewidth=0.6, zorder=2, clip_on=False, in_layout=False)
            lines += [_box(*each, 0, 0) for each in leader]


def _room(axes: Any) -> Box:
    """Return where names may stand, in the units of the axes: in these, and at their right up to the next ones or the
    end of the figure. At the left and below the axes have their numbers, above is the legend.
    """
    starts = [axes.figure.bbox.x1, *(other.get_tightbbox().x0 for other in axes.figure.axes if other.get_visible())]
    end = min(x for x in starts if x > axes.bbox.x1)
    low, high = axes.get_xlim()
    right = float(axes.transData.inverted().transform((end - 4, 0))[0])
    # Half the gap to the legend is for a name beside a point at the top
    return low, right, low, high + 0.01 * (high - low)


def _place(
    x: float, y: float, width: float, height: float, room: Box, dots: list[Box], names: list[Box], lines: list[Box]
) -> tuple[Box, Sequence[tuple[float, float]]]:
    """Choose where to write the name of a point (x: published, y: ours).

    Returns the box of the name, and points of a leader line to it, none where the name is beside its point. dots: boxes
    of the other points. names: boxes of the names so far. lines: points on their leader lines. In order of weight, the
    box lies inside `room`, on no other name, does not end at another point, hides few points and has a short leader.
    Places level with the point and away from the diagonal are tried first.
    """
    out, aside = 0.6 * height, 0.6 * height + width / 2
    sides = (-aside, aside) if y > x else (aside, -aside)
    beside = [(dx, dy * height) for dy in (0, 0.8, -0.8) for dx in sides] + [(0, 1.1 * height), (0, -1.1 * height)]
    further = [(dx, dy * height) for far in range(2, 12) for dy in (far, -far) for dx in (0, *sides)]
    found = []
    for dx, dy in [*beside, *further]:
        box, leads = _box(x + dx, y + dy, width, height), (dx, dy) in further
        leader = _line((x, y), box) if leads else []
        over = sum(_meet(box, name) for name in names)
        crossed = any(_meet(box, at) for at in lines) + any(_meet(_box(*at, 0, 0), n) for at in leader for n in names)
        ends = sum(_meet((box[0] - out, box[1] + out, *box[2:]), _middle(dot)) for dot in dots)
        hidden = sum(_meet(box, dot) for dot in dots)
        outside = box[0] < room[0] or box[1] > room[1] or box[2] < room[2] or box[3] > room[3]
        # A line costs as much as a hidden point, and more the longer it is; one that meets a name costs as two more
        cost = hidden + 2 * crossed + (1 + abs(dy) / height / 8 if leads else 0)
        found.append(((outside, over, 0 if leads else ends, cost), box, leader))
    _, box, leader = min(found, key=lambda each: each[0])
    return box, leader


def _line(start: tuple[float, float], box: Box) -> list[tuple[float, float]]:
    """Return points of the line from a point to the nearest of a box."""
    end = (min(max(start[0], box[0]), box[1]), min(max(start[1], box[2]), box[3]))
    return [(start[0] + k / 8 * (end[0] - start[0]), start[1] + k / 8 * (end[1] - start[1])) for k in range(9)]


def _box(x: float, y: float, width: float, height: float) -> Box:
    """Return the box around a middle: left, right, bottom, top."""
    return x - width / 2, x + width / 2, y - height / 2, y + height / 2


def _centre(box: Box) -> tuple[float, float]:
    return (box[0] + box[1]) / 2, (box[2] + box[3]) / 2


def _middle(box: Box) -> Box:
    """Return the middle of a box, as a box without width and height."""
    return _box(*_centre(box), 0, 0)


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[1] and other[0] < one[1] and one[2] < other[3] and other[2] < one[3]
