"""Plot searches: the course of accuracy, accuracy by each hyperparameter, and the importance of each."""

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from pflsweep.config.keys import is_number
from pflsweep.report import figures, style
from pflsweep.sweep.plan import Group
from pflsweep.sweep.queue import Queue
from pflsweep.sweep.slot_state import SlotState

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIRST, BEST = style.PALETTE[0], style.PALETTE[1]


def search_figures(queue: Queue) -> dict[str, "Figure"]:
    """Return by name a figure of each search with at least two results."""
    found = {}
    for g, group in enumerate(queue.plan.groups):
        done = [state for slot in queue.plan.compared_slots(g) if (state := queue.sweep.states[slot]).value is not None]
        if len(done) > 1:
            name = group.name.replace("/", "-").replace(" ", "/")
            found[f"search/{name}"] = plot_search(group, done, importances(queue, g), queue.plan.tune.split)
    return found


def importances(queue: Queue, group: int) -> dict[str, float]:
    """Return Optuna's importance of each hyperparameter, with sum 1; empty if there are too few points for it."""
    import optuna

    planned = queue.plan.groups[group]
    # In a search by hyperband, accuracies after different numbers of rounds do not compare
    if len(queue.plan.compared_slots(group)) < planned.search_slot_count:
        return {}
    if len(planned.space) < 2 or planned.search_slot_count <= 2 * len(planned.space):
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return optuna.importance.get_param_importances(queue.study_of(group))
        except (ValueError, RuntimeError, ZeroDivisionError):
            # All points have the same score, or there are too few
            return {}


def plot_search(group: Group, done: list[SlotState], importances: dict[str, float], split: str) -> "Figure":
    """Plot a search: its history on the left, then a panel for each hyperparameter. Accuracy is in percent.

    done: states of the slots with a result. importances: by key. split: the data that accuracy was measured on.
    """
    values = np.array([100 * (state.value or 0.0) for state in done])
    width = 3.2 * (1 + len(group.space))
    with style.figure(width, 3.2, ncols=1 + len(group.space), sharey=True, squeeze=False) as (made, grid):
        first, *slices = grid[0]
        first.plot(np.arange(1, len(values) + 1), values, "o", color=FIRST, label="a point")
        first.step(np.arange(1, len(values) + 1), np.maximum.accumulate(values), color=BEST, where="post", label="best")
        first.set(xlabel="point", ylabel=f"accuracy on {split} data (%)", title=group.name)
        first.xaxis.set_major_locator(figures.integer_ticks())
        first.legend()
        for axes, (key, axis) in zip(slices, group.space.items(), strict=True):
            tried = [state.trial.params[key] for state in done if state.trial is not None]
            _slice(axes, tried, values, log=axis.log)
            says = f"importance {importances[key]:.0%}" if key in importances else ""
            axes.set(xlabel=key, title=says)
    return made


def _slice(axes: "Axes", tried: list[Any], values: np.ndarray, log: bool) -> None:
    """Plot accuracy in percent by the value of one hyperparameter, and mark the best point."""
    numeric = all(map(is_number, tried))
    at: Any = tried if numeric else [str(value) for value in tried]
    axes.scatter(at, values, color=FIRST)
    best = int(values.argmax())
    axes.scatter([at[best]], [values[best]], color=BEST, zorder=3)
    if numeric and log:
        axes.set_xscale("log")
