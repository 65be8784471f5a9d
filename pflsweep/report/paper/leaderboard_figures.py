"""The pictures of a leaderboard: mean ranks with the critical difference, and accuracy by the budget of the search."""

import math
from collections.abc import Iterator

from pflsweep.report import figures, lines, style
from pflsweep.report.lines import EndLabel
from pflsweep.report.naming import REFERENCES
from pflsweep.report.paper.comparison import Comparison
from pflsweep.report.paper.leaderboard import Leaderboard
from pflsweep.report.ranks import SIGNIFICANCE
from pflsweep.report.style import Picture

ROW = 0.2  # inches of a method


def ranks(comparison: Comparison) -> Iterator[Picture]:
    """Draw the mean rank of the first methods, and of the references, the best on top.

    With fifty methods the bars of Demsar's diagram, one for each clique that cannot be told apart, would hide one
    another, so that one band stands for them: from the best mean rank as wide as the critical difference.
    """
    board = Leaderboard(comparison)
    if len(board.rows) < 2:
        return
    rows, worse, gap = _shown(comparison, board.ordered), set(board.worse), board.ranking.critical_difference
    places = range(len(rows))
    with style.figure(figures.WIDTH, 1.7 + ROW * len(rows)) as (made, axes):
        first = board.mean_rank(rows[0])
        # Where Friedman's test finds no difference, no pair is compared
        if board.ranking.differ:
            axes.axvspan(first, first + gap, color=style.PALETTE[0], alpha=0.08, linewidth=0, gid="critical difference")
        for place, row in enumerate(rows):
            colour, own = (
                lines.GREY if row in worse else style.PALETTE[0],
                [board.rank(row, at) for at in board.columns],
            )
            axes.plot([min(own), max(own)], [place, place], color=colour, linewidth=1, alpha=0.6)
            axes.plot(own, [place] * len(own), "|", color=colour, markersize=6, alpha=0.8)
            mean = board.mean_rank(row)
            axes.plot(mean, place, "o", color=colour, markersize=5, gid=f"rank {board.label(row)}")
        said = "Friedman's test does not find that they differ" if not math.isnan(gap) else "too little to test"
        band = ""
        if board.ranking.differ:
            said = f"critical difference at {SIGNIFICANCE:g}: {gap:.1f} ranks"
            band = "; band: Nemenyi does not tell it from the best"
        names = [f"{board.ordered.index(row) + 1}. {board.label(row)}  {board.mean_rank(row):.1f}" for row in rows]
        axes.set_yticks(places, names, fontsize=8.5)
        for row, name in zip(rows, axes.get_yticklabels(), strict=True):
            name.set_color("#777777" if row in worse else "#000000")
        axes.set(
            title=f"Mean rank over {len(board.columns)} columns, {len(rows)} of {len(board.rows)} methods\n{said}",
            xlabel=f"rank (1 is best); dot: mean, ticks: each column{band}",
            xlim=(0, len(board.rows) + 1),
            ylim=(len(rows) - 0.4, -0.6),
        )
        axes.xaxis.label.set_size(8.5)
        axes.xaxis.set_major_locator(figures.integer_ticks())
        axes.grid(False, axis="y")
    methods = _methods(comparison)
    also = " and of the references" if any(methods[row] in REFERENCES for row in rows) else ""
    also += ", and the critical difference" if board.ranking.differ else ""
    yield Picture("ranks", f"mean ranks of the best methods{also}", made)


def _methods(comparison: Comparison) -> dict[int, str]:
    """Return the method of each row."""
    return {line.row: line.method for line in comparison.layout.printed}


def _shown(comparison: Comparison, ordered: list[int]) -> list[int]:
    """Return the rows of a picture, the best first: not more than MOST, the references among them."""
    methods = _methods(comparison)
    references = [row for row in ordered if methods[row] in REFERENCES]
    others = [row for row in ordered if row not in references][: lines.MOST - len(references)]
    return [row for row in ordered if row in references or row in others]


def budget(comparison: Comparison) -> Iterator[Picture]:
    """Draw the test accuracy of the models that validation data choose among so many points of a search."""
    board = Leaderboard(comparison)
    curves = {row: curve for row in board.ordered if len(curve := board.by_budget(row)) > 1}
    if not curves:
        return
    methods = _methods(comparison)
    rows = {methods[row]: row for row in curves}
    looks, orange = lines.line_styles(list(rows)), "orange: the method with the best mean rank"
    with style.figure(figures.WIDTH, 4.0) as (made, axes):
        ends = []
        for method, look in looks.items():
            label, curve = board.label(rows[method]), [100 * each for each in curves[rows[method]]]
            points = range(1, len(curve) + 1)
            axes.plot(points, curve, marker="o", markersize=3, gid=f"budget {label}", **look)
            ends.append(EndLabel(f"{label}  {curve[-1]:.1f}%", len(curve), curve[-1], look["color"]))
        axes.set(
            title=f"{len(looks)} of {len(curves)} methods by mean rank: {lines.drawn_in_words([looks])}\n{orange}",
            xlabel="points of the search",
            ylabel="mean accuracy over columns (%)",
        )
        lines.percent(axes)
        axes.xaxis.set_major_locator(figures.integer_ticks())
        lines.name_ends(made, [(axes, ends)])
    yield Picture("budget", f"test accuracy after so many points of each search, mean over columns; {orange}", made)


FIGURES = {"ranks": ranks, "budget": budget}
