"""The quantities of the papers' tables, each from one trial, and what becomes of them over seeds."""

import math
from collections.abc import Callable
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pflsweep.config.options import VIEW_NAMES
from pflsweep.report import quantities
from pflsweep.report.paper import study_numbers, weights
from pflsweep.report.paper.store import FinishedTrial
from pflsweep.report.quantities import at_last, client_accuracy, column, new_clients_accuracy, rounds_to
from pflsweep.report.stats import mean_std

Values = pd.Series  # by client


class Value(NamedTuple):
    """A cell: NaN if nothing can be measured."""

    mean: float
    std: float | None
    n: int  # trials behind it


def accuracy(trial: FinishedTrial, options: dict[str, Any], view: str) -> Values:
    """Return accuracy by client, in the last evaluated round, or under `round: best` in the one in which the personal
    models are best, whatever the view. view: whose models. `target`: on whose test data.
    """
    clients = trial.clients_best if options.get("round") == "best" else trial.clients
    target, group = options.get("target", "own"), options.get("group")
    values = client_accuracy(clients, view, target)
    if group is None:
        return values
    groups = trial.partition.groupby("client")["group"].first().map(_plain).loc[values.index]
    return values.groupby(groups).mean() if group == "mean" else values[groups == _plain(group)]


def accuracy_by_samples(trial: FinishedTrial, options: dict[str, Any], view: str) -> float:
    """Return accuracy over all clients' own test samples together, where `accuracy` counts clients. `round: best` is
    the best round by this.
    """
    scored = column(trial.rounds, f"{view}_accuracy_weighted").dropna()
    if scored.empty:
        return math.nan
    return float(scored.max() if options.get("round") == "best" else scored.iloc[-1])


def _plain(name: str) -> str:
    """Return a group's name as settings write it: realworld of Real World."""
    return "".join(letter for letter in str(name).lower() if letter.isalnum())


def new_clients(trial: FinishedTrial, options: dict[str, Any]) -> float:
    """Return the mean over the clients that took part in no round, after the last epoch of their fine-tuning."""
    curve = new_clients_accuracy(trial)
    return float(curve.iloc[-1]) if len(curve) else math.nan


def mean_accuracy(trial: FinishedTrial, options: dict[str, Any]) -> float:
    """Return the mean accuracy over the evaluated rounds of the `first` so many."""
    return float(trial.rounds.loc[trial.rounds["round"] <= options["first"], "personal_accuracy"].mean())


def rounds_to_goal(trial: FinishedTrial, options: dict[str, Any]) -> float:
    """Return the first evaluated round whose mean accuracy is at least `goal`; infinite if none is."""
    first = rounds_to(trial, options["goal"])
    return math.inf if math.isnan(first) else first


def images_per_second(trial: FinishedTrial, options: dict[str, Any]) -> float:
    """Return the images of training a second."""
    return quantities.images_per_second(trial)


def minutes(trial: FinishedTrial, options: dict[str, Any]) -> float:
    """Return training time up to the first round whose accuracy is `within` so much of the best round's, in minutes."""
    scored = trial.rounds["personal_accuracy"]
    settled = trial.rounds.index[scored >= scored.max() - options["within"]][0]
    return float(trial.rounds.loc[:settled, "seconds"].sum() / 60)


def minutes_per_round(trial: FinishedTrial, options: dict[str, Any]) -> float:
    """Return the mean training time of a round, in minutes."""
    return float(trial.rounds["seconds"].mean() / 60)


def round_std(trial: FinishedTrial, options: dict[str, Any]) -> float:
    """Return how unsteady training is: the std of the change of mean accuracy from one evaluated round to the next."""
    target = options.get("target", "own")
    column = "personal_accuracy" if target == "own" else f"personal_{target}_accuracy"
    changes = trial.rounds[column].dropna().diff() if column in trial.rounds else pd.Series(dtype=float)
    return float(changes.std())


def floats(trial: FinishedTrial, options: dict[str, Any]) -> float:
    """Return the numbers sent and received by a client in a round."""
    return float((column(trial.rounds, "floats_down") + column(trial.rounds, "floats_up")).mean())


def epsilon(trial: FinishedTrial, options: dict[str, Any]) -> float:
    """Return the epsilon that DP-SGD has spent by the end."""
    if trial.config.get("privacy.sigma") == 0:
        return math.inf
    return at_last(trial, "epsilon")


def ala_parameters(trial: FinishedTrial, options: dict[str, Any]) -> float:
    """Return how many millions of weights ALA learns: those of the model's top algorithm.layers blocks.

    `blocks`: parameters of each block below the head, from the bottom. `head`: the features that go into the head.
    """
    head = (options["head"] + 1) * trial.meta["classes"]
    below = trial.config["algorithm.layers"] - 1
    return float(head + sum(options["blocks"][len(options["blocks"]) - below :])) / 1e6


# The function of a quantity: of a trial and a metric's options, with the `row` they are for
Quantity = Callable[[FinishedTrial, dict[str, Any]], float]
NUMBERS: dict[str, Quantity] = {
    "newcomers": new_clients,
    "mean_accuracy": mean_accuracy,
    "rounds_to": rounds_to_goal,
    "images_per_second": images_per_second,
    "minutes": minutes,
    "minutes_per_round": minutes_per_round,
    "floats": floats,
    "epsilon": epsilon,
    "ala_parameters": ala_parameters,
    "round_std": round_std,
    **weights.NUMBERS,
    **study_numbers.NUMBERS,
}
# The options that a quantity needs, and those that it may have
OPTION_NAMES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "accuracy": ((), ("view", "target", "round", "group", "take", "by")),
    "gain": (("baseline",), ("view", "target", "round", "take")),
    "mean_accuracy": (("first",), ()),
    "rounds_to": (("goal",), ()),
    "minutes": (("within",), ()),
    "round_std": ((), ("target",)),
    "ala_parameters": (("blocks", "head"), ()),
    **study_numbers.OPTION_NAMES,
}
OPTION_VALUES = {
    "view": VIEW_NAMES,
    "target": ("own", "subset", "all"),
    "round": ("last", "best"),
    "take": ("mean", "min"),
    "by": ("clients", "samples"),
}
SHARES = ("accuracy", "gain", "newcomers", "mean_accuracy")  # in [0, 1], or between -1 and 1
QUANTITIES = ("accuracy", "gain", *NUMBERS)


def mean_over_seeds(numbers: list[float]) -> Value:
    """Return the mean and sample standard deviation; the std is None for one seed, or where a number is infinite."""
    mean, std = mean_std(numbers)
    return Value(mean, None if math.isnan(std) else std, len(numbers))


def mean_over_clients(values: list[Values]) -> Value:
    """Return the mean over clients, and std over them (of all clients, so with n); each averaged over the seeds."""
    if not values or any(each.empty for each in values):
        return Value(math.nan, None, len(values))
    return Value(
        fmean(float(v.mean()) for v in values), fmean(float(np.std(v.to_numpy())) for v in values), len(values)
    )
