"""Handling of SIGINT (Ctrl-C) and SIGTERM (sent by schedulers): both stop training after the current round."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

AGAIN = "; give the same command again to continue"  # the end of the message of a command that was stopped
# The last signal that asked this process to stop.
_last: int = signal.SIGINT
# True once a signal has asked this command, or the block inside `handled`, to stop.
_requested = False
# True inside `handled`.
_handling = False


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived while no round was running."""


def exit_code() -> int:
    """Return the exit code of a command that a signal stopped: 130 after Ctrl-C, 143 after SIGTERM."""
    return 128 + _last


def requested() -> bool:
    """Return True if a signal has asked to stop.

    Loops have to check it, since a library may swallow the exception: in a bare `except`, or in a callback from C code,
    whose exceptions Python ignores.
    """
    return _requested


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM stop this process as Ctrl-C does, and remember which signal arrived.

    Changes nothing outside the main thread, or where another handler is installed, such as submitit's.
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
        raise Terminated(f"stopped by SIGTERM{AGAIN}")
    raise KeyboardInterrupt


@contextmanager
def handled(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` for the first SIGINT and the first SIGTERM; a second one has its previous effect.

    SIGTERM is handled only inside `terminable`, and both only in the main thread. A nested `handled` changes nothing:
    the outer one receives the signals.
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
