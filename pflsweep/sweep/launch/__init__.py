"""Workers, started: in this process, in others of this machine, on a Dask cluster, or as jobs of Hydra's launcher."""

import logging
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import gethostname
from typing import Any
from uuid import uuid4

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher

from pflsweep.sweep.launch import processes
from pflsweep.sweep.plan import Plan, read, write
from pflsweep.sweep.queue import Queue
from pflsweep.sweep.worker import work
from pflsweep.trial.process import Stop, interruptible
from pflsweep.trial.progress import say
from pflsweep.util import signals
from pflsweep.util.errors import UserError, shortened

JOB = "hydra.sweeper.worker"  # the override that makes a launched job a worker: <number>:<plan file>
LOOK = 2.0  # seconds between two looks at a Dask cluster
JOINING = 60  # seconds for which a cluster may be without any worker


def run(queue: Queue, launcher: Launcher) -> None:
    """Train with all workers until the plan is settled. Raises KeyboardInterrupt, DiskFull, UserError where workers
    cannot be started.
    """
    plan = queue.plan
    if not _is_basic(launcher):
        _launched(plan, launcher)
    elif plan.workers["backend"] == "dask":
        _on_dask(queue)
    elif plan.workers["count"] == 1:
        work(plan)
    else:
        processes.run(plan, queue)


def check(plan: Plan, launcher: Launcher) -> None:
    """Raise UserError if the plan's workers would be more than this machine can hold. Jobs of a launcher and workers of
    a Dask cluster are elsewhere.
    """
    if _is_basic(launcher) and plan.workers["backend"] == "processes":
        processes.check_count(plan.workers["count"])


def _is_basic(launcher: Launcher) -> bool:
    """Return whether Hydra's default launcher is chosen: workers are started by pflsweep itself."""
    from hydra._internal.core_plugins.basic_launcher import BasicLauncher

    return isinstance(launcher, BasicLauncher)


def _launched(plan: Plan, launcher: Launcher) -> None:
    """As jobs of hydra/launcher=joblib, submitit_slurm, ...; the plan reaches them as a file."""
    folder = plan.folder
    file = folder / "plans" / f"{plan.id}.json"
    jobs = [[f"+{JOB}='{number}:{file}'"] for number in range(plan.workers["count"])]
    if type(launcher).__name__ == "SlurmLauncher":  # a job has cores of its own
        plan = plan._replace(workers={**plan.workers, "count": 1})
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


def _on_dask(queue: Queue) -> None:
    """Train on the workers of a running Dask scheduler; the task of one that dies is given to another. Where a task was
    the death of several workers in a row, Dask tells, and that counts as one death against its trial.

    By Dask's own client: joblib on a cluster of one slot trains in this process instead.
    """
    plan = queue.plan
    try:
        from distributed import CancelledError, Client, KilledWorker
        from distributed.comm import CommClosedError
    except ImportError as error:
        raise UserError("workers.backend=dask needs Dask: pip install distributed.") from error
    address, count = plan.workers["address"], plan.workers["count"]
    try:
        client = Client(address, timeout="10s")
    except (OSError, TimeoutError, ValueError) as error:
        raise UserError(f"workers.address: there is no Dask scheduler at '{address}' ({error}).") from error
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # we say ourselves that it has gone
    with client, interruptible() as pressed:  # Dask's own callbacks may swallow a KeyboardInterrupt
        _require_worker(client, pressed)
        shared = plan._replace(workers={**plan.workers, "count": min(count, _most_on_a_machine(client))})
        while True:
            names = [uuid4().hex for _ in range(count)]
            tasks = [
                client.submit(_task, shared, number, name, os.getcwd(), pure=False) for number, name in enumerate(names)
            ]
            try:
                _wait(client, tasks, pressed)
                return
            except KilledWorker as killed:
                say("Dask workers were killed again and again (out of memory?). What they trained is taken over.")
                for task, name in zip(tasks, names, strict=True):
                    if task.key == killed.task:
                        queue.record_death(name, "its Dask workers' deaths (out of memory?)")
            except (CommClosedError, CancelledError) as error:
                raise UserError(
                    f"workers.address: the Dask scheduler at {address} has gone. What is trained is kept: when it is "
                    "back, the same command continues."
                ) from error


def _wait(client: Any, tasks: Sequence[Any], pressed: Stop) -> None:
    """Until all are done. Raises what one of them did, CancelledError without a scheduler, UserError without workers,
    KeyboardInterrupt.

    By looking, since Ctrl-C in a wait of Dask's leaves its tracebacks behind.
    """
    from distributed import CancelledError

    while not all(task.done() for task in tasks):
        time.sleep(LOOK)
        if pressed():
            raise KeyboardInterrupt
        if client.status != "running":
            raise CancelledError(client.status)
        if not client.nthreads():
            say(f"The Dask scheduler has no worker left; one is waited for {JOINING} seconds.")
            _require_worker(client, pressed)
    for task in tasks:
        task.result()


def _require_worker(client: Any, pressed: Stop) -> None:
    until = time.monotonic() + JOINING
    while client.status == "running" and not client.nthreads():
        if pressed():
            raise KeyboardInterrupt
        if time.monotonic() > until:
            raise UserError(
                "The Dask scheduler has no worker. Start some (dask worker ADDRESS --nthreads 1) and give the same "
                "command."
            )
        time.sleep(LOOK / 4)


def _most_on_a_machine(client: Any) -> int:
    """How many Dask workers share a machine. Raises UserError where one would train two trials."""
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    if any(worker["nthreads"] > 1 for worker in workers):
        raise UserError(
            "A Dask worker would train several trials in one process. Start them with a thread each, as many as are to "
            "train at once: dask worker ADDRESS --nworkers 4 --nthreads 1."
        )
    return max(Counter(worker["host"] for worker in workers).values())


def _task(plan: Plan, number: int, name: str, folder: str) -> None:
    """Work on a Dask worker, in the folder of the command, until that is gone, or the scheduler."""
    from distributed import get_worker
    from distributed.worker import thread_state

    host, key, here = get_worker(), thread_state.key, os.getcwd()
    try:
        os.chdir(folder)  # relative paths are the command's
    except OSError as error:
        raise UserError(
            f"The Dask worker on {gethostname()} cannot go to {folder}, where the command was given "
            f"({error.strerror}). Give it in a folder that all machines have, shared if records are to be in one place."
        ) from error
    if folder not in sys.path:
        sys.path.append(folder)  # where a method of one's own may lie
    try:
        with suppress(KeyboardInterrupt):
            work(plan, number, lambda: not _wanted(host, key), name)
    finally:
        os.chdir(here)


def _wanted(host: Any, key: Any) -> bool:
    """Whether a Dask worker that is connected still has the task `key` to do."""
    task = host.state.tasks.get(key)
    return task is not None and task.state != "cancelled" and host.status.name not in ("closing", "closed", "failed")
