"""Check whether a method works: on real digits, over seeds, it beats the same code with its mechanism switched off."""

from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np

from pflsweep.config.compose import Config, compose
from pflsweep.engine.simulation import Simulation
from pflsweep.trial.build import build

SEEDS = (0, 1, 2)
LAST = 3  # rounds whose accuracy is averaged
# A hard federation: two of the ten classes a client, in groups; small enough for a second or two a run.
HARD = (
    "dataset=digits model=mlp partition=pathological partition.clients=10 train.participation=0.5 train.rounds=8 "
    "train.batch=16 train.lr=0.1"
)

# Each client has few samples
ALIKE = HARD.replace("pathological", "iid") + " partition.clients=30"
SOME_ALIKE = HARD.replace("pathological", "dirichlet") + " partition.clients=20 partition.alpha=0.5 partition.least=20"
# Six clients in each of the groups, with few samples each.
GROUPS = HARD + " partition.clients=30 partition.least=20 train.participation=1 train.rounds=5"
# Long local training on two shards a client, with all clients in every round.
DRIFT = (
    HARD.replace("pathological", "shards") + " train.epochs=5 train.lr=0.05 train.participation=1 train.weights=uniform"
)

# Six clients a round
PARTIAL = DRIFT + " model.hidden=[100] partition.clients=20 train.participation=0.3 train.rounds=20"
# Steps that are too short for this number of rounds
SHORT = DRIFT + " model.hidden=[100] train.epochs=1 train.lr=0.01 train.rounds=12"


class Works(NamedTuple):
    """The claim of one method: its accuracy with the overrides `on` is higher than with `off`."""

    says: str  # the claim in a few words
    off: str  # overrides that take the mechanism away, such as "algorithm.mu=0"
    on: str = ""  # overrides of the method's own side
    where: str = HARD  # overrides of both sides
    view: str = "personal"

    def margins(self, algorithm: str) -> np.ndarray:
        """Return how much higher accuracy is with `on` than with `off`, for each seed."""
        common = f"algorithm={algorithm} tracking=none {self.where}"
        on, off = (
            np.array([accuracy(f"{common} {side}", self.view, seed) for seed in SEEDS]) for side in (self.on, self.off)
        )
        return on - off


def holds(margins: np.ndarray) -> bool:
    """Return whether the mean margin is more than one standard error above 0."""
    return bool(margins.mean() > margins.std(ddof=1) / np.sqrt(len(margins)))


def accuracy(overrides: str, view: str, seed: int) -> float:
    """Return the mean accuracy of a view over clients, averaged over the last rounds."""
    return _accuracy(_chosen(f"{overrides} seed={seed}"), view)


def simulation(overrides: str) -> Simulation:
    """Return the simulation of a config. Later overrides of a key win."""
    return _simulation(_chosen(overrides))


def _chosen(overrides: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(dict(override.split("=", 1) for override in overrides.split()).items()))


# Cached, since many methods are compared with the same FedAvg
@cache
def _accuracy(chosen: tuple[tuple[str, str], ...], view: str) -> float:
    results = list(_simulation(chosen).run())
    return float(np.mean([np.nanmean(result.scores[view].accuracy) for result in results[-LAST:]]))


def _simulation(chosen: tuple[tuple[str, str], ...]) -> Simulation:
    config, seed = _composed(tuple(pair for pair in chosen if pair[0] != "seed")), int(dict(chosen).get("seed", 0))
    parts = build(replace(config, values={**config.values, "seed": seed}))
    return Simulation(parts.verbs, parts.task, parts.federation, parts.schedule, parts.task.vector(parts.model))


@cache
def _composed(chosen: tuple[tuple[str, str], ...]) -> Config:
    return compose([f"{key}={value}" for key, value in chosen])
