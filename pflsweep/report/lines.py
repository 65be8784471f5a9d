"""Lines of a figure: which of many are drawn, how they look, and their names where they end."""

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pflsweep.report import style
from pflsweep.report.naming import REFERENCES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 12  # lines of a panel: more cannot be told apart
GREY = "#b0b0b0"
DASHED: dict[str, Any] = {"local": (0, (1.2, 1.2)), "fedavg": (0, (5, 1.5))}
NAME = 8  # points of a name's letters
PITCH = 0.135  # inches from one name to the next below it
SEEN = 0.01  # of an axis: a band that is narrower than that hides behind its line


class EndLabel(NamedTuple):
    """The name of a line, and the end of the line beside which it stands."""

    name: str
    x: float
    y: float
    color: str


def line_styles(order: Sequence[str], own: Collection[str] = ()) -> dict[str, dict[str, Any]]:
    """Return how each line is drawn, by its key; at most MOST of them.

    The paper's own method is blue, the best of the others vermilion, all others are grey. order: the best first.
    """
    best = next((key for key in order if key not in own), None)
    shown = [key for key in order if key in own or key == best or key in REFERENCES]
    shown += [key for key in order if key not in shown][: max(0, MOST - len(shown))]
    mine = [key for key in shown if key in own]
    found: dict[str, dict[str, Any]] = {}
    for key in reversed(shown[:MOST]):  # what is drawn last lies on top
        look: dict[str, Any] = {"color": GREY, "linewidth": 1.2, "linestyle": DASHED.get(key, "-"), "zorder": 2}
        if key in own:
            dash = style.DASHES[mine.index(key) % len(style.DASHES)]
            look |= {"color": style.PALETTE[0], "linewidth": 2.2, "linestyle": dash, "zorder": 4}
        elif key == best:
            look |= {"color": style.PALETTE[1], "linewidth": 1.9, "linestyle": "-", "zorder": 3}
        found[key] = look
    return found


def drawn_in_words(drawn: Iterable[Collection[str]]) -> str:
    """Return which lines are drawn of more than MOST. drawn: the lines of each panel."""
    also = [name for name in REFERENCES if any(name in panel for panel in drawn)]
    return " and ".join(["the best", *also]) if len(also) < 2 else f"the best, {also[0]} and {also[1]}"


def colours_in_words(drawn: Iterable[Collection[str]], own: Collection[str], whose: str = "paper") -> str:
    """Return what the colours mean. drawn: the lines of each panel. own: lines of a method, and whose it is."""
    methods = {each for panel in drawn for each in panel}
    if not methods & set(own):
        return "orange: the best method"
    return f"blue: the {whose}'s method" + (", orange: the best other one" if methods - set(own) else "")


def distinct(keys: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return how each line is drawn, each in a colour of its own: for no more lines than there are colours.

    keys: in the order of colours, which is that of a table, so that a method keeps its colour from figure to figure.
    """
    return {key: {**look, "marker": ""} for key, look in zip(keys, style.series_styles(), strict=False)}


def name_ends(made: "Figure", panels: Iterable[tuple["Axes", Sequence[EndLabel]]]) -> None:
    """Write the name of each line at the right of its axes, as high as the line ends, without overlaps.

    The limits of the axes have to be set before.
    """
    made.draw_without_rendering()  # the heights of the axes are known only then
    for axes, ends in panels:
        _name_ends(axes, ends, axes.get_window_extent().height / made.dpi)


def _name_ends(axes: "Axes", ends: Sequence[EndLabel], inches: float) -> None:
    """Write the names of one panel. inches: the height of its axes."""
    low, high = axes.get_ylim()
    gap = PITCH * (high - low) / inches
    heights = _inside(style.spread([float(np.clip(end.y, low, high)) for end in ends], gap), gap, low, high)
    for end, height in zip(ends, heights, strict=True):
        axes.annotate(
            end.name,
            (end.x, float(np.clip(end.y, low, high))),
            (1.03, height),
            textcoords=axes.get_yaxis_transform(),
            fontsize=NAME,
            va="center",
            color="#666666" if end.color == GREY else end.color,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": "#cccccc",
                "linewidth": 0.6,
                "patchA": None,  # a gap in place of a cut at the name's box, which takes a third of the drawing
                "shrinkA": 2,
                "shrinkB": 0,
                "relpos": (0, 0.5),
            },
        )


def _inside(heights: list[float], gap: float, low: float, high: float) -> list[float]:
    """Return heights, `gap` apart, pushed between the ends of an axis; too many of them reach beyond the lower end."""
    found = list(heights)
    order = sorted(range(len(found)), key=lambda at: found[at])
    for number, at in enumerate(order):
        found[at] = max(found[at], low + number * gap)
    for number, at in enumerate(reversed(order)):
        found[at] = min(found[at], high - number * gap)
    return found


def band(axes: "Axes", x: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64], color: str) -> bool:
    """Draw a band where it can be seen beside its line; return whether it is. The limits of the axes have to be set."""
    bottom, top = axes.get_ylim()
    width = np.clip(high, bottom, top) - np.clip(low, bottom, top)
    if not len(width) or float(np.median(width)) < SEEN * (top - bottom):
        return False
    axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
    return True


def percent(axes: "Axes") -> None:
    """Cut an axis of accuracies in percent off at 0 and 100."""
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, 0.0), min(high, 100.0))
