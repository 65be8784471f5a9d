"""How much a method's accuracy hangs on each hyperparameter that was searched, a figure a setting."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from pflsweep.report import style
from pflsweep.report.paper.comparison import Comparison
from pflsweep.report.paper.store import Answer
from pflsweep.report.style import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEWEST = 3  # points of a search that say something


class Slice(NamedTuple):
    """A search seen along one hyperparameter."""

    key: str
    method: str
    points: list[tuple[Any, float]]  # its value, and the accuracy in percent


def pictures(of: Comparison, looks: dict[str, dict[str, Any]]) -> Iterator[Picture]:
    """looks: how each method is drawn in all of a page's figures."""
    labels = {line.method: line.label for line in of.layout.printed}
    settings: dict[str, list[Answer]] = {}
    for answer in of.asked:
        if answer.method in labels and len(answer.tried) >= FEWEST:
            settings.setdefault(answer.setting, []).append(answer)
    for setting, answers in settings.items():
        panels: dict[str, list[Slice]] = {}
        for found in (each for answer in answers for each in slices(answer)):
            panels.setdefault(found.key, []).append(found)
        if panels:
            drawn = _figure(setting, panels, looks, labels, answers[0].split)
            shows = f"accuracy by each searched hyperparameter, {setting}; line: the best of the points with a value"
            yield Picture(f"sensitivity-{setting.replace('/', '-')}", shows, drawn)


def slices(answer: Answer) -> Iterator[Slice]:
    """Along each hyperparameter of which several values were tried."""
    for key in dict.fromkeys(key for point, _ in answer.tried for key in point):
        points = [(_plain(point[key]), 100 * value) for point, value in answer.tried if key in point]
        if len({value for value, _ in points}) > 1:
            yield Slice(key, answer.method, points)


def _plain(value: Any) -> Any:
    """Numbers as they are; all else has a place on an axis by its name."""
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return value if numeric else str(value)


def _figure(
    setting: str, panels: dict[str, list[Slice]], looks: dict[str, dict[str, Any]], labels: dict[str, str], split: str
) -> "Figure":
    with style.panels(len(panels), (3.2, 2.9), sharey=True) as (made, all_axes):
        lines: dict[str, Any] = {}
        for axes, (key, found) in zip(all_axes, panels.items(), strict=True):
            for each in found:
                look = looks[each.method]
                lines.setdefault(labels[each.method], _draw(axes, each, look, f"{setting} {key} {each.method}"))
            axes.set(xlabel=key)
            values = [value for each in found for value, _ in each.points]
            if all(isinstance(value, int | float) and value > 0 for value in values) and max(values) > 5 * min(values):
                axes.set_xscale("log")
            if axes.get_subplotspec().is_first_col():
                axes.set_ylabel(f"accuracy on {split} data (%)")
        made.suptitle(setting, x=0.01, ha="left", fontsize=10.5)
        style.legend(made, lines)
    return made


def _draw(axes: "Axes", of: Slice, look: dict[str, Any], name: str) -> Any:
    """Every point as a dot, the best at each value as a line."""
    best: dict[Any, float] = {}
    for value, accuracy in of.points:
        best[value] = max(accuracy, best.get(value, accuracy))
    numeric = all(not isinstance(value, str) for value in best)
    at = sorted(best) if numeric else list(best)
    values, accuracies = zip(*of.points, strict=True)
    axes.scatter(values, accuracies, s=9, color=look["color"], alpha=0.35, linewidth=0, gid=f"points {name}")
    (line,) = axes.plot(at, [best[value] for value in at], gid=f"sensitivity {name}", **{**look, "markersize": 4})
    return line
