"""Jobs in worker processes of one thread each: forks of this one, made for one map and ended with it.

So a worker sees all that this process holds, as it is when the map begins, and nothing has to be sent to it. What it
writes stays its own, but for its answer and for what it puts into memory that forks share (see memory.py).
"""

import ctypes
import gc
import os
import pickle
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from time import perf_counter
from typing import Any, NoReturn

import torch

from pflsweep.engine import memory
from pflsweep.errors import UserError

MARGIN = 2.0  # forks have to save so many times the seconds that they take
_PR_SET_PDEATHSIG = 1  # of prctl.h


def possible(device: torch.device) -> bool:
    """Whether work on this device can go to forks. Where PyTorch sees a GPU its autograd has threads for it, and a fork
    of such a process cannot compute gradients.
    """
    return sys.platform == "linux" and device.type == "cpu" and not torch.cuda.is_available()


class Workers:
    """Up to `count` processes for each map. It knows from the maps before what each kind of work takes, and forking.

    pool: of memory for their answers. seen: by kind, what a caller remembers of these.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.pool = memory.Pool()
        self.seen: dict[str, Any] = {}
        self._pace: dict[str, float] = {}  # by kind, seconds for a cost of 1 in one process
        self._forking = 0.02  # seconds to make a worker and to end it: a guess until the first ones

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
        if count > 1 and total * self._pace[kind] * (1 - 1 / count) <= MARGIN * count * self._forking:
            count = 1
        began = perf_counter()
        yield from self._forked(jobs, do, count) if count > 1 else ((k, do(k)) for k in jobs)
        if total:
            self._pace[kind] = (perf_counter() - began) * count / total

    def _forked(self, jobs: list[int], do: Callable[[int], Any], count: int) -> Iterator[tuple[int, Any]]:
        waiting = iter(jobs)
        pids: dict[Connection, int] = {}
        busy: dict[Connection, int] = {}
        forking = 0.0
        try:
            for _ in range(count):
                began = perf_counter()
                pipe, pid = _fork(do, list(pids))
                pids[pipe] = pid
                forking += perf_counter() - began
                _give(pipe, waiting, busy)
            while busy:
                ready = wait(list(busy))
                for pipe in [each for each in busy if each in ready]:
                    k, answer = busy.pop(pipe), _received(pipe, pids)
                    _give(pipe, waiting, busy)
                    yield k, answer
        finally:
            began = perf_counter()
            for pid in pids.values():
                os.kill(pid, signal.SIGKILL)  # it holds nothing of worth
            for pipe, pid in pids.items():
                os.waitpid(pid, 0)
                pipe.close()
            self._forking = (forking + perf_counter() - began) / count


def _give(pipe: Connection, waiting: Iterator[int], busy: dict[Connection, int]) -> None:
    """The next job, if there is one. To a worker that is dead nothing can be sent; receiving will say so."""
    for k in waiting:
        busy[pipe] = k
        with suppress(BrokenPipeError):
            pipe.send(k)
        return


def _received(pipe: Connection, pids: dict[Connection, int]) -> Any:
    """A worker's answer. Raises what `do` has raised; UserError where the worker is dead."""
    try:
        answer, error = pickle.loads(pipe.recv_bytes())
    except (EOFError, ConnectionResetError):
        status = os.waitstatus_to_exitcode(os.waitpid(pids.pop(pipe), 0)[1])
        pipe.close()
        raise UserError(
            f"A worker process has died (exit status {status}; -9 is a kill, which is also what the system does when "
            "memory runs out). The record is whole, and the same command goes on from its last checkpoint: with fewer "
            "processes, such as train.workers=1, where memory was short."
        ) from None
    if error is not None:
        raise error
    return answer


def _fork(do: Callable[[int], Any], pipes: list[Connection]) -> tuple[Connection, int]:
    """A worker: (our end of its pipe, its pid). pipes: our ends of the others'."""
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
            _work(do, theirs, [*pipes, ours], libc, parent)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    return ours, pid


def _work(
    do: Callable[[int], Any], pipe: Connection, pipes: list[Connection], libc: ctypes.CDLL, parent: int
) -> NoReturn:
    """What a worker does until it is killed, or its parent is gone: in either way it ends at once."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which brings the round to its end
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        for other in pipes:
            other.close()
        gc.freeze()  # the parent's garbage is the parent's to finalise
        torch.set_num_threads(1)
        while os.getppid() == parent:
            pipe.send_bytes(_answer(do, pipe.recv()))
    except (EOFError, OSError):
        pass
    finally:
        os._exit(1)


def _answer(do: Callable[[int], Any], job: int) -> bytes:
    """The pickled answer, or the exception."""
    try:
        return pickle.dumps((do(job), None))
    except BaseException as error:
        return pickle.dumps((None, _portable(error)))
    finally:
        with suppress(Exception):  # what a method prints
            sys.stdout.flush()
            sys.stderr.flush()


def _portable(error: BaseException) -> BaseException:
    """The exception with its traceback as a note; one that cannot be pickled in words."""
    said = f"In a worker process:\n{traceback.format_exc()}"
    try:
        error = pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(said)
    return error
