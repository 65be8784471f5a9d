"""The figures of methods' matrices of clients by clients, by the names that a layout may ask for; of the first seed."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pflsweep.records.matrices import over_rounds
from pflsweep.report import figures, style
from pflsweep.report.figures import Array
from pflsweep.report.paper import weights
from pflsweep.report.paper.comparison import Comparison, title
from pflsweep.report.paper.formats import short
from pflsweep.report.paper.store import FinishedTrial
from pflsweep.report.style import Picture

FRAMES = 5  # rounds that a row of heat maps shows


def _trials(comparison: Comparison, name: str, method: str = "") -> dict[str, FinishedTrial]:
    """Return the first trial (of a method) that has left a matrix, by the sweep's setting."""
    return comparison.first_trials(lambda trial: name in trial.matrices, method)


def matrix(comparison: Comparison) -> Iterator[Picture]:
    """Draw how PGFed's A has changed in its first setting, and how that goes with the clients' training samples."""
    trial = next(iter(_trials(comparison, "A", "pgfed").values()), None)
    moved = None if trial is None else weights.change(trial)
    if trial is None or moved is None or len(sizes := weights.sizes(trial)) != len(moved):
        return
    with style.figure(11.5, 3.4, ncols=3) as (made, (tiles, taken, given)):
        limit = float(np.nanmax(np.abs(moved))) or 1.0
        image = tiles.imshow(moved, cmap="PuOr", vmin=-limit, vmax=limit, interpolation="nearest")
        tiles.grid(False)
        tiles.set(title="Change of A over the rounds", xlabel="from client j", ylabel="client i")
        made.colorbar(image, ax=tiles, shrink=0.85, label="change of an entry of A (no unit)")
        for axis in (tiles.xaxis, tiles.yaxis):
            axis.set_major_locator(figures.integer_ticks(6))
        for axes, axis, client, what in ((taken, 0, "j", "column"), (given, 1, "i", "row")):
            mean = np.nanmean(moved, axis=axis)
            _regression(axes, sizes, mean, f"training samples of client {client}", f"{what} mean of the change")
    yield Picture("matrix", f"change of PGFed's A, {trial.meta['name']}: the paper's figure 3", made)


def _regression(axes: Any, x: Array, y: Array, xlabel: str, ylabel: str) -> None:
    axes.scatter(x, y, color=style.PALETTE[0], s=18, gid=f"points {ylabel}")
    if np.ptp(x) > 0 and np.ptp(y) > 0:
        slope, intercept = np.polyfit(x, y, 1)
        ends = np.array([x.min(), x.max()])
        axes.plot(ends, slope * ends + intercept, color=style.PALETTE[1], gid=f"line {ylabel}")
        axes.set(title=f"r = {np.corrcoef(x, y)[0, 1]:.2f}")
    axes.set(xlabel=xlabel, ylabel=ylabel)


def last(comparison: Comparison) -> Iterator[Picture]:
    """Draw what the clients of FedFomo's own row take from each other in the last round, a picture a setting."""
    for setting, trial in _trials(comparison, "P", comparison.layout.own).items():
        cells = (cell for _, cell in comparison.by_column() if cell.trials.setting == setting)
        line = next(cell.printed for cell in cells if cell.printed.method == comparison.layout.own)
        column = comparison.layout.column_of(line)
        assert column is not None, "cells stand in columns"
        row = short(comparison.layout.rows[line.row])
        where = f"{title(column)}; {row}; seed {trial.meta['seed']}; round {trial.last}"
        drawn = figures.heatmap(trial.matrices["P"], "P", f"{where}; reading {comparison.store.reading}")
        yield Picture(f"weights-{style.stem(setting)}", f"client-to-client weights P of FedFomo: {where}", drawn)


def maps(comparison: Comparison) -> Iterator[Picture]:
    """Draw P over the rounds as heat maps, one row per setting; where rounds were not kept, the last one."""
    found = {setting: _frames(trial) for setting, trial in _trials(comparison, "P").items()}
    if not found:
        return
    columns = max(len(frames) for frames in found.values())
    size = (2.3 * columns + 1.2, 2.3 * len(found) + 0.4)
    with style.figure(*size, nrows=len(found), ncols=columns, squeeze=False) as (made, grid):
        for row, (setting, frames) in zip(grid, found.items(), strict=True):
            low, high = (end([end(frame) for _, frame in frames]) for end in (np.nanmin, np.nanmax))
            for axes, (round, frame) in zip(row, frames, strict=False):
                image = axes.imshow(frame, cmap=style.MAP, vmin=min(0.0, low), vmax=high, interpolation="nearest")
                axes.set_title(f"round {round}", fontsize=9)
                axes.grid(False)
                axes.xaxis.set_major_locator(figures.integer_ticks(6))
                axes.yaxis.set_major_locator(figures.integer_ticks(6))
            for axes in row[len(frames) :]:
                axes.set_visible(False)
            row[0].set_ylabel(f"{setting}\nclient", fontsize=8)
            made.colorbar(image, ax=list(row), shrink=0.85, label="weight (no unit)")
        made.suptitle("Weights P of the other clients, by round", x=0.01, ha="left", fontsize=10.5)
    yield Picture("weight-maps", "weights P that clients (rows) give to the others (columns), by round", made)


def _frames(trial: FinishedTrial) -> list[tuple[int, Array]]:
    """Return rounds spread evenly over those that were kept, with P without its diagonal."""
    rounds, stack = over_rounds(trial.matrices, "P")
    if not len(rounds):
        return [(int(trial.rounds["round"].iloc[-1]), weights.off_diagonal(trial.matrices["P"]))]
    picked = np.unique(np.linspace(0, len(rounds) - 1, FRAMES).round().astype(int))
    return [(int(rounds[k]), weights.off_diagonal(stack[k])) for k in picked]


def by_round(comparison: Comparison) -> Iterator[Picture]:
    """Draw the weights that clients give to each other by round: one panel per client, one colour per distribution."""
    from matplotlib.lines import Line2D

    for setting, trial in _trials(comparison, "P").items():
        rounds, stack = over_rounds(trial.matrices, "P")
        own, wanted = weights.groups(trial), weights.groups_of_test_data(trial)
        if len(rounds) < 2 or own is None or wanted is None:
            continue
        with style.panels(len(own), (2.1, 1.95), in_a_row=5, sharex=True) as (made, all_axes):
            for i, axes in enumerate(all_axes):
                for j in (j for j in range(len(own)) if j != i):
                    axes.plot(rounds, stack[:, i, j], gid=f"weight {setting} {i} {j}", **_look(int(own[j])))
                tested = "" if wanted[i] == own[i] else f", tested on {wanted[i]}"
                axes.set_title(f"client {i}: {own[i]}{tested}", fontsize=8.5)
                axes.tick_params(labelsize=7.5)
                axes.xaxis.set_major_locator(figures.integer_ticks(6))
            made.supxlabel("round", fontsize=9)
            made.supylabel("weight of another client", fontsize=9)
            lines = {str(k): Line2D([], [], **_look(k)) for k in range(int(own.max()) + 1)}
            style.legend(made, lines, title="distribution", handlelength=2)
        shows = f"weights of each other client by round, colour: its distribution, {trial.meta['name']}"
        yield Picture(f"weights-by-round-{style.stem(setting)}", shows, made)


def _look(group: int) -> dict[str, Any]:
    """Return colour and dash of a distribution."""
    lap, k = divmod(group, len(style.PALETTE))
    return {"color": style.PALETTE[k], "linestyle": style.DASHES[lap % len(style.DASHES)], "linewidth": 1.1}


FIGURES: dict[str, Callable[[Comparison], Iterator[Picture]]] = {
    "matrix": matrix,
    "weights": last,
    "weight_maps": maps,
    "weights_by_round": by_round,
}
