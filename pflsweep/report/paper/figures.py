"""The figures that go with a reproduced table, by the names that its layout may ask for."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pflsweep.report import figures, lines, style
from pflsweep.report.lines import EndLabel
from pflsweep.report.paper import against_print, leaderboard_figures, sensitivity, study_figures, weight_figures
from pflsweep.report.paper.comparison import Cell, Comparison, title
from pflsweep.report.paper.formats import short
from pflsweep.report.paper.layout import LEADERBOARD, Layout, require_allowed
from pflsweep.report.paper.published import Column
from pflsweep.report.paper.store import FinishedTrial
from pflsweep.report.quantities import Curve, by_round, mean_curve, new_clients_accuracy
from pflsweep.report.stats import mean_std
from pflsweep.report.style import Picture
from pflsweep.util.errors import UserError


def check(layout: Layout) -> None:
    """Raise UserError if a layout asks for a figure that there is not."""
    require_allowed("figures", layout.figures, list(FIGURES), layout.name)


class SavedFigures(NamedTuple):
    """The saved figures of a page: file name of each PNG -> what it shows. Beside each lies an SVG of its name."""

    top: dict[str, str]  # the one that stands under the verdict, if any
    asked: dict[str, str]  # those that the layout asks for
    searched: dict[str, str]  # accuracy by each searched hyperparameter

    def files(self, folder: Path) -> list[Path]:
        """Return the files in a folder."""
        names = [name for figures in self for name in figures]
        return [(folder / name).with_suffix(kind) for name in names for kind in (".png", ".svg")]


def draw(readings: dict[str, Comparison], folder: Path) -> SavedFigures:
    """Save the figures of a page as PNG and SVG. The files of a second reading end with its name. Raise UserError if
    two would have one name.

    At the top of a table's page is the figure of our numbers against the published ones. A leaderboard, which has too
    many methods for figures of searches, has its first figure there.
    """
    drawn = SavedFigures({}, {}, {})

    def save(picture: Picture, into: dict[str, str], end: str = "", said: str = "") -> None:
        name = f"{picture.stem}{end}.png"
        if any(name in each for each in drawn):
            raise UserError(
                f"reports/layouts/{next(iter(readings.values())).layout.name}.yaml: two pictures would be called "
                f"{name}. Name each figure once under `figures`, and have settings differ in more than `/` and `-`."
            )
        style.save(picture.figure, folder / f"{picture.stem}{end}")
        into[name] = f"{said}{picture.shows}"

    leaderboard = next(iter(readings.values())).layout.page == LEADERBOARD
    if not leaderboard and (picture := against_print.picture(readings)):
        save(picture, drawn.top)
    for number, (reading, comparison) in enumerate(readings.items()):
        end, said = f"-{style.stem(reading)}" if number else "", f"reading {reading}: " if len(readings) > 1 else ""
        for picture in (picture for name in comparison.layout.figures for picture in FIGURES[name](comparison)):
            save(picture, drawn.top if leaderboard and not drawn.top else drawn.asked, end, said)
        for picture in () if leaderboard else sensitivity.pictures(comparison, _own(comparison)):
            save(picture, drawn.searched, end, said)
    return drawn


def _grouped(comparison: Comparison, key: Callable[[Cell], Any]) -> dict[Any, list[Cell]]:
    """Return the cells with trials by `key`, each method once, in the order of columns and rows."""
    found: dict[Any, dict[str, Cell]] = {}
    for _, cell in comparison.by_column():
        if cell.trials.finished:
            found.setdefault(key(cell), {}).setdefault(cell.trials.method, cell)
    return {group: list(methods.values()) for group, methods in found.items()}


def _labels(comparison: Comparison) -> dict[str, str]:
    """Return how methods are called in pictures."""
    found: dict[str, str] = {}
    for line in comparison.layout.printed:
        found.setdefault(line.method, short(line.label))
    return found


def _own(comparison: Comparison) -> list[str]:
    """Return the paper's methods: those whose names have its own one in them, such as sfedpg and fedfomo_n5."""
    own = comparison.layout.own.partition("_")[0]
    return [method for method in comparison.layout.labels if own and own in method]


def curves(comparison: Comparison) -> Iterator[Picture]:
    """Draw mean accuracy by round, a panel per setting and a kind of accuracy; a band is one std over seeds."""
    panels, labels = _grouped(comparison, _panel), _labels(comparison)
    if not panels:
        return
    bands, cut, own, drawn = False, 0, _own(comparison), []
    with style.panels(len(panels), (5.4, 3.9) if len(panels) == 1 else (4.3, 3.0), legend=0) as (made, all_axes):
        ends: list[list[EndLabel]] = []
        for axes, ((setting, *kind), methods) in zip(all_axes, panels.items(), strict=True):
            found: dict[str, Curve] = {}
            for each in methods:
                trials, column = list(each.trials.finished.values()), _scored(comparison, each)
                if all(column in trial.rounds for trial in trials):  # else the method has no such model
                    found[each.printed.method] = _by_round(trials, column, labels[each.printed.method])
            order = sorted(found, key=lambda method: -found[method].mean[-1])
            looks = lines.line_styles(order, own)
            drawn.append(looks)
            cut = max(cut, len(found) - len(looks))
            for method, look in looks.items():
                rounds, mean = found[method].rounds, 100 * found[method].mean
                axes.plot(rounds, mean, gid=" ".join(["curve", setting, *kind, method]), **look)
            over = "" if kind == ["global", "all"] else " over clients"
            axes.set(title=_head(comparison, methods[0]), xlabel="round", ylabel=f"mean accuracy{over} (%)")
            axes.margins(x=0.02)
            axes.xaxis.set_major_locator(figures.integer_ticks(6))
            _skip_start(axes)
            lines.percent(axes)
            for method, look in looks.items():
                curve = found[method]
                if look["color"] != lines.GREY and np.any(curve.high > curve.low):
                    bands |= lines.band(axes, curve.rounds, 100 * curve.low, 100 * curve.high, look["color"])
            ends.append(
                [
                    EndLabel(labels[m], found[m].rounds[-1], 100 * found[m].mean[-1], look["color"])
                    for m, look in looks.items()
                ]
            )
        lines.name_ends(made, zip(all_axes, ends, strict=True))
    said = [
        "mean accuracy by round",
        lines.colours_in_words(drawn, own, comparison.layout.whose),
        *(["band: one std over seeds, as far as it fits"] if bands else []),
    ]
    said += [f"at most {lines.MOST} methods per panel: {lines.drawn_in_words(drawn)}"] if cut else []
    yield Picture("curves", "; ".join(said), made)


def _panel(cell: Cell) -> tuple[str, ...]:
    """Return the setting of a cell, and the kind of its accuracy where that is not of personal models on own data."""
    options = cell.metric.options if cell.metric.quantity == "accuracy" else {}
    said = (options.get("view", "personal"), options.get("target", "own"))
    return cell.trials.setting, *(() if said == ("personal", "own") else said)


def _head(comparison: Comparison, cell: Cell) -> str:
    """Return a panel's title: its setting, and the column where others of the setting are of other accuracies."""
    setting, column = cell.trials.setting, comparison.layout.column_of(cell.printed)
    several = {each.printed.metric for each in comparison.cells.values() if each.trials.setting == setting}
    if column is None or len(several) == 1 or cell.metric.quantity != "accuracy":
        return setting
    return f"{setting}, {column.header}"


def _skip_start(axes: Any) -> None:
    """Raise the lower end of the y-axis to the lowest accuracy after a tenth of the rounds, if that cuts more than 30%.

    An untrained start would squeeze curves that differ by less than a point into one line.
    """
    if len(axes.lines) < 2:
        return
    ys = [y for line in axes.lines for x, y in zip(*line.get_data(), strict=True) if x > axes.dataLim.x1 / 10]
    low, high = axes.get_ylim()
    if ys and min(ys) - low > 0.3 * (high - low):
        margin = 0.05 * (axes.dataLim.y1 - min(ys))
        axes.set_ylim(min(ys) - margin, axes.dataLim.y1 + margin)


def _scored(comparison: Comparison, cell: Cell) -> str:
    """Return the column of the rounds that a cell's metric is of."""
    if cell.metric.quantity != "accuracy":
        return "personal_accuracy"
    view = comparison.layout.view(cell.metric, cell.printed.method)
    target = cell.metric.options.get("target", "own")
    return f"{view}_accuracy" if target == "own" else f"{view}_{target}_accuracy"


def _by_round(trials: list[FinishedTrial], column: str, label: str) -> Curve:
    """Return a curve over the rounds that all trials evaluated; the band is one std over seeds."""
    return mean_curve(label, [by_round(trial, column) for trial in trials], _one_std)


def _one_std(values: NDArray[np.float64]) -> tuple[float, float]:
    mean, std = mean_std(values.tolist())
    return mean - std, mean + std


def new_clients(comparison: Comparison) -> Iterator[Picture]:
    """Draw accuracy of clients that took part in no round, by epoch of their fine-tuning, a figure a setting."""
    for setting, methods in _grouped(comparison, lambda cell: cell.trials.setting).items():
        made = []
        for each in methods:
            seeds = [curve for trial in each.trials.finished.values() if len(curve := new_clients_accuracy(trial))]
            if seeds:
                made.append(mean_curve(each.printed.label, seeds))
        if made:
            picture = figures.accuracy(made, f"New clients, {setting}", by="epoch")
            shows = f"accuracy of new clients by epoch of fine-tuning, {setting}"
            yield Picture(f"new-{style.stem(setting)}", shows, picture)


def privacy(comparison: Comparison) -> Iterator[Picture]:
    """Draw accuracy against epsilon, one line per method; what trains without noise is a dashed line."""
    spent = {
        place: cell for place, cell in comparison.cells.items() if cell.printed.metric == "epsilon" and cell.has_number
    }
    datasets = list(dict.fromkeys(cell.printed.dataset for cell in spent.values()))
    if not datasets:
        return
    labels = _labels(comparison)
    shown: list[dict[str, dict[str, Any]]] = []
    with style.panels(len(datasets), (4.6, 3.4), legend=0) as (made, all_axes):
        ends: list[list[EndLabel]] = []
        for axes, dataset in zip(all_axes, datasets, strict=True):
            points: dict[str, list[tuple[float, float]]] = {}
            for (row, _), each in spent.items():
                pair = [
                    m
                    for (r, _), m in comparison.cells.items()
                    if r == row and m.printed.metric == "acc" and m.has_number
                ]
                own = [m for m in pair if m.printed.dataset == dataset == each.printed.dataset]
                own = [m for m in own if m.printed.setting == each.printed.setting]
                for accuracy in own:
                    points.setdefault(each.printed.method, []).append((each.value.mean, accuracy.value.mean))
            order = sorted(points, key=lambda method: -max(accuracy for _, accuracy in points[method]))
            ends.append([])
            shown.append(looks := lines.line_styles(order, _own(comparison)))
            for method, look in looks.items():
                finite = sorted(pair for pair in points[method] if math.isfinite(pair[0]))
                epsilons, accuracies = ([pair[k] for pair in finite] for k in (0, 1))
                axes.plot(epsilons, accuracies, marker="o", markersize=4, gid=f"privacy {dataset} {method}", **look)
                for flat in (pair[1] for pair in points[method] if math.isinf(pair[0])):
                    axes.axhline(flat, color=look["color"], linestyle="--", linewidth=1)
                if finite:
                    ends[-1].append(EndLabel(labels[method], *finite[-1], look["color"]))
            axes.set(title=dataset, xlabel="epsilon", ylabel="mean accuracy over clients (%)")
            lines.percent(axes)
        lines.name_ends(made, zip(all_axes, ends, strict=True))
    colours = lines.colours_in_words(shown, _own(comparison), comparison.layout.whose)
    yield Picture("privacy", f"accuracy against epsilon; dashed: without noise; {colours}", made)


def gains(comparison: Comparison) -> Iterator[Picture]:
    """Draw each client's gain over the baseline, a figure a column."""
    labels = _labels(comparison)
    order = list(labels.values())
    for number, column in enumerate(comparison.layout.columns):
        baseline = comparison.layout.metrics[column.metric].options.get("baseline")
        there = [cell for (_, c), cell in sorted(comparison.cells.items()) if c == number and cell.has_number]
        if there and baseline is not None:
            by_method = {
                labels[cell.printed.method]: [each.to_numpy() for each in comparison.by_client(cell)] for cell in there
            }
            head = f"Gains in the last round, {title(column)}"
            picture = figures.gains(by_method, labels.get(baseline, baseline), order, head)
            yield Picture(f"gains-{_stem(comparison.layout, column)}", f"gain of each client, {title(column)}", picture)


def _stem(layout: Layout, column: Column) -> str:
    """Return a column's setting as names of pictures have it; where others share it, all that tells it apart."""
    if sum(each.setting == column.setting for each in layout.columns) == 1:
        return style.stem(column.setting)
    alike = (column.dataset, column.model, column.setting, column.metric, "variant" if column.variant else "")
    return style.stem("/".join(filter(None, alike)))


def by_row(comparison: Comparison) -> Iterator[Picture]:
    """Draw the last round's numbers against what rows are called, one line per setting; the bar is one std."""
    settings: dict[str, list[Cell]] = {}
    for _, each in sorted(comparison.cells.items()):
        if each.has_number:
            settings.setdefault(each.trials.setting, []).append(each)
    if not settings:
        return
    with style.figure(5.2, 3.4) as (made, axes):
        for look, (setting, cells) in zip(style.series_styles(), settings.items(), strict=False):
            means, stds = [cell.value.mean for cell in cells], [cell.value.std or 0.0 for cell in cells]
            labels = [cell.printed.label for cell in cells]
            axes.errorbar(labels, means, stds, capsize=3, label=setting, gid=f"by row {setting}", **look)
        axes.set(xlabel="row of the table", ylabel="mean accuracy over clients (%)")
        axes.legend()
    yield Picture("by-row", "the table's rows; bar: one std", made)


FIGURES: dict[str, Callable[[Comparison], Iterator[Picture]]] = {
    "curves": curves,
    "newcomers": new_clients,
    "privacy": privacy,
    "gains": gains,
    "by_row": by_row,
    **leaderboard_figures.FIGURES,
    **weight_figures.FIGURES,
    **study_figures.FIGURES,
}
