"""The pictures of a leaderboard: mean ranks with the critical difference, and accuracy by the budget of the search."""

import math
from collections.abc import Iterator

from pflsweep.report import figures, style
from pflsweep.report.paper.comparison import Comparison
from pflsweep.report.paper.leaderboard import Leaderboard
from pflsweep.report.ranks import LEVEL
from pflsweep.report.style import Picture

ROW = 0.185  # inches of a method
NAMED = 8  # curves of the best methods that are told apart
REFERENCES = ("local", "fedavg")  # which every paper compares with: named wherever they stand
GREY = "#b5b5b5"


def ranks(of: Comparison) -> Iterator[Picture]:
    """Mean rank of each method, the best on top. With fifty methods the bars of Demsar's diagram, one for each clique
    that cannot be told apart, would hide one another, so that one band stands for them: from the best mean rank as wide
    as the critical difference.
    """
    board = Leaderboard(of)
    if len(board.rows) < 2:
        return
    rows, worse, gap = board.ordered, set(board.worse), board.ranking.critical_difference
    places = range(len(rows))
    with style.figure(figures.WIDTH, 1.5 + ROW * len(rows)) as (made, axes):
        first = board.mean_rank(rows[0])
        if not math.isnan(gap):
            axes.axvspan(first, first + gap, color=style.PALETTE[0], alpha=0.08, linewidth=0, gid="critical difference")
        for place, row in enumerate(rows):
            colour, own = GREY if row in worse else style.PALETTE[0], [board.rank(row, at) for at in board.columns]
            axes.plot([min(own), max(own)], [place, place], color=colour, linewidth=1, alpha=0.6)
            axes.plot(own, [place] * len(own), "|", color=colour, markersize=5, alpha=0.8)
            mean = board.mean_rank(row)
            axes.plot(mean, place, "o", color=colour, markersize=5, gid=f"rank {board.label(row)}")
        said = f"critical difference at {LEVEL:g}: {gap:.1f} ranks" if not math.isnan(gap) else "too little to test"
        axes.set_yticks(places, [f"{board.label(row)}  {board.mean_rank(row):.1f}" for row in rows], fontsize=8)
        for row, name in zip(rows, axes.get_yticklabels(), strict=True):
            name.set_color("#777777" if row in worse else "#000000")
        axes.set(
            title=f"Mean rank over {len(board.columns)} columns; {said}",
            xlabel="rank (1 is best); dot: mean, ticks: each column; band: Nemenyi does not tell it from the best",
            xlim=(0, len(rows) + 1),
            ylim=(len(rows) - 0.4, -0.6),
        )
        axes.xaxis.label.set_size(8.5)
        axes.grid(False, axis="y")
    yield Picture("ranks", "mean ranks, the best first, and the critical difference", made)


def budget(of: Comparison) -> Iterator[Picture]:
    """Test accuracy of the models that validation data choose among so many points of a search, mean over columns."""
    board = Leaderboard(of)
    curves = {row: curve for row in board.ordered if len(curve := board.by_budget(row)) > 1}
    if not curves:
        return
    methods = {line.row: line.method for line in of.layout.printed}
    named = [*list(curves)[:NAMED], *(row for row in list(curves)[NAMED:] if methods[row] in REFERENCES)]
    looks = dict(zip(named, style.looks(), strict=False))
    with style.figure(figures.WIDTH, 4.2) as (made, axes):
        lines = {}
        for row, curve in reversed(curves.items()):  # the best are drawn last
            look = looks.get(row, {"color": GREY, "linewidth": 0.7, "alpha": 0.7, "zorder": 1})
            points, percent = range(1, len(curve) + 1), [100 * each for each in curve]
            (line,) = axes.plot(points, percent, gid=f"budget {board.label(row)}", **{**look, "markersize": 4})
            lines[row] = line
        # methods that fail would press the named ones into a line
        shown = [100 * each for row in named for each in curves[row]]
        low, high = min(shown), max(shown)
        margin = 0.05 * (high - low) or 1.0
        axes.set(
            xlabel="points of the search", ylabel="mean accuracy over columns (%)", ylim=(low - margin, high + margin)
        )
        axes.xaxis.set_major_locator(figures.whole())
        legend = {board.label(row): lines[row] for row in named}
        if others := [row for row in curves if row not in looks]:
            below = sum(100 * max(curves[row]) < low - margin for row in others)
            cut = f",\n{below} of them below" if below else ""
            legend[f"{len(others)} others{cut}"] = lines[others[0]]
        style.legend(made, legend)
    yield Picture("budget", "test accuracy after so many points of each search, mean over columns", made)


FIGURES = {"ranks": ranks, "budget": budget}
