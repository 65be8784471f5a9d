"""Ctrl-C (SIGINT) and SIGTERM, which schedulers send: both end training after the round under way."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_last: int = signal.SIGINT  # the signal that has last asked this process to stop


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived where no round was under way."""


def exit_code() -> int:
    """Return the exit code of a command that was stopped: 130 after Ctrl-C, 143 after SIGTERM."""
    return 128 + _last


@contextmanager
def terminable() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C in this context. Outside the main thread, and where another program's handler is
    installed (a scheduler's, as submitit's), change nothing.
    """
    global _last
    _last = signal.SIGINT
    if not _in_main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(number: int, frame: FrameType | None) -> None:
    global _last
    _last = number
    raise Terminated("stopped by SIGTERM; the same command continues")


@contextmanager
def handled(act: Callable[[int], bool]) -> Iterator[None]:
    """Call `act` with the number of each signal that asks to stop. Where it returns True, the next signal of that kind
    does what it did before this context. SIGTERM is handled only inside `terminable`, and both only in the main thread.
    """
    if not _in_main_thread():
        yield
        return
    numbers: list[int] = [signal.SIGINT, *([signal.SIGTERM] if signal.getsignal(signal.SIGTERM) is _terminate else [])]
    before: dict[int, Any] = {number: signal.getsignal(number) for number in numbers}

    def handle(number: int, frame: FrameType | None) -> None:
        global _last
        _last = number
        if act(number):
            signal.signal(number, before[number])

    for number in numbers:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
