"""pflsweep: declarative experiment sweeps for personalised federated learning."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pflsweep.trial.run import Result

__version__ = "0.1.0"


def run(overrides: list[str] | None = None, config_dir: str | Path | None = None) -> "Result":
    """One trial, as the command would run it, for notebooks: run(["algorithm=pgfed", "train.rounds=5"]).

    Without MLflow, unless an override names `tracking`. Raises pflsweep.util.errors.UserError on bad input.
    """
    from pflsweep.config.compose import compose
    from pflsweep.trial.run import run_trial

    overrides = list(overrides or [])
    asked = any(override.startswith("tracking") for override in overrides)
    return run_trial(compose(overrides if asked else [*overrides, "tracking=none"], config_dir))
