"""The table of a reproduced table's page: its rows and columns, and what its cells show."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Any

from pflsweep.report.paper.comparison import Cell, title
from pflsweep.report.paper.formats import number, value
from pflsweep.report.paper.published import Column
from pflsweep.report.paper.reproduction import Reproduction
from pflsweep.report.stats import rounded


def table(reproduction: Reproduction) -> dict[str, Any]:
    """Return the columns and rows that say something under some reading, the best rows first, and apart from them the
    rows and columns that do not. Without any such column the rows that say nothing have all columns.
    """
    every = range(len(reproduction.layout.columns))
    there = {
        place for each in reproduction.readings.values() for place, cell in each.cells.items() if _has_content(cell)
    }
    at_all, rows = {at for _, at in there}, {row for row, _ in there}
    shown = [at for at in every if at in at_all or not there]
    labels = reproduction.layout.rows
    order = sorted(rows, key=_mean_rank(reproduction)) if reproduction.layout.compare == "columns" else sorted(rows)

    def filled(rows: Iterable[int]) -> list[tuple[str, list[dict[str, Any] | None]]]:
        return [(labels[row], [_cell(reproduction, (row, at)) for at in shown]) for row in rows]

    return {
        "columns": [reproduction.layout.columns[at] for at in shown],
        "empty": _empty(reproduction.layout.columns, shown),
        "rows": filled(order),
        "empty_rows": filled(row for row in sorted(labels) if row not in rows),
    }


def _empty(columns: Sequence[Column], shown: Sequence[int]) -> list[str]:
    """Return the heads of the columns that are not shown; where none of a group is, the group's alone."""
    filled = {columns[at].group for at in shown} | {""}
    absent = [column for at, column in enumerate(columns) if at not in shown]
    return list(dict.fromkeys(title(column) if column.group in filled else column.group for column in absent))


def _mean_rank(reproduction: Reproduction) -> Callable[[int], tuple[bool, float, int]]:
    """Return the sort key of a row: the mean rank of its numbers, each among all numbers of its column, then the row's
    own number. Numbers that look the same share a rank. A column with numbers of one row alone ranks nothing. After
    the others come rows that lack a number which they could have, then those without a rank.
    """
    columns: dict[int, list[tuple[int, float]]] = defaultdict(list)  # row and number, the best is the lowest
    # The readings are ranked together: each has rows that the other lacks, so that a place among 7 is none among 12
    cells = [each for table in reproduction.readings.values() for each in table.cells.items()]
    for (row, at), cell in cells:
        if cell.has_number and cell.metric.best != "none":
            shown = rounded(cell.value.mean, cell.metric.decimals)
            columns[at].append((row, shown if cell.metric.best == "low" else -shown))
    waiting, known = {place for place, cell in cells if not cell.unfillable}, {place for place, _ in cells}
    ranks: dict[int, list[float]] = defaultdict(list)
    lacking: set[int] = set()
    for at, numbers in columns.items():
        there = {row for row, _ in numbers}
        if len(there) < 2:
            continue
        lacking |= {row for row, column in waiting if column == at} - there
        # Rows that their sweep does not train there
        lacking |= {row for row in reproduction.first.own_rows if (row, at) not in known}
        for row, own in numbers:
            better, equal = (sum(test(each) for _, each in numbers) for test in (own.__gt__, own.__eq__))
            ranks[row].append(better + (equal + 1) / 2)
    return lambda row: (row in lacking, fmean(ranks[row]) if ranks[row] else math.inf, row)


def _has_content(cell: Cell) -> bool:
    """Return whether a cell has a number, or more to say than that nobody has trained it."""
    return cell.has_number or cell.why_empty in ("none", "failed") or bool(needs(cell))


def _cell(reproduction: Reproduction, place: tuple[int, int]) -> dict[str, Any] | None:
    """Return a place of the table: what is printed, and ours under each reading, once where no reading has a number."""
    by_reading = {name: each.cells[place] for name, each in reproduction.readings.items() if place in each.cells}
    if not by_reading:
        return None
    first = next(iter(by_reading.values()))
    alone = first.printed.row in reproduction.first.own_rows or not reproduction.layout.in_print
    ours = [our_number(cell, name) for name, cell in by_reading.items()]
    same = not any(cell.has_number for cell in by_reading.values()) and len({each["shown"] for each in ours}) == 1
    if same or len(reproduction.readings) == 1:
        ours = [{**ours[0], "reading": ""}]
    return {"ours": ours, "printed": "" if alone else first.printed.shown}


def our_number(cell: Cell, name: str = "") -> dict[str, Any]:
    """Return our number as the template shows it, or why there is none."""
    if not cell.has_number:
        shown = needs(cell) or cell.why_empty if cell.why_empty == "missing" else cell.why_empty
        empty = {"rank": 0, "partial": False, "note": "", "difference": "", "apart": False}
        return {"reading": name, "shown": shown, **empty}
    seeds = f"{cell.value.n} of {len(cell.trials.seeds)} seeds"
    return {
        "reading": name,
        "shown": value(cell),
        "rank": cell.rank,
        "partial": cell.trials.partial,
        "note": "" if cell.complete else needs(cell) or seeds,
        "difference": "" if cell.difference is None else number(cell.difference, cell.metric.decimals, "+"),
        "apart": cell.agrees is False,
    }


def needs(cell: Cell) -> str:
    """Return the rows that a number waits for, where its own seeds are all there; "" if it waits for none."""
    if not cell.lacking or not cell.trials.complete:
        return ""
    rows = "all rows" if cell.metric.relative == "slowest" else ", ".join(each.method for each in cell.lacking)
    return f"needs {rows}"
