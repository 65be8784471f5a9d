"""Figures of accuracy against each hyperparameter that was searched, one a setting."""

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from pflsweep.config.keys import as_override, is_number
from pflsweep.report import figures, lines, style
from pflsweep.report.lines import EndLabel
from pflsweep.report.paper.comparison import Comparison
from pflsweep.report.paper.formats import in_order, short
from pflsweep.report.paper.store import CellTrials
from pflsweep.report.style import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEWEST = 3  # points of a search that say something


class Slice(NamedTuple):
    """A search seen along one hyperparameter."""

    key: str
    method: str
    points: list[tuple[Any, float]]  # its value, a number or a name, and the accuracy in percent; in order of values
    joined: bool  # whether the best of the points with a value says what the value can reach


def pictures(comparison: Comparison, own: Collection[str] = ()) -> Iterator[Picture]:
    """Yield a figure a setting. own: the paper's methods."""
    labels = {line.method: short(line.label) for line in reversed(comparison.layout.printed)}
    settings: dict[str, list[CellTrials]] = {}
    for trials in comparison.trials_by_cell:
        if trials.method in labels and len(trials.tried) >= FEWEST:
            settings.setdefault(trials.setting, []).append(trials)
    for setting, searched in settings.items():
        panels: dict[str, list[Slice]] = {}
        for found in (each for trials in searched for each in slices(trials)):
            panels.setdefault(found.key, []).append(found)
        if panels:
            drawn = _figure(setting, panels, labels, own, searched[0].split)
            methods = [[each.method for each in found] for found in panels.values()]
            shows = f"accuracy by each searched hyperparameter, {setting}"
            if any(each.joined for found in panels.values() for each in found):
                shows += "; line: the best of the points with a value"
            shows += f"; {lines.colours_in_words(methods, own, comparison.layout.whose)}"
            yield Picture(f"sensitivity-{style.stem(setting)}", shows, drawn)


def slices(trials: CellTrials) -> Iterator[Slice]:
    """Yield a search's slice along each hyperparameter of which several values were tried."""
    found: dict[str, list[tuple[Any, float]]] = {}
    for point, value in trials.tried:
        for key in point:
            at = point[key] if is_number(point[key]) else as_override(point[key])
            found.setdefault(key, []).append((at, 100 * value))
    varied = {key: points for key, points in found.items() if len({value for value, _ in points}) > 1}
    for key, points in varied.items():
        # Random points have each value once: which of them is better depends on the other hyperparameters, too
        joined = len(varied) == 1 or len({value for value, _ in points}) < len(points)
        yield Slice(key, trials.method, sorted(points, key=lambda point: in_order(point[0])), joined)


def _figure(
    setting: str, panels: dict[str, list[Slice]], labels: dict[str, str], own: Collection[str], split: str
) -> "Figure":
    with style.panels(len(panels), (4.2, 3.0), legend=0, sharey=True) as (made, all_axes):
        ends: list[list[EndLabel]] = []
        for axes, (key, found) in zip(all_axes, panels.items(), strict=True):
            values = sorted({value for each in found for value, _ in each.points}, key=in_order)
            numeric = is_number(values[-1])  # names come last
            if not numeric:  # an axis has either numbers or names: null beside numbers makes names of these
                axes.xaxis.update_units(list(map(as_override, values)))
                found = [each._replace(points=[(as_override(x), y) for x, y in each.points]) for each in found]
            by_method = {each.method: each for each in found}
            order = sorted(by_method, key=lambda method: -max(value for _, value in by_method[method].points))
            looks = lines.line_styles(order, own)
            ends.append([
                _draw(axes, by_method[method], look, labels[method], f"{setting} {key} {method}")
                for method, look in looks.items()
            ])  # fmt: skip
            axes.set(xlabel=key)
            if numeric and 0 < 5 * values[0] < values[-1]:
                figures.log_axis(axes, values[-1] / values[0])
            elif all(isinstance(value, int) for value in values):
                axes.xaxis.set_major_locator(figures.integer_ticks(6))
            if axes.get_subplotspec().is_first_col():
                axes.set_ylabel(f"accuracy on {split} data (%)")
            lines.percent(axes)
        made.suptitle(setting, x=0.01, ha="left", fontsize=10.5)
        lines.name_ends(made, zip(all_axes, ends, strict=True))
    return made


def _draw(axes: "Axes", slice_: Slice, look: dict[str, Any], label: str, name: str) -> EndLabel:
    """Draw every point as a dot, and the best at each value as a line where it is `joined`; return its right end."""
    best: dict[Any, float] = {}
    for value, accuracy in slice_.points:
        best[value] = max(accuracy, best.get(value, accuracy))
    at = list(best)
    values, accuracies = zip(*slice_.points, strict=True)
    size, alpha = (9, 0.35) if slice_.joined else (20, 1.0)
    axes.scatter(values, accuracies, s=size, color=look["color"], alpha=alpha, linewidth=0, gid=f"points {name}")
    if slice_.joined:
        axes.plot(at, [best[value] for value in at], marker="o", markersize=3, gid=f"sensitivity {name}", **look)
    return EndLabel(label, at[-1], best[at[-1]], look["color"])
