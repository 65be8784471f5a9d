"""Workers, started: in this process, in others by joblib, on a Dask cluster, or as the jobs of Hydra's launcher."""

import logging
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from socket import gethostname
from tempfile import TemporaryDirectory
from typing import Any

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher

from pflsweep.errors import UserError, one_line
from pflsweep.process import Stop, interruptible, threads_each
from pflsweep.progress import quietly, say
from pflsweep.sweep.plan import Plan, read, write
from pflsweep.sweep.worker import work

JOB = "hydra.sweeper.worker"  # the override that makes a launched job a worker: <number>:<plan file>
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # of libraries other than PyTorch
EARLY = 3  # times that a worker may be killed before it begins
OVER = "over"  # among the files named by workers and their processes, 3.4711: nobody is to begin any more
LOOK = 2.0  # seconds between two looks at a Dask cluster
JOINING = 60  # seconds for which a cluster may be without any worker


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
        said = one_line(error)
        raise UserError(
            f"hydra/launcher: {name} could not bring the workers to their end ({said[:500]}). What is trained is kept: "
            "the same command continues, by itself or with another launcher."
        ) from error


def launched(worker: str) -> None:
    """What such a job runs: '3:/runs/sweep-1f.json'."""
    number, _, file = worker.partition(":")
    with _warned() as over:
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


def _in_processes(plan: Plan) -> None:
    """Of this machine. What one of them raises is raised where all did: one that comes to its end has left nothing."""
    with TemporaryDirectory() as folder, _passing_on(Path(folder)) as pressed:
        errors = _attended(plan, Path(folder), pressed)
    if pressed.is_set():
        raise KeyboardInterrupt
    if len(errors) == plan.workers["count"]:
        raise errors[0]


def _attended(plan: Plan, pids: Path, pressed: threading.Event) -> list[BaseException]:
    """What workers have raised when all have ended. One that is killed is started anew, each by an executor of its own:
    a common one would end the others with it, and each of their trials would count a death.
    """
    from joblib.externals.loky import ProcessPoolExecutor
    from joblib.externals.loky.process_executor import BrokenProcessPool, TerminatedWorkerError

    count, errors, early = plan.workers["count"], list[BaseException](), Counter[int]()
    shares = {name: os.environ.get(name, str(threads_each(count))) for name in THREADS}
    with ExitStack() as killing:  # on a second Ctrl-C

        def begin(number: int) -> Future[None]:
            executor = ProcessPoolExecutor(max_workers=1, env=shares)
            killing.callback(executor.shutdown, kill_workers=True)
            ending.callback(executor.shutdown)
            return executor.submit(_process, plan, number, pids, os.getpid())

        ending = ExitStack()
        under_way = {begin(number): number for number in range(count)}
        while under_way:
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                number, error = under_way.pop(future), future.exception()
                if error is None or (pressed.is_set() and isinstance(error, BrokenProcessPool)):
                    continue
                killed = isinstance(error, TerminatedWorkerError)
                early[number] += killed and not _has_begun(number, pids)
                if killed and early[number] < EARLY:
                    say("A worker was killed (out of memory?). It starts anew; a trial that it had is taken over.")
                    under_way[begin(number)] = number
                    continue
                errors.append(UserError(f"A worker is killed before it begins: {one_line(error)}") if killed else error)
                say(f"A worker has ended, the others go on: {one_line(errors[-1])[:500]}")
        killing.pop_all()
        ending.close()
    return errors


def _has_begun(number: int, pids: Path) -> bool:
    """Whether a worker that was killed had come so far as to leave a file, which is removed."""
    files = list(pids.glob(f"{number}.*"))
    for file in files:
        file.unlink()
    return bool(files)


def _on_dask(plan: Plan) -> None:
    """On the workers of a running Dask scheduler; the task of one that dies is given to another.

    By Dask's own client: joblib on a cluster of one slot trains in this process instead.
    """
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
    with client, interruptible(lambda: False) as pressed:  # Dask's own callbacks may swallow a KeyboardInterrupt
        _require_worker(client, pressed)
        shared = plan._replace(workers={**plan.workers, "count": min(count, _most_on_a_machine(client))})
        while True:
            tasks = [client.submit(_task, shared, number, os.getcwd(), pure=False) for number in range(count)]
            try:
                _wait(client, tasks, pressed)
                return
            except KilledWorker:
                say("Dask workers were killed again and again (out of memory?). What they trained is taken over.")
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


def _task(plan: Plan, number: int, folder: str) -> None:
    """A worker on a Dask worker, in the folder of the command, until that is gone, or the scheduler."""
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
            work(plan, number, lambda: not _wanted(host, key))
    finally:
        os.chdir(here)


def _wanted(host: Any, key: Any) -> bool:
    """Whether a Dask worker that is connected still has the task `key` to do."""
    task = host.state.tasks.get(key)
    return task is not None and task.state != "cancelled" and host.status.name not in ("closing", "closed", "failed")


def _process(plan: Plan, number: int, pids: Path, parent: int) -> None:
    """A worker in a process of its own. Ctrl-C reaches it through the command, and it ends when that is gone.

    parent: the command's process, which may be gone before this one has begun.
    """
    os.setpgrp()  # a terminal's Ctrl-C goes to the command alone
    own = pids / f"{number}.{os.getpid()}"
    if os.getppid() != parent:
        os._exit(1)  # nobody is there to end joblib's process
    own.touch()
    if (pids / OVER).exists():
        return
    threading.Thread(target=_follow, args=(parent,), daemon=True).start()
    try:
        with suppress(KeyboardInterrupt), quietly(mute=True):
            work(plan, number)
    finally:
        own.unlink(missing_ok=True)  # its number may be another program's some day
    if os.getppid() != parent:
        os._exit(1)


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
        (pids / OVER).touch()  # for workers that come later
        for file in pids.iterdir():
            with suppress(OSError, ValueError):  # it has ended meanwhile; OVER
                os.kill(int(file.name.partition(".")[2]), signal.SIGINT)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            raise KeyboardInterrupt
        say("Stopping after this round of each worker; Ctrl-C again stops at once.")

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)
