"""The figures that go with a reproduced table, by the names that its layout may ask for."""

import math
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflsweep.report import figures, style
from pflsweep.report.compare import banded, by_round, newcomers_accuracy
from pflsweep.report.figures import Curve
from pflsweep.report.paper import leaderboard_figures, sensitivity, studies, weight_figures
from pflsweep.report.paper.comparison import Cell, Comparison, title
from pflsweep.report.paper.layout import LEADERBOARD, Layout, require_known
from pflsweep.report.paper.store import Trial
from pflsweep.report.stats import mean_std
from pflsweep.report.style import Picture


def check(of: Layout) -> None:
    """Raises UserError where a layout asks for a figure that there is not."""
    require_known("figures", of.figures, list(FIGURES), of.name)


def draw(readings: dict[str, Comparison], folder: Path) -> dict[str, str]:
    """Saves the figures that a layout asks for, and those of its searches, as PNG and SVG; file name of each PNG ->
    what it shows. Those of a second reading have its name. A leaderboard has too many methods for those of searches.
    """
    drawn: dict[str, str] = {}
    for reading, of in readings.items():
        end = f"-{reading}" if drawn else ""
        said = f"reading {reading}: " if len(readings) > 1 else ""
        asked = (picture for name in of.layout.figures for picture in FIGURES[name](of))
        searched = () if of.layout.page == LEADERBOARD else sensitivity.pictures(of, _looks(of))
        for picture in chain(asked, searched):
            style.save(picture.figure, folder / f"{picture.stem}{end}")
            drawn[f"{picture.stem}{end}.png"] = f"{said}{picture.shows}"
    return drawn


def _grouped(of: Comparison, key: Callable[[Cell], Any]) -> dict[Any, list[Cell]]:
    """The numbers with trials by `key`, each method once, in the order of columns and rows."""
    found: dict[Any, dict[str, Cell]] = {}
    for _, made in of.by_column():
        if made.answer.trials:
            found.setdefault(key(made), {}).setdefault(made.answer.method, made)
    return {group: list(methods.values()) for group, methods in found.items()}


def _looks(of: Comparison) -> dict[str, dict[str, Any]]:
    """A method has one look in all panels."""
    methods = dict.fromkeys(line.method for line in of.layout.printed)
    return dict(zip(methods, style.looks(), strict=False))


def _labels(of: Comparison) -> dict[str, str]:
    """How methods are called."""
    return {line.method: line.label for line in reversed(of.layout.printed)}


def curves(of: Comparison) -> Iterator[Picture]:
    """Mean accuracy by round, a panel a setting and a kind of accuracy; the band is one std over seeds."""
    panels, looks = _grouped(of, _panel), _looks(of)
    if not panels:
        return
    with style.panels(len(panels), (4.4, 3.9) if len(panels) == 1 else (3.2, 2.9)) as (made, all_axes):
        labels: dict[str, Any] = {}
        for axes, ((setting, *kind), methods) in zip(all_axes, panels.items(), strict=True):
            for each in methods:
                trials, column = list(each.answer.trials.values()), _scored(of, each)
                if not all(column in trial.rounds for trial in trials):  # no such model
                    continue
                curve = _by_round(trials, column, each.line.label)
                rounds, mean, low, high = curve.rounds, 100 * curve.mean, 100 * curve.low, 100 * curve.high
                own = each.line.method == of.layout.own
                look = {**looks[each.line.method], "marker": "", "linewidth": 2.2 if own else 1.3}
                (line,) = axes.plot(rounds, mean, gid=" ".join(["curve", setting, *kind, each.line.method]), **look)
                labels.setdefault(each.line.label, line)
                if np.any(high > low):
                    axes.fill_between(rounds, low, high, color=look["color"], alpha=0.12, linewidth=0)
            over = "" if kind == ["global", "all"] else " over clients"
            axes.set(title=_head(of, methods[0]), xlabel="round", ylabel=f"mean accuracy{over} (%)")
            axes.margins(x=0.02)
            _skip_start(axes)
        style.legend(made, labels)
    yield Picture("curves", "mean accuracy by round; band: one std over seeds", made)


def _panel(made: Cell) -> tuple[str, ...]:
    """The setting, and what accuracy is of where it is not that of personal models on own data."""
    options = made.metric.options if made.metric.quantity == "accuracy" else {}
    said = (options.get("view", "personal"), options.get("target", "own"))
    return made.answer.setting, *(() if said == ("personal", "own") else said)


def _head(of: Comparison, made: Cell) -> str:
    """A panel's title: its setting, and the column where others of the setting are of other accuracies."""
    setting, column = made.answer.setting, of.layout.column_of(made.line)
    several = {each.line.metric for each in of.made.values() if each.answer.setting == setting}
    if column is None or len(several) == 1 or made.metric.quantity != "accuracy":
        return setting
    return f"{setting}, {column.header}"


def _skip_start(axes: Any) -> None:
    """Cut off below what curves come to after a tenth of the rounds: one that begins untrained would press the others,
    which differ by less than a point, into a line.
    """
    ys = [y for line in axes.lines for x, y in zip(*line.get_data(), strict=True) if x > axes.dataLim.x1 / 10]
    low, high = axes.get_ylim()
    if ys and min(ys) - low > 0.3 * (high - low):
        axes.set_ylim(bottom=min(ys) - 0.05 * (high - min(ys)))


def _scored(of: Comparison, made: Cell) -> str:
    """The column of the rounds that a cell's metric is of."""
    if made.metric.quantity != "accuracy":
        return "personal_accuracy"
    view = of.layout.view(made.metric, made.line.method)
    target = made.metric.options.get("target", "own")
    return f"{view}_accuracy" if target == "own" else f"{view}_{target}_accuracy"


def _by_round(trials: list[Trial], column: str, label: str) -> Curve:
    """The rounds that all evaluated; the band is one std over seeds."""
    return banded(label, [by_round(trial, column) for trial in trials], _one_std)


def _one_std(values: NDArray[np.float64]) -> tuple[float, float]:
    mean, std = mean_std(values.tolist())
    return mean - std, mean + std


def newcomers(of: Comparison) -> Iterator[Picture]:
    """Accuracy of clients that took part in no round, by epoch of their fine-tuning, a figure a setting."""
    for setting, methods in _grouped(of, lambda made: made.answer.setting).items():
        made = []
        for each in methods:
            seeds = [curve for trial in each.answer.trials.values() if len(curve := newcomers_accuracy(trial))]
            if seeds:
                made.append(banded(each.line.label, seeds))
        if made:
            stem = f"new-{setting.replace('/', '-')}"
            picture = figures.accuracy(made, f"New clients, {setting}", by="epoch")
            yield Picture(stem, f"accuracy of new clients by epoch of fine-tuning, {setting}", picture)


def privacy(of: Comparison) -> Iterator[Picture]:
    """Accuracy against epsilon; what trains without noise is a dashed line."""
    spent = {place: made for place, made in of.made.items() if made.line.metric == "epsilon" and made.there}
    datasets = list(dict.fromkeys(made.line.dataset for made in spent.values()))
    if not datasets:
        return
    looks, labels = _looks(of), _labels(of)
    with style.figure(4.2 * len(datasets) + 1, 3.4, ncols=len(datasets), squeeze=False) as (made, grid):
        for axes, dataset in zip(grid[0], datasets, strict=True):
            points: dict[str, list[tuple[float, float]]] = {}
            for (row, _), each in spent.items():
                pair = [m for (r, _), m in of.made.items() if r == row and m.line.metric == "acc" and m.there]
                own = [m for m in pair if m.line.dataset == dataset == each.line.dataset]
                own = [m for m in own if m.line.setting == each.line.setting]
                for accuracy in own:
                    points.setdefault(each.line.method, []).append((each.value.mean, accuracy.value.mean))
            for method, pairs in points.items():
                look = looks[method]
                finite = sorted(pair for pair in pairs if math.isfinite(pair[0]))
                epsilons, accuracies = ([pair[k] for pair in finite] for k in (0, 1))
                axes.plot(epsilons, accuracies, label=labels[method], gid=f"privacy {dataset} {method}", **look)
                for flat in (pair[1] for pair in pairs if math.isinf(pair[0])):
                    axes.axhline(flat, color=look["color"], linestyle="--", linewidth=1)
            axes.set(title=dataset, xlabel="epsilon", ylabel="mean accuracy over clients (%)")
            axes.legend()
    yield Picture("privacy", "accuracy against epsilon; dashed: without noise", made)


def gains(of: Comparison) -> Iterator[Picture]:
    """Each client's gain over the baseline, a figure a column."""
    labels = _labels(of)
    order = [labels[method] for method in _looks(of)]
    for number, column in enumerate(of.layout.columns):
        baseline = of.layout.metrics[column.metric].options["baseline"]
        there = [made for (_, c), made in sorted(of.made.items()) if c == number and made.there]
        if there:
            by_method = {labels[made.line.method]: [each.to_numpy() for each in of.by_client(made)] for made in there}
            head = f"Gains in the last round, {title(column)}"
            picture = figures.gains(by_method, labels.get(baseline, baseline), order, head)
            yield Picture(f"gains-{column.setting}", f"gain of each client, {title(column)}", picture)


def by_row(of: Comparison) -> Iterator[Picture]:
    """The last round's numbers against what rows are called, a line a setting; the bar is one std."""
    settings: dict[str, list[Cell]] = {}
    for _, each in sorted(of.made.items()):
        if each.there:
            settings.setdefault(each.answer.setting, []).append(each)
    if not settings:
        return
    with style.figure(5.2, 3.4) as (made, axes):
        for look, (setting, cells) in zip(style.looks(), settings.items(), strict=False):
            means, stds = [cell.value.mean for cell in cells], [cell.value.std or 0.0 for cell in cells]
            labels = [cell.line.label for cell in cells]
            axes.errorbar(labels, means, stds, capsize=3, label=setting, gid=f"by row {setting}", **look)
        axes.set(xlabel="row of the table", ylabel="mean accuracy over clients (%)")
        axes.legend()
    yield Picture("by-row", "the table's rows; bar: one std", made)


FIGURES: dict[str, Callable[[Comparison], Iterator[Picture]]] = {
    "curves": curves,
    "newcomers": newcomers,
    "privacy": privacy,
    "gains": gains,
    "by_row": by_row,
    **leaderboard_figures.FIGURES,
    **weight_figures.FIGURES,
    **studies.FIGURES,
}
