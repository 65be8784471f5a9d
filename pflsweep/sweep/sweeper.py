"""Hydra's sweeper for `-m`: all trials are checked first, and one that fails does not end the others."""

import hashlib
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn

from pflsweep.compose import Config, config_of, hydra_errors
from pflsweep.config import check
from pflsweep.errors import UserError


class TrialSweeper(BasicSweeper):
    """The cartesian product of the overrides, trial after trial, with one table at the end."""

    def sweep(self, arguments: list[str]) -> None:
        """Trains all, then prints the table. Exits with 1 where a trial failed, with 2 on bad input alone."""
        from pflsweep.tracking import SWEEP, open_sweep, stop_sweep  # late: Hydra imports this module for --help too

        assert self.launcher is not None
        assert self.hydra_context is not None
        overrides = OverridesParser.create(self.hydra_context.config_loader).parse_overrides(arguments)
        jobs = self.split_arguments(overrides, None)[0]
        configs = self._checked(jobs)
        sweep = sweep_id(arguments)
        open_sweep(configs[0].values, sweep, " ".join(arguments) or "sweep")
        os.environ[SWEEP] = sweep
        try:
            returns = self.launcher.launch(jobs, initial_job_idx=0)
        except KeyboardInterrupt:
            stop_sweep(configs[0].values, sweep)
            raise
        finally:
            del os.environ[SWEEP]
        _conclude(configs[0].values, jobs, returns, sweep)

    def _checked(self, jobs: list[list[str]]) -> list[Config]:
        """All configs. Raises UserError on the first that is wrong: nothing is trained then."""
        assert self.config is not None
        assert self.hydra_context is not None
        configs = []
        for job in jobs:
            try:
                with hydra_errors(job):
                    composed = self.hydra_context.config_loader.load_sweep_config(self.config, job)
                configs.append(config_of(composed, composed.hydra))
                check(configs[-1])
            except UserError as error:
                raise UserError(f"{error} (in the trial {' '.join(job)})") from error
        return configs


def _conclude(cfg: dict[str, Any], jobs: list[list[str]], returns: Sequence[JobReturn], sweep: str) -> None:
    """The table of what was trained, and the trials that failed by name."""
    from pflsweep.sweep.summary import conclusion
    from pflsweep.tracking import finish_sweep

    outcomes = [returned._return_value for returned in returns]  # an exception where the trial raised one
    failed = [(outcome, " ".join(job)) for outcome, job in zip(outcomes, jobs, strict=True) if _failed(outcome)]
    done = _distinct([outcome for outcome in outcomes if not _failed(outcome)])
    if done:
        print(conclusion(done))
    for error, job in failed:
        print(f"pflsweep: the trial {job} failed:", file=sys.stderr)
        print(error, file=sys.stderr) if isinstance(error, UserError) else traceback.print_exception(error)
    finish_sweep(cfg, sweep, [result.record for result in done], [_line(job, error) for error, job in failed])
    if failed:
        print(f"{len(failed)} of {len(jobs)} trials failed; the same command tries them again.", file=sys.stderr)
        raise SystemExit(2 if all(isinstance(error, UserError) for error, _ in failed) else 1)


def _distinct(results: list[Any]) -> list[Any]:
    """Trials that are the same one up to what changes no number (train.chunk=1,2) are no two seeds."""
    return list({(r.record.meta["identity"], r.record.status["target"]): r for r in results}.values())


def _line(job: str, error: BaseException) -> str:
    return f"the trial {job} failed: {type(error).__name__}: {' '.join(str(error).split())}"


def _failed(outcome: Any) -> bool:
    return isinstance(outcome, BaseException)


def sweep_id(arguments: list[str]) -> str:
    """The same for the same command in the same folder, whatever the order of its overrides."""
    text = "\n".join([str(Path.cwd()), *sorted(arguments)])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
