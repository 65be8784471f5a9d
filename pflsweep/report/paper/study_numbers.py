"""The tables that studies leave (pflsweep/studies), and numbers of them, each from one trial."""

import math
from collections.abc import Callable
from typing import Any

import pandas as pd

from pflsweep.report.paper.store import FinishedTrial


def by_step(trial: FinishedTrial) -> pd.DataFrame:
    """Return accuracy in [0, 1] on own test rows by (objective, client), one column per step.

    Clients without test rows are left out.
    """
    steps = trial.study
    steps = steps[steps["n"] > 0]
    return steps.assign(accuracy=steps["correct"] / steps["n"]).pivot(
        index=["objective", "client"], columns="step", values="accuracy"
    )


def gain_by_client(trial: FinishedTrial, objective: str) -> pd.Series:
    """Return what all steps with one objective have gained each client."""
    steps = by_step(trial).loc[objective]
    return steps[steps.columns.max()] - steps[0]


def step_gain(trial: FinishedTrial, options: dict[str, Any]) -> float:
    """Return the gain of a step, mean over clients; the row is the objective."""
    return math.nan if trial.study.empty else float(gain_by_client(trial, options["row"]).mean())


def loss_fall(trial: FinishedTrial, options: dict[str, Any]) -> float:
    """Return by how much weight learning lowers the loss: `when` is first, the first round that was looked at, or
    later, the mean over the others.
    """
    curves = trial.study
    if curves.empty:
        return math.nan
    wide = curves.pivot(index="round", columns="epoch", values="loss")
    falls = wide[0] - wide[wide.columns.max()]
    return float(falls.iloc[0] if options["when"] == "first" else falls.iloc[1:].mean())


def start_loss(trial: FinishedTrial, options: dict[str, Any]) -> float:
    """Return the training loss of what local training starts from, mean over rounds.

    `when`: before (ALA begins), after, or without, which is after as well, of the trajectory that has no ALA.
    """
    points = trial.study
    if points.empty:
        return math.nan
    starts = points[(points["at"] == "start") & (points["ala"].eq(options["when"] != "before"))]
    return float(starts.loc[starts["series"] == ("without" if options["when"] == "without" else "with"), "loss"].mean())


NUMBERS: dict[str, Callable[[FinishedTrial, dict[str, Any]], float]] = {
    "step_gain": step_gain,
    "loss_fall": loss_fall,
    "start_loss": start_loss,
}
WHEN = {"loss_fall": ("first", "later"), "start_loss": ("before", "after", "without")}
OPTION_NAMES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "loss_fall": (("when",), ()),
    "start_loss": (("when",), ()),
}
