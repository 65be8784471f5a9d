"""Parallel jobs in several processes of one thread each: this process, and worker processes forked from it.

Workers are forked for one map and end with it. So a worker sees everything that this process holds when the map begins,
and nothing has to be sent to it. What it writes is not seen here, except for its answers and for what it puts into
memory that forks share (see ops/memory.py).
"""

import ctypes
import gc
import os
import pickle
import select
import signal
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from time import perf_counter, thread_time
from typing import Any, NoReturn

import torch

from pflsweep.ops import memory
from pflsweep.util import streams, trace
from pflsweep.util.errors import UserError
from pflsweep.util.once import warn_once

MARGIN = 2.0  # workers have to save this many times the seconds that forking them takes
# If all processes of a map get fewer cores than this together, other programs use the machine, and one is as fast
CROWDED = 1.25
BRIEF = 0.02  # maps shorter than this (seconds) do not update the measured share of a core
ALONE = 20  # maps of one process after a crowded one, before workers are tried again
_PR_SET_PDEATHSIG = 1  # constant of prctl.h: the signal that a process gets when its parent dies
_NUMBER = 4  # bytes of a job's number in the pipe


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def possible(device: torch.device) -> bool:
    """Return whether work on this device can run in forks: on Linux, on a CPU, where PyTorch sees no GPU.

    Where it sees one, its autograd has threads for it, and a fork of such a process cannot compute gradients.
    """
    return sys.platform == "linux" and device.type == "cpu" and not torch.cuda.is_available()


class WorkerDied(UserError):  # noqa: N818 (what happened, as in LeaseLost)
    """A worker process has died, most likely because memory ran out. status: its exit status."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(
            f"A worker process has died (exit status {status}; -9 is a kill, which is also what the system does when "
            "memory runs out). The record is whole, and the same command goes on from its last checkpoint: with fewer "
            "processes, such as train.workers=1, where memory was short."
        )


class Workers:
    """Up to `count` processes for each map, this one included.

    It measures how long each kind of work and forking take, and forks only where that saves time. Where other programs
    take so much of the machine that several processes together get little more than one core, it works in one process
    for a while.
    pool: shared memory for answers. seen: by kind, what a caller remembers of the answers' shapes.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.pool = memory.Pool()
        self.seen: dict[str, Any] = {}
        self._pace: dict[str, float] = {}  # by kind, seconds that a cost of 1 takes in one process
        self._forking = 0.01  # seconds to fork a worker: a guess until the first one is forked
        self._core = 1.0  # the share of a core that this process gets in maps with workers, a running mean
        self._alone = 0  # maps that are still to run in this process, since the machine is crowded
        self._done: list[int] = []  # pids of workers that have ended but may not be reaped yet
        weakref.finalize(self, _reap, self._done).atexit = False

    def map(self, kind: str, costs: list[float], do: Callable[[int], Any]) -> Iterator[tuple[int, Any]]:
        """Yield (k, do(k)) for every k, as jobs are done.

        costs: the relative cost of each job, in any unit that the kind of work keeps. The very first job of a kind runs
        in this process and shows what the others will take. Where forking would take too much of the time that it
        saves, all run here. An exception in a worker is raised here, with the worker's traceback as a note.
        """
        # The largest jobs first, so that all processes end at about the same time.
        jobs = sorted(range(len(costs)), key=lambda k: -costs[k])
        if kind not in self._pace:
            began = perf_counter()
            yield jobs[0], do(jobs[0])
            self._pace[kind] = (perf_counter() - began) / costs[jobs[0]]
            jobs = jobs[1:]
        total, count = sum(costs[k] for k in jobs), min(self.count, len(jobs))
        if count > 1 and total * self._pace[kind] * (1 - 1 / count) <= MARGIN * (count - 1) * self._forking:
            count = 1
        if count > 1 and self._alone:
            self._alone, count = self._alone - 1, 1
        began = perf_counter()
        yield from self._forked(jobs, do, count) if count > 1 else ((k, do(k)) for k in jobs)
        if total:
            working = perf_counter() - began - self._forking * (count - 1)
            self._pace[kind] = working * count / total
        if count > 1 and count * self._core < CROWDED:
            self._alone = ALONE

    def _forked(self, jobs: list[int], do: Callable[[int], Any], count: int) -> Iterator[tuple[int, Any]]:
        """Yield (k, do(k)) of jobs done by `count` processes, this one included.

        Each worker begins with a job that is assigned to it. Then all take what is left from a shared queue.
        """
        _reap(self._done)
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()  # a fork has a copy of what is buffered and would print it again
        try:
            left = _Queue(jobs[count - 1 :])
        except OSError as error:
            self._give_up(error)
            yield from ((k, do(k)) for k in jobs)
            return
        pids: dict[Connection, int] = {}
        busy: set[Connection] = set()
        forking = 0.0
        try:
            assigned = iter(jobs[: count - 1])
            for k in assigned:
                began = perf_counter()
                try:
                    pipe, pid = _fork(chain([k], left), do, list(pids))
                except OSError as error:
                    self._give_up(error)
                    assigned = chain([k], assigned)  # this process does what is left to it
                    break
                pids[pipe] = pid
                busy.add(pipe)
                forking += perf_counter() - began
            self._forking = forking / len(pids) if pids else self._forking
            began, used = perf_counter(), thread_time()
            for k in chain(assigned, left):
                yield k, do(k)
                yield from _arrived(busy, pids, 0)
            if (lasted := perf_counter() - began) > BRIEF:
                self._core = (self._core + (thread_time() - used) / lasted) / 2
            while busy:
                yield from _arrived(busy, pids, None)
        finally:
            for pipe, pid in pids.items():
                if pipe in busy:
                    os.kill(pid, signal.SIGKILL)  # its answers are no longer wanted, and it has nothing to save
                pipe.close()
            self._done.extend(pids.values())
            if busy:
                _reap(self._done)
            left.close()

    def _give_up(self, error: OSError) -> None:
        """Work in one process for a while: the system's limits on processes, memory or open files are reached."""
        warn_once(__name__, f"{error.strerror}: no worker process could be forked, so that fewer work")
        self._alone = ALONE


def _reap(pids: list[int]) -> None:
    """Wait until these workers are gone. It is called late, since the system takes long to free a fork's memory."""
    while pids:
        # A fork of this process that the user's code made has a copy of the list, but not these children.
        with suppress(ChildProcessError):
            os.waitpid(pids.pop(), 0)


class _Queue:
    """A queue of jobs that processes share. Job numbers are in a pipe, and a process takes one by reading it."""

    def __init__(self, jobs: list[int]) -> None:
        # So many numbers always fit into a pipe. With more jobs than that, a number stands for several.
        turns = min(len(jobs), select.PIPE_BUF // _NUMBER)
        self._turns = [jobs[k::turns] for k in range(turns)]
        self._numbers, into = os.pipe()
        os.write(into, b"".join(k.to_bytes(_NUMBER, "little") for k in range(turns)))
        os.close(into)
        # An empty pipe must not block: a fork made elsewhere meanwhile may keep `into` open.
        os.set_blocking(self._numbers, False)

    def __iter__(self) -> Iterator[int]:
        with suppress(BlockingIOError):
            while number := os.read(self._numbers, _NUMBER):
                yield from self._turns[int.from_bytes(number, "little")]

    def close(self) -> None:
        os.close(self._numbers)


def _arrived(busy: set[Connection], pids: dict[Connection, int], timeout: float | None) -> Iterator[tuple[int, Any]]:
    """Yield the answers that have arrived. Wait `timeout` seconds for the first one; None: without limit.

    Workers that are done are removed from `busy`.
    """
    while busy and (ready := wait(list(busy), timeout)):
        for pipe in [each for each in busy if each in ready]:
            arrived = _received(pipe, pids)
            if arrived is None:
                busy.remove(pipe)
            else:
                yield arrived
        timeout = 0


def _received(pipe: Connection, pids: dict[Connection, int]) -> tuple[int, Any] | None:
    """Return (k, answer) from a worker, or None if it is done.

    Raises what `do` has raised, and WorkerDied.
    """
    try:
        message = pickle.loads(pipe.recv_bytes())
    except (EOFError, OSError):
        status = os.waitstatus_to_exitcode(os.waitpid(pids.pop(pipe), 0)[1])
        pipe.close()
        raise WorkerDied(status) from None
    if message is None:
        return None
    k, answer, error = message
    if error is not None:
        raise error
    return k, answer


def _fork(jobs: Iterable[int], do: Callable[[int], Any], pipes: list[Connection]) -> tuple[Connection, int]:
    """Fork a worker for jobs, and return our end of its pipe and its pid. pipes: our ends of the other workers'."""
    ours, theirs = Pipe()
    libc, parent = ctypes.CDLL(None), os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        with warnings.catch_warnings():  # "fork in a process with threads": as in PyTorch's own DataLoader
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if not pid:
            _work(jobs, do, theirs, [*pipes, ours], libc, parent)
    except OSError:
        ours.close()
        theirs.close()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    return ours, pid


def _work(
    jobs: Iterable[int], do: Callable[[int], Any], pipe: Connection, pipes: list[Connection], libc: ctypes.CDLL,
    parent: int,
) -> NoReturn:  # fmt: skip
    """Run jobs in a worker and send their answers. Ends the process: when all are done, or the parent is gone."""
    try:
        # Ctrl-C and SIGTERM reach the whole process group. The parent handles them: it ends the round first
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # Another thread may have been writing when the process was forked. Here that thread does not exist, so that its
        # lock on a stream is never released, and a flush would wait for ever
        streams.renew()
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        for other in pipes:
            other.close()
        gc.freeze()  # objects that came from the parent must not be finalised here
        torch.set_num_threads(1)
        for k in jobs:
            if os.getppid() != parent:
                break
            pipe.send_bytes(_answer(do, k))
        pipe.send_bytes(pickle.dumps(None))
    except OSError:
        pass
    finally:
        # The parent does not look at the status: the pipe has said whether all jobs are done
        os._exit(1)


def _answer(do: Callable[[int], Any], k: int) -> bytes:
    """Return (k, answer, exception) of a job, pickled; one of the last two is None."""
    try:
        return pickle.dumps((k, do(k), None))
    except BaseException as error:
        return pickle.dumps((k, None, picklable(error)))
    finally:
        with suppress(Exception):  # os._exit does not flush what a method has printed
            sys.stdout.flush()
            sys.stderr.flush()


def picklable(error: BaseException) -> BaseException:
    """Return an exception with its traceback as a note; one that cannot be pickled as a RuntimeError of its text."""
    said = f"In a worker process:\n{trace.text(error)}"
    try:
        error = pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(said)
    return error
