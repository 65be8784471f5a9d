"""Workers as jobs of one of Hydra's launchers: joblib, submitit, ..."""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher

from pflsweep.sweep.plan import Plan, read, write
from pflsweep.sweep.worker import work
from pflsweep.trial.process import Stop
from pflsweep.util import signals
from pflsweep.util.errors import UserError, shortened

JOB = "hydra.sweeper.worker"  # the override that makes a launched job a worker: <number>:<plan file>


def run(plan: Plan, launcher: Launcher) -> None:
    """Train as jobs of hydra/launcher=joblib, submitit_slurm, ...; the plan reaches them as a file."""
    folder = plan.folder
    file = folder / "plans" / f"{plan.id}.json"
    jobs = [[f"+{JOB}='{number}:{file}'"] for number in range(plan.workers.count)]
    if type(launcher).__name__ == "SlurmLauncher":  # a job has cores of its own
        plan = plan._replace(workers=replace(plan.workers, count=1))
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        before = os.umask(0o077)  # a storage's address may have a password
        try:
            write(plan, file)
        finally:
            os.umask(before)
    except OSError as error:
        raise UserError(f"{file} cannot be written ({error.strerror}). Choose another folder: paths.runs.") from error
    for returned in _returns(launcher, jobs, folder):
        returned.return_value  # noqa: B018 (raises what the job raised)


def _returns(launcher: Launcher, jobs: list[list[str]], folder: Path) -> Sequence[JobReturn]:
    """What a launcher's jobs returned. Raises UserError where it cannot start them, or one was ended from outside."""
    params, name = getattr(launcher, "params", {}), type(launcher).__name__
    if Path(params.get("submitit_folder", "")) == Path(".submitit/%j"):  # the default, in the working directory
        params["submitit_folder"] = str(folder / "submitit" / "%j")
    try:
        return launcher.launch(jobs, initial_job_idx=0)
    except UserError:
        raise
    except Exception as error:  # submitit's, joblib's, Slurm's: each has its own
        said = shortened(error, 500)
        raise UserError(
            f"hydra/launcher: {name} could not bring the workers to their end ({said}). What is trained is kept: "
            "the same command continues, by itself or with another launcher."
        ) from error


def launched(worker: str) -> None:
    """What such a job runs: '3:/runs/sweep-1f.json'."""
    number, _, file = worker.partition(":")
    with signals.terminable(), _warned() as over:
        work(read(Path(file)), int(number), over)


@contextmanager
def _warned() -> Iterator[Stop]:
    """Gives whether the job's time is over, or others need its place, of which Slurm warns by a signal.

    submitit would end the job at that, or queue it again: in the middle of a round, as an error of the trial's. Here it
    does so when the worker has brought its round to an end.
    """
    submitits, heard = signal.getsignal(signal.SIGUSR2), list[tuple[Any, ...]]()
    if not callable(submitits):  # not a job of submitit's
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
