"""pflsweep: declarative experiment sweeps for personalised federated learning."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pflsweep.trial.run import Result

__version__ = "0.1.0"


def run(
    overrides: list[str] | None = None,
    config_dir: str | Path | None = None,
    *,
    partition: Mapping[str, Sequence[Any]] | None = None,
    cohorts: Sequence[Any] | None = None,
    batches: Mapping[tuple[int, int], Sequence[Any]] | None = None,
) -> "Result":
    """One trial, as the command would run it, for notebooks: run(["algorithm=pgfed", "train.rounds=5"]).

    Without MLflow, unless an override names `tracking`. What follows takes the place of what the trial would draw, and
    a hash of it is part of the trial's identity (docs/commands.md):

    partition: {"train": [...], "test": [...]}, with an array of row numbers of the dataset for each client, and
    "validation" too where it is not drawn by data.validation.
    cohorts: for each round the numbers of its clients, which count from 0.
    batches: for each (round, client) of a cohort, rounds from 1, an array of row numbers for each step of its local
    training, in order.

    Raises pflsweep.util.errors.UserError on bad input.
    """
    from pflsweep.config.compose import compose
    from pflsweep.config.keys import put
    from pflsweep.data.prescribed import prescribed
    from pflsweep.trial.run import run_trial

    overrides = list(overrides or [])
    asked = any(override.startswith("tracking") for override in overrides)
    config = compose(overrides if asked else [*overrides, "tracking=none"], config_dir)
    given = prescribed(partition, cohorts, batches)
    if given.digest is not None:
        put(config.values, "data.prescribed", given.digest)
    return run_trial(config, prescribed=None if given.digest is None else given)
