"""What a process has one of: its number of threads and its arithmetic in PyTorch, and the signals that stop it."""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from pflsweep.config.compose import Config
from pflsweep.engine.workers import available
from pflsweep.trial.progress import say
from pflsweep.util import signals

Stop = Callable[[], bool]  # whether to stop after this round


def memory_available() -> float:
    """Return the bytes of memory that new processes can have, infinite where the system does not tell."""
    found = [math.inf]
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.append(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")))
    with suppress(OSError, ValueError):  # a container's own limit; "max" is none
        found.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(found)


def threads_each(workers: int) -> int:
    """Of so many workers that share this machine's cores; the only one has PyTorch's own number."""
    return torch.get_num_threads() if workers == 1 else max(1, available() // workers)


def cores(config: Config, beside: int = 1) -> float:
    """This machine's share that a trial has on a CPU, as processes or as threads. beside: how many workers train here,
    this one counted; more than cores share them.
    """
    workers, threads = config.train.workers, config.train.threads
    asked = threads if workers in ("auto", 1) else workers
    if asked == "auto" or (workers == "auto" and threads == 1):
        asked = threads_each(beside)
    return min(int(asked), available() / beside)


@contextmanager
def process_wide(config: Config, auto: int | None = None) -> Iterator[None]:
    """What PyTorch has one of for all threads. Around trials that train in threads it is entered once: each of them
    would set it anew while others train. auto: what train.threads=auto is; None: as many as there are.
    """
    before, asked = torch.get_num_threads(), config.train.threads
    torch.set_num_threads(int(asked) if asked != "auto" else auto or before)
    try:
        with arithmetic(config.train.precision):
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def arithmetic(precision: str) -> Iterator[None]:
    """On a GPU: fp32 is all of it, where cuDNN's convolutions would round to tf32 by default, and their gradients are
    added up in the same order each time.
    """
    cudnn: Any = torch.backends.cudnn
    matmul: Any = torch.backends.cuda.matmul
    conv, rnn = cudnn.conv, cudnn.rnn
    before = [(kind, kind.fp32_precision) for kind in (matmul, conv, rnn)]
    rounded, any_order = conv.fp32_precision == "tf32", cudnn.deterministic
    matmul.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    cudnn.allow_tf32 = precision == "tf32"  # without it PyTorch's cudnn.flags() raises
    conv.fp32_precision = rnn.fp32_precision = matmul.fp32_precision
    cudnn.deterministic = True
    try:
        yield
    finally:
        cudnn.allow_tf32, cudnn.deterministic = rounded, any_order
        for kind, old in before:
            kind.fp32_precision = old


@contextmanager
def interruptible(asked: Stop = lambda: False) -> Iterator[Stop]:
    """Yield a function that tells whether a signal, or `asked`, wants training to stop after this round. Inside another
    such context it is the outer one that hears signals, and its function has to be `asked`.

    A second signal of the same kind stops at once; one of the other kind does not, since a scheduler's SIGTERM may
    follow on the Ctrl-C that a command has passed on.
    """
    pressed = threading.Event()

    def note() -> None:
        pressed.set()
        say("Stopping after this round; Ctrl-C again stops at once.")

    with signals.handled(note):
        yield lambda: pressed.is_set() or asked() or signals.requested()
