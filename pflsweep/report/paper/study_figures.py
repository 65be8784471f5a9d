"""The figures of what studies have seen, by the names that a layout may ask for; of the first seed."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd

from pflsweep.report import style
from pflsweep.report.paper import study_numbers
from pflsweep.report.paper.comparison import Comparison
from pflsweep.report.paper.store import FinishedTrial
from pflsweep.report.style import Picture


def _trials(comparison: Comparison) -> dict[str, FinishedTrial]:
    """Return the first trial with a study by the sweep's setting."""
    return comparison.first_trials(lambda trial: not trial.study.empty)


def personal_steps(comparison: Comparison) -> Iterator[Picture]:
    """Draw accuracy by step, and how the gains of all steps spread over clients."""
    for setting, trial in _trials(comparison).items():
        mean = 100 * study_numbers.by_step(trial).groupby("objective").mean()
        gains = {objective: 100 * study_numbers.gain_by_client(trial, objective) for objective in mean.index}
        every = np.concatenate(list(gains.values()))
        bins = np.linspace(every.min(), every.max() + 1e-9, 21)
        with style.figure(9.5, 3.6, ncols=2) as (made, (left, right)):
            for look, objective in zip(style.series_styles(), mean.index, strict=False):
                left.plot(mean.columns, mean.loc[objective], label=objective, gid=f"steps {objective}", **look)
                right.hist(gains[objective], bins, color=look["color"], alpha=0.35, label=f"{objective}, clients")
                density = _density(gains[objective].to_numpy(), bins[1] - bins[0])
                if density is not None:
                    right.plot(
                        *density, color=look["color"], linestyle=look["linestyle"], label=f"{objective}, density"
                    )
            left.set(title="(a)", xlabel="personalisation step", ylabel="mean accuracy over clients (%)")
            right.set(title="(b)", xlabel="gain of a client (points)", ylabel="clients")
            left.legend()
            right.legend()
        shows = f"accuracy by personalisation step, and gains of the clients, {trial.meta['name']}"
        yield Picture(f"steps-{style.stem(setting)}", shows, made)


def _density(values: np.ndarray, width: float) -> tuple[np.ndarray, np.ndarray] | None:
    """Return a Gaussian kernel estimate (Scott's bandwidth), in clients per bin of this width; None if all are
    alike.
    """
    from scipy.stats import gaussian_kde

    if len(values) < 2 or np.ptp(values) == 0:
        return None
    reach = 0.15 * np.ptp(values)
    x = np.linspace(values.min() - reach, values.max() + reach, 200)
    return x, gaussian_kde(values)(x) * len(values) * width


def weight_learning(comparison: Comparison) -> Iterator[Picture]:
    """Draw loss by epoch of weight learning, one curve per round, one panel per setting."""
    trials = _trials(comparison)
    if not trials:
        return
    with style.figure(5.2 * len(trials), 3.6, ncols=len(trials), squeeze=False) as (made, grid):
        for axes, (setting, trial) in zip(grid[0], trials.items(), strict=True):
            curves = trial.study
            for look, (round, curve) in zip(style.series_styles(), curves.groupby("round"), strict=False):
                axes.plot(curve["epoch"], curve["loss"], label=round, gid=f"curve {setting} {round}", **look)
            client = trial.config["study.client"]
            axes.set(title=setting, xlabel="epoch of weight learning", ylabel=f"local loss of client {client}")
            axes.legend(title="round", loc="upper left", bbox_to_anchor=(1, 1))  # curves are anywhere
    yield Picture("weight-learning", "local loss by epoch of ALA's weight learning, one curve per round", made)


LOOKS = {"without": ("#000000", "ALA off"), "with": (style.PALETTE[0], "ALA on")}  # colour and label, by series
# Marker and colour, as in the paper, and size: where a step is short, the square lies on its circle without hiding it
ENDS = {"start": ("o", style.PALETTE[1], 5.5), "end": ("s", style.PALETTE[2], 2.5)}


def trajectory(comparison: Comparison) -> Iterator[Picture]:
    """Draw one client's models on the plane of their principal components, over its training loss there."""
    for setting, trial in _trials(comparison).items():
        parts = dict(iter(trial.study.groupby("what")))
        points = parts["point"].sort_values(["round", "at"], ascending=[True, False], kind="stable")
        first, last = int(points["round"].min()), int(points["round"].max())
        begins = points[points["ala"].astype(bool)]["round"].min()  # nan where ALA never acts
        with style.figure(7.4, 5.6) as (made, axes):
            filled = _surface(axes, parts["surface"])
            made.colorbar(filled, ax=axes, label=f"training loss of client {trial.config['study.client']}")
            for series, (color, label) in LOOKS.items():
                own = points[points["series"] == series]
                if series == "with":  # until then both are one
                    own = own[(own["round"] >= begins) | ((own["round"] == begins - 1) & (own["at"] == "end"))]
                _path(axes, own, color, label, series)
            c1, c2 = 100 * parts["axis"][["c1", "c2"]].iloc[0]
            axes.set(title=setting, xlabel=f"C1 ({c1:.0f}% of the variance)", ylabel=f"C2 ({c2:.0f}%)")
            axes.grid(False)
            made.legend(loc="outside lower center", ncols=4)
        acts = "" if np.isnan(begins) else f", ALA on from {int(begins)}"
        shows = f"rounds {first} to {last}{acts}: circles start, squares end local training, {trial.meta['name']}"
        yield Picture(f"trajectory-{style.stem(setting)}", shows, made)


def _surface(axes: Any, surface: pd.DataFrame) -> Any:
    """Draw the loss as filled contours; the highest hundredth, which may be far above the rest, is one colour."""
    wide = surface.pivot(index="c2", columns="c1", values="loss")
    low, high = np.nanmin(wide), np.nanpercentile(wide, 99)
    levels = np.linspace(low, high, 25) if high > low else 25
    return axes.contourf(wide.columns, wide.index, wide, levels, cmap=style.MAP, extend="max", alpha=0.6)


def _path(axes: Any, points: pd.DataFrame, color: str, label: str, series: str) -> None:
    """Draw arrows from point to point; circles where local training starts and squares where it ends."""
    at = points[["c1", "c2"]].to_numpy(dtype=float)
    if not len(at):
        return
    axes.plot(*at.T, color=color, linewidth=0.9, label=label, gid=f"path {series}")
    step = np.diff(at, axis=0)
    tails, heads = at[:-1] + 0.45 * step, 0.1 * step
    look = {"color": color, "width": 0.003, "headwidth": 5, "minlength": 0}
    axes.quiver(*tails.T, *heads.T, angles="xy", scale_units="xy", scale=1, **look)
    for end, (marker, fill, size) in ENDS.items():
        own, name = at[(points["at"] == end).to_numpy()], end if series == "without" else None
        axes.plot(*own.T, marker, markersize=size, color=fill, markeredgecolor=color, markeredgewidth=0.4, label=name)


FIGURES: dict[str, Callable[[Comparison], Iterator[Picture]]] = {
    "personal_steps": personal_steps,
    "weight_learning": weight_learning,
    "trajectory": trajectory,
}
