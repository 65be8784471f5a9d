"""Settings that a whole process shares: PyTorch's threads and arithmetic, and the signals that stop it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pflsweep.engine.workers import usable_cores
from pflsweep.trial.progress import say
from pflsweep.util import signals

Stop = Callable[[], bool]  # whether to stop after this round


def threads_each(workers: int) -> int:
    """Return the threads of each of `workers` workers that share this machine; a single one has PyTorch's default."""
    return torch.get_num_threads() if workers == 1 else max(1, usable_cores() // workers)


def cores(workers: str | int, threads: str | int, sweep_workers: int = 1) -> float:
    """Return how many cores a trial uses on a CPU, by its processes or threads.

    workers, threads: the keys of `train`. sweep_workers: those of the sweep on this machine, this one included. With
    more workers than cores the number is below 1.
    """
    asked = threads if workers in ("auto", 1) else workers
    if asked == "auto" or (workers == "auto" and threads == 1):
        asked = threads_each(sweep_workers)
    return min(int(asked), usable_cores() / sweep_workers)


@contextmanager
def process_wide(threads: str | int, precision: str, auto: int | None = None) -> Iterator[None]:
    """Set PyTorch's number of threads and its arithmetic, and restore them at the end.

    Both hold for the whole process. Stacked trials, which train in threads of one process, enter this once around all
    of them. threads, precision: the keys of `train`. auto: the value of train.threads=auto; None: the present number.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(int(threads) if threads != "auto" else auto or before)
    try:
        with arithmetic(precision):
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def arithmetic(precision: str) -> Iterator[None]:
    """Set a GPU's arithmetic for a precision, and restore it at the end.

    With fp32, cuDNN's convolutions do not round to tf32, as they would by default. Their algorithms are deterministic:
    gradients are added up in the same order each time.
    """
    cudnn: Any = torch.backends.cudnn
    matmul: Any = torch.backends.cuda.matmul
    conv, rnn = cudnn.conv, cudnn.rnn
    before = [(kind, kind.fp32_precision) for kind in (matmul, conv, rnn)]
    rounded, any_order = conv.fp32_precision == "tf32", cudnn.deterministic
    matmul.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    # Has to agree with fp32_precision: else PyTorch's cudnn.flags() raises
    cudnn.allow_tf32 = precision == "tf32"
    conv.fp32_precision = rnn.fp32_precision = matmul.fp32_precision
    cudnn.deterministic = True
    try:
        yield
    finally:
        cudnn.allow_tf32, cudnn.deterministic = rounded, any_order
        for kind, old in before:
            kind.fp32_precision = old


@contextmanager
def interruptible(stop_requested: Stop = lambda: False) -> Iterator[Stop]:
    """Yield a function that returns whether a signal, or `stop_requested`, wants training to stop after this round.

    Of nested contexts only the outer one handles signals; pass its function as `stop_requested` to the inner one. A
    second signal of the same kind stops at once. One of the other kind does not: a scheduler's SIGTERM may follow the
    Ctrl-C that a command has passed on.
    """
    pressed = threading.Event()

    def note() -> None:
        pressed.set()
        say("Stopping after this round; Ctrl-C again stops at once.")

    with signals.handled(note):
        yield lambda: pressed.is_set() or stop_requested() or signals.requested()
