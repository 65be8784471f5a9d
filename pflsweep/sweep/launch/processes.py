"""Run workers in processes on this machine: start, watch and stop them, and replace those that are killed.

The code that such a process runs is in worker_process.py.
"""

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

from pflsweep.engine.workers import usable_cores
from pflsweep.ops import memory
from pflsweep.sweep.plan import Plan, write_plan
from pflsweep.sweep.queue import Queue
from pflsweep.trial.process import threads_each
from pflsweep.trial.progress import say
from pflsweep.util import signals
from pflsweep.util.errors import UserError, counted, in_gb, shortened
from pflsweep.util.files import DiskFull

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # of libraries other than PyTorch
EARLY = 3  # a worker that is killed so often in a row without having a trial is not replaced
LOOK = 0.1  # seconds between two checks of the processes
ENDING = 8.0  # seconds that workers get to finish their rounds when the disk is full
# Bytes of memory of a worker without data: 480 MB were measured with torch 2.14 (CPU), pandas, optuna and mlflow
MEMORY = 0.5e9
# The worker finds modules where the command does, also a method of the user's beside a notebook
BOOT = """
import json, sys
arguments = json.loads(sys.argv[1])
sys.path[:] = arguments.pop("path")
from pflsweep.sweep.worker_process import main
sys.exit(main(**arguments))
"""


class Worker:
    """A worker process. Nothing is written to its standard input, a pipe. When the pipe is closed the worker stops
    after its round; the system closes it when this command dies.
    """

    def __init__(self, number: int, plan: Path, environment: dict[str, str], heartbeat: int) -> None:
        self.number, self.name = number, uuid4().hex
        self.error = plan.with_name(f"{self.name}.error")
        arguments = {"path": sys.path, "number": number, "name": self.name}
        arguments |= {"plan_file": str(plan), "error_file": str(self.error)}
        arguments |= {"command_pid": os.getpid(), "heartbeat": heartbeat}
        # In a process group of its own, so that a terminal's Ctrl-C reaches the command alone
        self.process = subprocess.Popen(
            [sys.executable, "-c", BOOT, json.dumps(arguments)], stdin=subprocess.PIPE, env=environment, process_group=0
        )

    def stop(self) -> None:
        """Ask the worker to stop after its round."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def kill(self) -> None:
        """End the worker at once."""
        self.process.kill()
        self.process.wait()

    @property
    def raised(self) -> BaseException | None:
        """Return the exception with which the worker ended; None without one."""
        # Safe to unpickle: the file lies in a temporary folder of this command
        return pickle.loads(self.error.read_bytes()) if self.error.exists() else None

    @property
    def status(self) -> str:
        """Return how the process ended: its exit status, or the signal that killed it."""
        code = self.process.returncode
        if code >= 0:
            return f"exit status {code}"
        if -code not in set(signal.Signals):  # a real-time signal
            return f"signal {-code}"
        name = signal.Signals(-code).name
        return f"{name} (out of memory?)" if name == "SIGKILL" else name


def check_count(count: int) -> None:
    """Raise UserError if this machine cannot hold so many workers."""
    cores, free = usable_cores(), memory.available()
    if count > cores:
        raise UserError(
            f"workers.count: {count} workers would start, and this command has {counted(cores, 'core')} of this "
            f"machine. More workers than cores wait for each other: use workers.count={cores}, or more machines "
            "(docs/many_machines.md)."
        )
    if count * MEMORY > free:
        fit = max(1, int(free / MEMORY))
        raise UserError(
            f"workers.count: {count} workers need {count} x {in_gb(MEMORY)} = {in_gb(count * MEMORY)} of "
            f"memory before they have any data, and {in_gb(free)} are free. Use workers.count={fit}."
        )


def run(plan: Plan, queue: Queue) -> None:
    """Train with `workers.count` processes until the plan is settled or all of them have ended.

    Raises KeyboardInterrupt on Ctrl-C and SIGTERM, DiskFull when a worker does, and the first worker's exception if all
    workers have raised one.
    """
    count = plan.workers.count
    shares = {name: os.environ.get(name, str(threads_each(count))) for name in THREADS}
    with TemporaryDirectory() as folder, ExitStack() as killing:
        file = Path(folder) / "plan.json"
        write_plan(plan, file)

        def start(number: int) -> Worker:
            worker = Worker(number, file, {**os.environ, **shares}, plan.workers.heartbeat)
            # For a second Ctrl-C or a bug; killing a worker that has ended does nothing
            killing.callback(worker.kill)
            return worker

        workers = {number: start(number) for number in range(count)}
        errors, early = list[BaseException](), Counter[int]()
        with _stopping(workers) as pressed:
            while workers:
                time.sleep(LOOK)
                # A signal that came before `_stopping`, and whose exception a library has swallowed
                if signals.requested() and not pressed.is_set():
                    raise KeyboardInterrupt
                for worker in _remove_ended(workers):
                    error = worker.raised
                    if worker.process.returncode == 0 or (pressed.is_set() and error is None):
                        continue
                    if error is None:
                        had = queue.record_death(worker.name, worker.status)
                        early[worker.number] = 0 if had else early[worker.number] + 1
                        # A signal may have come meanwhile; `_stopping` does not stop a worker that is started later
                        if pressed.is_set():
                            continue
                        if early[worker.number] < EARLY:
                            say(f"A worker died ({worker.status}). A new one has been started and takes over.")
                            workers[worker.number] = start(worker.number)
                            if pressed.is_set():
                                workers[worker.number].stop()
                            continue
                        error = UserError(
                            f"A worker died {EARLY} times in a row before it had leased a trial ({worker.status})."
                        )
                    if isinstance(error, DiskFull):
                        _end_all(workers.values())
                        raise error
                    errors.append(error)
                    say(f"A worker has ended, the others go on: {shortened(error, 500)}")
    if pressed.is_set():
        raise KeyboardInterrupt
    if len(errors) == count:
        raise errors[0]


def _remove_ended(workers: dict[int, Worker]) -> list[Worker]:
    """Remove the workers whose processes have ended from `workers`, and return them."""
    ended = [worker for worker in workers.values() if worker.process.poll() is not None]
    for worker in ended:
        del workers[worker.number]
        # Closes this side of the pipe
        worker.stop()
    return ended


def _end_all(workers: Collection[Worker]) -> None:
    """Stop workers, and wait up to ENDING seconds for them to finish their rounds."""
    for worker in workers:
        worker.stop()
    until = time.monotonic() + ENDING
    while any(worker.process.poll() is None for worker in workers) and time.monotonic() < until:
        time.sleep(LOOK)


@contextmanager
def _stopping(workers: dict[int, Worker]) -> Iterator[threading.Event]:
    """Stop all workers after their rounds on Ctrl-C and SIGTERM; a second signal raises KeyboardInterrupt at once.

    Yield an event that the first signal sets.
    """
    pressed = threading.Event()

    def stop() -> None:
        pressed.set()
        for worker in list(workers.values()):
            with suppress(OSError):
                worker.stop()
        say("Stopping after this round of each worker; Ctrl-C again stops at once.")

    with signals.handled(stop):
        yield pressed
