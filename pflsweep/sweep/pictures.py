"""A search as a picture: how it went, each hyperparameter's slice of it, and what each is worth."""

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from pflsweep.report import figures, style
from pflsweep.sweep.plan import Group
from pflsweep.sweep.queue import Queue, SweepTask

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIRST, BEST = style.PALETTE[0], style.PALETTE[1]


def of_searches(queue: Queue) -> dict[str, "Figure"]:
    """By name, each search with at least two results."""
    found = {}
    for g, group in enumerate(queue.plan.groups):
        done = [slot for job in queue.plan.compared(g) if (slot := queue.slots[job]).value is not None]
        if len(done) > 1:
            name = group.name.replace("/", "-").replace(" ", "/")
            found[f"search/{name}"] = search(group, done, worth(queue, g), queue.plan.tune.split)
    return found


def worth(queue: Queue, group: int) -> dict[str, float]:
    """Optuna's importance of each hyperparameter, to the sum 1; empty where too few points say nothing of it."""
    import optuna

    of = queue.plan.groups[group]
    if len(queue.plan.compared(group)) < of.tries:  # by hyperband: accuracies after unlike rounds do not compare
        return {}
    if len(of.space) < 2 or of.tries <= 2 * len(of.space):
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return optuna.importance.get_param_importances(queue.study_of(group))
        except (ValueError, RuntimeError, ZeroDivisionError):  # all points are alike, or too few
            return {}


def search(group: Group, done: list[SweepTask], worth: dict[str, float], split: str) -> "Figure":
    """History on the left, then a panel for each hyperparameter; accuracy in percent."""
    values = np.array([100 * (slot.value or 0.0) for slot in done])
    width = 3.2 * (1 + len(group.space))
    with style.figure(width, 3.2, ncols=1 + len(group.space), sharey=True, squeeze=False) as (made, grid):
        first, *slices = grid[0]
        first.plot(np.arange(1, len(values) + 1), values, "o", color=FIRST, label="a point")
        first.step(np.arange(1, len(values) + 1), np.maximum.accumulate(values), color=BEST, where="post", label="best")
        first.set(xlabel="point", ylabel=f"accuracy on {split} data (%)", title=group.name)
        first.xaxis.set_major_locator(figures.whole())
        first.legend()
        for axes, (key, axis) in zip(slices, group.space.items(), strict=True):
            tried = [slot.trial.params[key] for slot in done if slot.trial is not None]
            _slice(axes, tried, values, log=axis.log)
            says = f"importance {worth[key]:.0%}" if key in worth else ""
            axes.set(xlabel=key, title=says)
    return made


def _slice(axes: "Axes", tried: list[Any], values: np.ndarray, log: bool) -> None:
    """Accuracy by the value of one hyperparameter; the best point is marked."""
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in tried)
    at: Any = tried if numeric else [str(value) for value in tried]
    axes.scatter(at, values, color=FIRST)
    best = int(values.argmax())
    axes.scatter([at[best]], [values[best]], color=BEST, zorder=3)
    if numeric and log:
        axes.set_xscale("log")
