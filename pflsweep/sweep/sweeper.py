"""Hydra's sweeper for `-m`: build the plan, let workers train it, and print one table at the end."""

import sys
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from pflsweep.config.compose import Config, config_of, is_of_sweep
from pflsweep.config.hydra_errors import hydra_errors
from pflsweep.config.hydra_loader import sweep_values_of
from pflsweep.sweep.overrides import as_typed
from pflsweep.util import signals
from pflsweep.util.errors import UserError, without_password

if TYPE_CHECKING:  # Hydra imports this module for --help too
    from pflsweep.sweep.command import Command
    from pflsweep.sweep.plan import Plan
    from pflsweep.sweep.queue import Queue
    from pflsweep.sweep.state import SweepState


def _say_finishing() -> None:
    """Print a message on a signal after all trials. An exception would be swallowed by MLflow or a figure."""
    print("All trials are over, and the tables are being written; Ctrl-C again stops at once.", file=sys.stderr)


def _left(queue: "Queue", said: str) -> str:
    """Return the message of a sweep that was stopped. said: that of the trial that stopped; "" outside of a trial."""
    with suppress(UserError):
        queue.refresh()
    left = f"{queue.sweep.left} of {len(queue.sweep.states)} trials are left{signals.AGAIN}"
    return f"{said.removesuffix(signals.AGAIN) or 'stopped'}\n{left}"


class TrialSweeper(Sweeper):
    """Sweeper that checks all trials before one is trained. A trial that fails does not stop the others."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Keep what Hydra hands over, and make the launcher that the config names."""
        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        """Train a sweep as a command. Exit with 1 if a trial failed, with 2 where all that failed had bad input.

        Raises as `train` does.
        """
        _, code = self.train(arguments)
        if code:
            raise SystemExit(code)

    def train(self, arguments: list[str]) -> "tuple[SweepState | None, int]":
        """Train what is not trained yet. Return the state of the sweep (None for plan=true) and the exit code.

        Raises UserError on bad input, KeyboardInterrupt on Ctrl-C.
        """
        from pflsweep.records.ledger import NAMELESS
        from pflsweep.sweep import launch, planner
        from pflsweep.sweep.spec import name_of
        from pflsweep.sweep.status import summary

        assert self.hydra_context is not None
        assert self.launcher is not None
        self._arguments = arguments = [as_typed(word) for word in arguments]
        command = self._command(arguments)
        parser = OverridesParser.create(self.hydra_context.config_loader)
        words = [word for word in arguments if not word.startswith(("plan=", "retry=", "workers."))]
        name = name_of(command.sweep) if command.sweep else without_password(" ".join(words)) or NAMELESS
        # The command as the ledger states it. Without its storage another machine would train all trials again
        storage = [word for word in arguments if word.startswith("workers.storage=")]
        self._ledger_words = [*self._own_options(), *words, *storage]
        plan = planner.build(command, arguments, self._compose, parser, name)
        launch.check(plan, self.launcher)
        if command.plan:
            print(summary.estimate(plan))
            return None, 0
        return self._run(plan, command)

    def _run(self, plan: "Plan", command: "Command") -> "tuple[SweepState, int]":
        """Train a plan's trials and finish the sweep. Return the state of the sweep and the exit code."""
        from pflsweep.sweep import launch, ledger
        from pflsweep.sweep.mlflow_names import run_of_sweep
        from pflsweep.sweep.queue import Queue
        from pflsweep.sweep.status import summary
        from pflsweep.sweep.status.live import LiveStatus
        from pflsweep.tracking.address import destination
        from pflsweep.tracking.sweep_run import open_sweep, stop_sweep, sweep_status

        assert self.launcher is not None
        options = plan.groups[0].config.tracking
        if options.backend != "none":
            print(destination(options), file=sys.stderr)
        queue = Queue(plan)
        queue.prepare(command.retry)
        sweep = queue.sweep
        unfinished, status = not sweep.finished, sweep_status(options, plan.id)
        # A sweep that is over is tracked where its run is not: the store is another one, or missed the end
        track = unfinished or status not in ("FINISHED", "FAILED")
        if track:
            open_sweep(options, plan.id, run_of_sweep(plan, ledger.command_text(self._ledger_words)))
        if unfinished:
            if launch.is_here(plan, self.launcher) and (forecast := summary.forecast(plan)):
                print(forecast, file=sys.stderr)
            try:
                with LiveStatus(plan, lambda sweep: ledger.write(sweep, self._ledger_words)):
                    launch.run(queue, self.launcher)
                queue.refresh()
                # The workers alone were interrupted, or another command retries trials
                if not sweep.finished:
                    raise KeyboardInterrupt("no worker of this command trains now")
            except KeyboardInterrupt as stop:
                stop_sweep(options, plan.id)
                raise KeyboardInterrupt(_left(queue, str(stop))) from stop
            except BaseException:
                # Such as a cluster or a database that is unavailable
                stop_sweep(options, plan.id)
                raise
        else:
            done = sum(state.status not in ("blocked", "failed") for state in sweep.states.values())
            share = f"all {done}" if done == len(sweep.states) else f"{done} of {len(sweep.states)}"
            print(f"{plan.name}: {share} trials are done, nothing is left to run.", file=sys.stderr)
        return sweep, self._finish(queue, track, missed=status is None or not unfinished)

    def _finish(self, queue: "Queue", track: bool, missed: bool) -> int:
        """Write the ledger, report to MLflow where `track`, and print tables. Return the exit code.

        missed: whether MLflow lacks trials, since they were tracked in another store or not at all.
        """
        from pflsweep.sweep import ledger
        from pflsweep.sweep.mlflow_names import run_of_sweep
        from pflsweep.sweep.status import summary
        from pflsweep.tracking.run import part_of, send
        from pflsweep.tracking.sweep_run import restore_sweep, sent_trials, tag_superseded

        plan = queue.plan
        options = plan.groups[0].config.tracking
        with signals.handled(_say_finishing):
            ledger.write(queue.sweep, self._ledger_words)
            # A store that is gone lacks them, too
            lost = track and restore_sweep(
                options, plan.id, run_of_sweep(plan, ledger.command_text(self._ledger_words))
            )
            with part_of(plan.id):
                if track and (sent := sent_trials(options, plan.id)) is not None:
                    # Trials of a search first: a winner may be one of them, and is shown as a final trial
                    searched = summary.search_records(queue.sweep, sent)
                    finals = summary.final_records(queue.sweep, set() if missed or lost else sent)
                    for record, labels in chain(searched, finals):
                        send(options, record, labels)
            if track:
                tag_superseded(options, plan.id, queue.sweep.superseded)
            return summary.print_results(queue, track)

    def _own_options(self) -> list[str]:
        """Return the command's --config-dir flag, if it has one."""
        assert self.config is not None
        sources = self.config.hydra.runtime.config_sources
        folders = [Path(source.path) for source in sources if source.provider == "command-line"]
        here = Path.cwd()
        return [f"--config-dir={f.relative_to(here) if f.is_relative_to(here) else f}" for f in folders]

    def _command(self, arguments: list[str]) -> "Command":
        """Return the sweep's keys. Those of the command override the `search` of its sweep file."""
        from pflsweep.sweep.command import check_command
        from pflsweep.sweep.reading import read_table_as

        assert self.config is not None
        command = check_command(sweep_values_of(self.config))
        if command.sweep is None:
            return command
        own = [word for word in arguments if is_of_sweep(word)]
        search = read_table_as(command.sweep, command.scale, command.reading).search
        if not search:
            return command
        try:
            with hydra_errors(search):
                return check_command(sweep_values_of(self._load_config([*search, *own])))
        except UserError as error:
            raise UserError(f"{error} (with the search of sweep={command.sweep}: {' '.join(search)})") from error

    def _load_config(self, overrides: list[str]):  # type: ignore[no-untyped-def]
        assert self.config is not None
        assert self.hydra_context is not None
        return self.hydra_context.config_loader.load_sweep_config(self.config, overrides)

    def _compose(self, overrides: list[str]) -> Config:
        """Compose the config of a trial. Raises UserError, which names the trial."""
        try:
            with hydra_errors([*overrides, *self._arguments]):
                composed = self._load_config(overrides)
                return config_of(composed, composed.hydra)
        except UserError as error:
            raise UserError(f"{error} (in the trial {' '.join(overrides)})") from error
