"""The page of a leaderboard: what its template, leaderboard.md, shows. The verdict comes first."""

import math
from collections import defaultdict
from collections.abc import Iterable
from statistics import fmean
from typing import Any

from pflsweep.report import template
from pflsweep.report.paper import deviations, formats, missing, origin, winners
from pflsweep.report.paper.comparison import Cell, title
from pflsweep.report.paper.figures import SavedFigures
from pflsweep.report.paper.leaderboard import Leaderboard, images
from pflsweep.report.paper.links import Links
from pflsweep.report.paper.reproduction import Reproduction
from pflsweep.report.ranks import SIGNIFICANCE

MORE = 1.5  # times the images of the median method: so many have to be said beside a win
NAMED = 12  # methods of a list in the verdict; the table has all


def text(reproduction: Reproduction, drawn: SavedFigures, links: Links, discussion: str = "") -> str:
    """Return the page as markdown that GitHub shows; the arguments are those of a table's page."""
    board, table = Leaderboard(reproduction.first), reproduction.first
    searched = [cell.trials for column in board.columns for cell in board.cells(column)]
    tune = next((ledger.tune for ledger in table.store.of(reproduction.layout.sweeps)), None)
    return template.render(
        "leaderboard.md",
        layout=reproduction.layout,
        scale=reproduction.scale,
        level=SIGNIFICANCE,
        verdict=_verdict(board) if board.rows else None,
        heads=[title(reproduction.layout.columns[at]) for at in board.columns],
        rows=[_row(board, place, row) for place, row in enumerate(board.ordered, start=1)],
        columns=len(reproduction.layout.columns),
        seeds=sorted({seed for trials in searched for seed in trials.finished}),
        left_out=board.left_out,
        not_begun=board.not_begun,
        other_columns=board.other_columns,
        partial=any(trials.partial for trials in searched),
        tune=tune if any(each.group["points"] for each in searched) else None,
        points=_listed((int(each.group["points"]), each.method) for each in searched),
        budget=[_budget(board, column) for column in board.columns],
        discussion=discussion.strip(),
        figures=drawn,
        missing=missing.lines(table),
        winners=winners.lines(table),
        fixed=deviations.fixed(table),
        uneven=deviations.lines(table),
        origin=origin.lines(table, links),
    )


def _cell(board: Leaderboard, row: int, column: int) -> Cell:
    return board.comparison.cells[row, column]


def _verdict(board: Leaderboard) -> dict[str, Any]:
    """Return what the head of the page says: who is best, and who cannot be told apart from it."""
    ranking, worse = board.ranking, board.worse
    statistic, p = ranking.friedman
    level = [row for row in board.ordered if row not in worse and row not in board.best]
    return {
        "best": [board.label(row) for row in board.best],
        "rank": formats.number(board.mean_rank(board.best[0]), 1),
        "methods": len(board.rows),
        "columns": len(board.columns),
        "datasets": len(board.datasets),
        "tested": statistic == statistic,
        "differ": ranking.differ,
        "statistic": formats.number(statistic, 1),
        "p": "below 0.001" if p < 0.001 else formats.number(p, 3),
        "more": [
            f"{board.label(row)} ({formats.number(share, 1)} times)"
            for row in board.best
            if (share := board.images.get(row, 1)) >= MORE
        ],
        "gap": formats.number(ranking.critical_difference, 1),
        "largest": len(board.rows) - 1,
        "level": _named(board, level),
        "worse": _named(board, worse),
    }


def _named(board: Leaderboard, rows: list[int]) -> str:
    """Return the first of some methods, with their mean ranks, and how many more there are."""
    more = f" and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
    return ", ".join(f"{board.label(row)} {formats.number(board.mean_rank(row), 1)}" for row in rows[:NAMED]) + more


def _row(board: Leaderboard, place: int, row: int) -> dict[str, Any]:
    """Return a line of the table."""
    cells = [_cell(board, row, column) for column in board.columns]
    return {
        "place": place,
        "label": board.label(row),
        "rank": formats.number(board.mean_rank(row), 1),
        "images": formats.number(board.images.get(row, math.nan), 1),
        "mean": formats.number(fmean(cell.value.mean for cell in cells), 2),
        "cells": [
            {
                "shown": formats.value(cell),
                "first": cell.rank == 1,
                "partial": cell.trials.partial,
                "rank": f"{rank:g}",
            }
            for cell, rank in zip(cells, (board.rank(row, column) for column in board.columns), strict=True)
        ],
    }


def _budget(board: Leaderboard, column: int) -> list[str]:
    """Return what the ranked methods had in a column: rounds, seeds, and the images that a final trial trained on."""
    cells = board.cells(column)
    trials = [(cell.trials.method, trial) for cell in cells for trial in cell.trials.finished.values()]
    return [
        title(board.comparison.layout.columns[column]),
        "; ".join(_listed((trial.last, method) for method, trial in trials)),
        ", ".join(map(str, board.comparison.seeds(cells[0].trials.setting))),
        _span([(images(trial), method) for method, trial in trials]),
    ]


def _span(numbers: list[tuple[float, str]]) -> str:
    """Return the least and the most of all trials, each with a method that has so many."""
    if math.isnan(sum(number for number, _ in numbers)):
        return "not recorded"
    (few, least), (many, most) = min(numbers), max(numbers)
    return f"{few:,.0f}" if few == many else f"{few:,.0f} ({least}) to {many:,.0f} ({most})"


def _listed(numbers: Iterable[tuple[int, str]]) -> list[str]:
    """Return each number once, and with its methods where not all have the same."""
    found: dict[int, dict[str, None]] = defaultdict(dict)
    for number, method in numbers:
        found[number][method] = None
    return [str(n) if len(found) == 1 else f"{n} of {', '.join(methods)}" for n, methods in sorted(found.items())]
