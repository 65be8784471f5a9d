"""Run workers as jobs of a Hydra launcher, such as joblib or submitit."""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher

from pflsweep.config.overrides import as_text
from pflsweep.sweep.plan import Plan, read_plan, write_plan
from pflsweep.sweep.worker import work
from pflsweep.trial.process import Stop
from pflsweep.trial.progress import say
from pflsweep.util import signals
from pflsweep.util.errors import UserError, counted, shortened

JOB = "hydra.sweeper.worker"  # the override that makes a launched job a worker: <number>:<plan file>


def run(plan: Plan, launcher: Launcher) -> None:
    """Train as jobs of a Hydra launcher (hydra/launcher=joblib, submitit_slurm, ...). The plan reaches them as a file.

    Raises UserError if the launcher cannot start or finish them.
    """
    folder = plan.folder
    file = folder / "plans" / f"{plan.id}.json"
    jobs = [[f"+{JOB}={as_text(JOB, f'{number}:{file}')}"] for number in range(plan.workers.count)]
    slurm = type(launcher).__name__ == "SlurmLauncher"
    if slurm and plan.workers.storage is None:
        say(
            f"Slurm's jobs share {folder / 'optuna.db'}, an SQLite file, whose locks many network file systems lose. "
            "Unless all jobs run on one machine, name a database: workers.storage=postgresql://... "
            "(docs/many_machines.md)."
        )
    # A Slurm job has cores of its own, so it shares its machine with no other worker
    if slurm:
        plan = plan._replace(workers=replace(plan.workers, count=1))
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Readable by this user alone, since a storage's URL may have a password
        before = os.umask(0o077)
        try:
            write_plan(plan, file)
        finally:
            os.umask(before)
    except OSError as error:
        raise UserError(f"{file} cannot be written ({error.strerror}). Choose another folder: paths.runs.") from error
    if slurm:
        logs = folder / "submitit"
        say(f"{counted(len(jobs), 'job')} to submit, with logs in {logs}. This command waits for them.")
    try:
        for returned in _returns(launcher, jobs, folder):
            returned.return_value  # noqa: B018 (raises what the job raised)
    except KeyboardInterrupt:
        if slurm:
            say("Slurm's jobs go on: `squeue --me` shows them, and `scancel` ends one after its round.")
        raise


def _returns(launcher: Launcher, jobs: list[list[str]], folder: Path) -> Sequence[JobReturn]:
    """Launch jobs and return their results. Raises UserError if the launcher fails or a job is killed."""
    params, name = getattr(launcher, "params", {}), type(launcher).__name__
    # submitit's default is in the working directory; its logs belong beside the plan
    if Path(params.get("submitit_folder", "")) == Path(".submitit/%j"):
        params["submitit_folder"] = str(folder / "submitit" / "%j")
    try:
        return launcher.launch(jobs, initial_job_idx=0)
    except UserError:
        raise
    except Exception as error:
        # submitit, joblib and Slurm raise errors of their own
        reason = shortened(error, 500)
        raise UserError(
            f"hydra/launcher: {name} could not bring the workers to their end ({reason}). What is trained is kept: "
            "the same command continues, by itself or with another launcher."
        ) from error
    finally:
        # submitit makes it, and then writes into folders that have the job's number in place of %j
        with suppress(OSError):
            (folder / "submitit" / "%j").rmdir()


def launched(worker: str) -> None:
    """Run the worker of a launched job. worker: its number and the plan's file, as in '3:/runs/plans/1f.json'."""
    number, _, file = worker.partition(":")
    with signals.terminable(), _warned() as over:
        work(read_plan(Path(file)), int(number), over)


@contextmanager
def _warned() -> Iterator[Stop]:
    """Yield a function that returns whether Slurm has warned, by a signal, that the job is about to be ended.

    On that signal submitit would end or requeue the job at once: in the middle of a round, as an error of the trial.
    Here its handler is called after the worker has finished its round.
    """
    submitits, heard = signal.getsignal(signal.SIGUSR2), list[tuple[Any, ...]]()
    # Without a handler this is not a job of submitit
    if not callable(submitits):
        yield lambda: False
        return
    signal.signal(signal.SIGUSR2, lambda *signalled: heard.append(signalled))
    try:
        yield lambda: bool(heard)
    except KeyboardInterrupt:
        if not heard:
            raise
        submitits(*heard[0])
    finally:
        signal.signal(signal.SIGUSR2, submitits)
