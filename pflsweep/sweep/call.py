"""Run a sweep from Python, by the same sweeper as `pflsweep -m`."""

import io
from contextlib import redirect_stdout
from pathlib import Path

from hydra.core.plugins import Plugins
from hydra.types import HydraContext, RunMode

from pflsweep.config.hydra_errors import hydra_errors
from pflsweep.config.hydra_loader import loader_of
from pflsweep.config.hydra_private import Callbacks
from pflsweep.config.overrides import check_hydra, quoted
from pflsweep.sweep.overrides import hide_from_hydra
from pflsweep.sweep.state import SweepState
from pflsweep.sweep.sweeper import TrialSweeper


def run_command(overrides: list[str], config_dir: str | Path | None) -> SweepState | None:
    """Train a sweep without printing what the command prints at its end. Hydra's global state, which may be a
    notebook's own, stays as it is. Return the state of the sweep, None if there was only a plan. Raises as the
    command.
    """
    overrides = [quoted(word) for word in overrides]
    check_hydra(overrides, several=True)
    with hydra_errors(overrides, config_dir):
        loader = loader_of(config_dir)
        config = loader.load_configuration("config", [hide_from_hydra(word) for word in overrides], RunMode.MULTIRUN)
        context = HydraContext(config_loader=loader, callbacks=Callbacks())
        sweeper = Plugins.instance().instantiate_sweeper(
            hydra_context=context, task_function=lambda _: None, config=config
        )
        assert isinstance(sweeper, TrialSweeper), "check_hydra lets no other one through"
        with redirect_stdout(io.StringIO()):
            return sweeper.train(list(config.hydra.overrides.task))[0]
