"""Ctrl-C (SIGINT) and SIGTERM, which schedulers send: both end training after the round under way."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_last: int = signal.SIGINT  # the signal that has last asked this process to stop
_requested = False  # whether one has asked this command, or what is done inside `handled`, to stop
_handling = False  # inside `handled`


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived where no round was under way."""


def exit_code() -> int:
    """Return the exit code of a command that was stopped: 130 after Ctrl-C, 143 after SIGTERM."""
    return 128 + _last


def requested() -> bool:
    """Return whether a signal has asked to stop. Loops ask, since libraries lose the exception now and then: in a bare
    `except`, or in a callback of C code, whose exceptions Python ignores.
    """
    return _requested


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM stop this process as Ctrl-C does, and remember both. Outside the main thread, and where another
    program's handler is installed (a scheduler's, as submitit's), change nothing.
    """
    global _last, _requested
    _last, _requested = signal.SIGINT, False
    usual: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    ours = [number for number, handler in usual.items() if _in_main_thread() and signal.getsignal(number) is handler]
    for number in ours:
        signal.signal(number, _stop)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, usual[number])


def _stop(number: int, frame: FrameType | None) -> None:
    global _last, _requested
    _last, _requested = number, True
    if number == signal.SIGTERM:
        raise Terminated("stopped by SIGTERM; the same command continues")
    raise KeyboardInterrupt


@contextmanager
def handled(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` for the first signal of each kind that asks to stop; the next one does what it did before.
    SIGTERM is handled only inside `terminable`, and both only in the main thread. Inside another such context nothing
    changes: the outer one hears the signals.
    """
    global _handling, _requested
    if not _in_main_thread() or _handling:
        yield
        return
    numbers: list[int] = [signal.SIGINT, *([signal.SIGTERM] if signal.getsignal(signal.SIGTERM) is _stop else [])]
    before: dict[int, Any] = {number: signal.getsignal(number) for number in numbers}

    def handle(number: int, frame: FrameType | None) -> None:
        global _last, _requested
        _last, _requested = number, True
        act()
        signal.signal(number, before[number])

    _handling, asked_before = True, _requested
    for number in numbers:
        signal.signal(number, handle)
    try:
        yield
    finally:
        _handling, _requested = False, asked_before
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
