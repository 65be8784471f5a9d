"""Jobs in several processes of one thread each: this one, and workers, forks of it made for one map and ended with it.

So a worker sees all that this process holds, as it is when the map begins, and nothing has to be sent to it. What it
writes stays its own, but for its answer and for what it puts into memory that forks share (see memory.py).
"""

import ctypes
import gc
import os
import pickle
import select
import signal
import sys
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from time import perf_counter
from typing import Any, NoReturn

import torch

from pflsweep.ops import memory
from pflsweep.util.errors import UserError

MARGIN = 2.0  # forks have to save so many times the seconds that they take
_PR_SET_PDEATHSIG = 1  # of prctl.h
_NUMBER = 4  # bytes


def available() -> int:
    """This machine's cores, those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def possible(device: torch.device) -> bool:
    """Whether work on this device can go to forks. Where PyTorch sees a GPU its autograd has threads for it, and a fork
    of such a process cannot compute gradients.
    """
    return sys.platform == "linux" and device.type == "cpu" and not torch.cuda.is_available()


class Workers:
    """Up to `count` processes for each map, this one among them. It knows from the maps before what each kind of work
    takes, and forking.

    pool: of memory for their answers. seen: by kind, what a caller remembers of these.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.pool = memory.Pool()
        self.seen: dict[str, Any] = {}
        self._pace: dict[str, float] = {}  # by kind, seconds for a cost of 1 in one process
        self._forking = 0.01  # seconds to make a worker: a guess until the first ones
        self._done: list[int] = []  # pids of workers that the system may still be taking apart
        weakref.finalize(self, _reap, self._done).atexit = False

    def map(self, kind: str, costs: list[float], do: Callable[[int], Any]) -> Iterator[tuple[int, Any]]:
        """(k, do(k)) for every k, as they are done. What costs[k] measures is up to the kind of work.

        The very first job of a kind is done here and shows what the others will take; where forking takes too much of
        what it saves, they are done here too. An exception of do's is raised, with the worker's traceback as a note.
        """
        jobs = sorted(range(len(costs)), key=lambda k: -costs[k])  # the largest first: all are done at the same time
        if kind not in self._pace:
            began = perf_counter()
            yield jobs[0], do(jobs[0])
            self._pace[kind] = (perf_counter() - began) / costs[jobs[0]]
            jobs = jobs[1:]
        total, count = sum(costs[k] for k in jobs), min(self.count, len(jobs))
        if count > 1 and total * self._pace[kind] * (1 - 1 / count) <= MARGIN * (count - 1) * self._forking:
            count = 1
        began = perf_counter()
        yield from self._forked(jobs, do, count) if count > 1 else ((k, do(k)) for k in jobs)
        if total:
            working = perf_counter() - began - self._forking * (count - 1)
            self._pace[kind] = working * count / total

    def _forked(self, jobs: list[int], do: Callable[[int], Any], count: int) -> Iterator[tuple[int, Any]]:
        """By `count` processes, of which this is one. Each of the others begins with a job of its own; then all take
        what is left.
        """
        _reap(self._done)
        left = _Queue(jobs[count - 1 :])
        pids: dict[Connection, int] = {}
        busy: set[Connection] = set()
        forking = 0.0
        try:
            for k in jobs[: count - 1]:
                began = perf_counter()
                pipe, pid = _fork(chain([k], left), do, list(pids))
                pids[pipe] = pid
                busy.add(pipe)
                forking += perf_counter() - began
            self._forking = forking / (count - 1)
            for k in left:
                yield k, do(k)
                yield from _arrived(busy, pids, 0)
            while busy:
                yield from _arrived(busy, pids, None)
        finally:
            for pipe, pid in pids.items():
                if pipe in busy:
                    os.kill(pid, signal.SIGKILL)  # it holds nothing of worth
                pipe.close()
            self._done.extend(pids.values())
            if busy:
                _reap(self._done)
            left.close()


def _reap(pids: list[int]) -> None:
    """Wait until these workers are gone: to free its memory takes one longer than to make it."""
    while pids:
        with suppress(ChildProcessError):  # somebody's fork of this process has their pids, too
            os.waitpid(pids.pop(), 0)


class _Queue:
    """Jobs of which each is taken once, by whichever process asks first: their numbers are in a pipe that forks share,
    and to read one is to have it.
    """

    def __init__(self, jobs: list[int]) -> None:
        turns = min(len(jobs), select.PIPE_BUF // _NUMBER)  # so many always fit: of more jobs, a turn is several
        self._turns = [jobs[k::turns] for k in range(turns)]
        self._numbers, into = os.pipe()
        os.write(into, b"".join(k.to_bytes(_NUMBER, "little") for k in range(turns)))
        os.close(into)
        os.set_blocking(self._numbers, False)  # all are there; a fork made elsewhere meanwhile may keep `into` open

    def __iter__(self) -> Iterator[int]:
        with suppress(BlockingIOError):
            while number := os.read(self._numbers, _NUMBER):
                yield from self._turns[int.from_bytes(number, "little")]

    def close(self) -> None:
        os.close(self._numbers)


def _arrived(busy: set[Connection], pids: dict[Connection, int], timeout: float | None) -> Iterator[tuple[int, Any]]:
    """The answers that are there, at least one unless `timeout` seconds pass before. Workers that are done leave
    `busy`.
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
    """(k, answer) from a worker, or None where it is done. Raises what `do` has raised; UserError where it is dead."""
    try:
        message = pickle.loads(pipe.recv_bytes())
    except (EOFError, OSError):
        status = os.waitstatus_to_exitcode(os.waitpid(pids.pop(pipe), 0)[1])
        pipe.close()
        raise UserError(
            f"A worker process has died (exit status {status}; -9 is a kill, which is also what the system does when "
            "memory runs out). The record is whole, and the same command goes on from its last checkpoint: with fewer "
            "processes, such as train.workers=1, where memory was short."
        ) from None
    if message is None:
        return None
    k, answer, error = message
    if error is not None:
        raise error
    return k, answer


def _fork(jobs: Iterable[int], do: Callable[[int], Any], pipes: list[Connection]) -> tuple[Connection, int]:
    """A worker for jobs: (our end of its pipe, its pid). pipes: our ends of the others'."""
    ours, theirs = Pipe()
    sys.stdout.flush()  # else it would be printed twice
    sys.stderr.flush()
    libc, parent = ctypes.CDLL(None), os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with warnings.catch_warnings():  # "fork in a process with threads": as in PyTorch's own DataLoader
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if not pid:
            _work(jobs, do, theirs, [*pipes, ours], libc, parent)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    return ours, pid


def _work(
    jobs: Iterable[int], do: Callable[[int], Any], pipe: Connection, pipes: list[Connection], libc: ctypes.CDLL,
    parent: int,
) -> NoReturn:  # fmt: skip
    """What a worker does until it is done or killed, or its parent is gone: in any case it ends at once."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which brings the round to its end
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        for other in pipes:
            other.close()
        gc.freeze()  # the parent's garbage is the parent's to finalise
        torch.set_num_threads(1)
        for k in jobs:
            if os.getppid() != parent:
                break
            pipe.send_bytes(_answer(do, k))
        pipe.send_bytes(pickle.dumps(None))
    except OSError:
        pass
    finally:
        os._exit(1)


def _answer(do: Callable[[int], Any], k: int) -> bytes:
    """Pickled: k, and the answer or the exception."""
    try:
        return pickle.dumps((k, do(k), None))
    except BaseException as error:
        return pickle.dumps((k, None, portable(error)))
    finally:
        with suppress(Exception):  # what a method prints
            sys.stdout.flush()
            sys.stderr.flush()


def portable(error: BaseException) -> BaseException:
    """Return an exception that can be pickled, with its traceback as a note; one that cannot, as a RuntimeError."""
    said = f"In a worker process:\n{traceback.format_exc()}"
    try:
        error = pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(said)
    return error
