"""Workers, started: in this process, in others by joblib, on a Dask cluster, or as the jobs of Hydra's launcher."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from hydra.plugins.launcher import Launcher

from pflsweep.errors import UserError
from pflsweep.progress import say
from pflsweep.sweep.plan import Plan, read, write
from pflsweep.sweep.worker import work

JOB = "hydra.sweeper.worker"  # the override that makes a launched job a worker: <number>:<plan file>


def run(plan: Plan, launcher: Launcher) -> None:
    """Every worker, until the plan is settled. Raises KeyboardInterrupt, UserError where workers cannot be started."""
    from hydra._internal.core_plugins.basic_launcher import BasicLauncher

    count = plan.workers["count"]
    if not isinstance(launcher, BasicLauncher):
        _launched(plan, launcher)
    elif plan.workers["backend"] == "dask":
        _on_dask(plan)
    elif count == 1:
        work(plan)
    else:
        _in_processes(plan)


def _launched(plan: Plan, launcher: Launcher) -> None:
    """As jobs of hydra/launcher=joblib, submitit_slurm, ...; the plan reaches them as a file."""
    runs = Path(plan.groups[0].config.values["paths"]["runs"]).absolute()
    file = runs / ".sweeps" / f"{plan.id}.json"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write(plan, file)
    except OSError as error:
        raise UserError(f"{file} cannot be written ({error.strerror}). Choose another folder: paths.runs.") from error
    jobs = [[f"+{JOB}='{number}:{file}'"] for number in range(plan.workers["count"])]
    returns = launcher.launch(jobs, initial_job_idx=0)
    for returned in returns:
        returned.return_value  # noqa: B018 (raises what the job raised)


def launched(worker: str) -> None:
    """What such a job runs: '3:/runs/sweep-1f.json'."""
    number, _, file = worker.partition(":")
    work(read(Path(file)), int(number))


def _in_processes(plan: Plan) -> None:
    """joblib's, of this machine. One that is killed takes the others with it, so they are started anew."""
    from joblib import Parallel, delayed
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    count = plan.workers["count"]
    with TemporaryDirectory() as pids, _passing_on(Path(pids)) as pressed:
        while not pressed.is_set():
            try:
                parallel = Parallel(n_jobs=count, backend="loky", batch_size=1, pre_dispatch="all")
                parallel(delayed(_process)(plan, number, Path(pids)) for number in range(count))
                break
            except TerminatedWorkerError:
                say("A worker was killed (out of memory?). Workers start anew, and its trial is taken over.")
    if pressed.is_set():
        raise KeyboardInterrupt


def _on_dask(plan: Plan) -> None:
    """On the workers of a running Dask scheduler; a task of a worker that dies is given to another."""
    from joblib import Parallel, delayed, parallel_config

    try:
        from distributed import Client
    except ImportError as error:
        raise UserError("workers.backend=dask needs Dask: pip install distributed.") from error
    address = plan.workers["address"]
    try:
        client = Client(address, timeout="10s")
    except (OSError, TimeoutError, ValueError) as error:
        raise UserError(f"workers.address: there is no Dask scheduler at '{address}' ({error}).") from error
    with client, parallel_config(backend="dask", wait_for_workers_timeout=60):
        Parallel(n_jobs=plan.workers["count"], batch_size=1, pre_dispatch="all")(
            delayed(work)(plan, number) for number in range(plan.workers["count"])
        )


def _process(plan: Plan, number: int, pids: Path) -> None:
    """A worker in a process of its own. Ctrl-C reaches it through the command, and it ends when the command is gone."""
    os.setpgrp()  # a terminal's Ctrl-C goes to the command alone
    (pids / str(os.getpid())).touch()
    parent = os.getppid()
    threading.Thread(target=_follow, args=(parent,), daemon=True).start()
    with suppress(KeyboardInterrupt):
        work(plan, number)


def _follow(parent: int) -> None:
    """Interrupts this process when its parent is gone."""
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGINT)


@contextmanager
def _passing_on(pids: Path) -> Iterator[threading.Event]:
    """Ctrl-C interrupts the workers, which bring their rounds to an end; a second one stops all at once."""
    pressed = threading.Event()

    def interrupt(*_: object) -> None:
        if pressed.is_set():
            signal.signal(signal.SIGINT, signal.default_int_handler)
        pressed.set()
        for file in pids.iterdir():
            with suppress(ProcessLookupError):
                os.kill(int(file.name), signal.SIGINT)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            raise KeyboardInterrupt
        say("Stopping after this round of each worker; Ctrl-C again stops at once.")

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)
