"""Standard streams that do not end training: closed ones, and those whose reader has gone."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

NAMES = {"stdout": 1, "stderr": 2}


class Stream(io.TextIOWrapper):
    """Standard output or error whose reader may go away, as in `pflsweep ... 2>&1 | head`: then the rest is lost.

    An exception would end the training that writes. On standard error the rest is lost after any error; one of standard
    output other than a broken pipe, such as a full disk, is raised.
    """

    def __init__(self, name: str, like: io.TextIOWrapper | None) -> None:
        self._lost = OSError if name == "stderr" else BrokenPipeError
        # A closed stream has no settings to copy
        kind = {"line_buffering": True} if like is None else {
            "encoding": like.encoding, "errors": like.errors,
            "line_buffering": like.line_buffering, "write_through": like.write_through,
        }  # fmt: skip
        # As Python does where PYTHONUNBUFFERED is set
        buffering = 0 if like is not None and like.write_through else -1
        super().__init__(os.fdopen(NAMES[name], "wb", buffering, closefd=False), **kind)

    def write(self, text: str) -> int:
        with self._unbroken():
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with self._unbroken():
            super().flush()

    @contextmanager
    def _unbroken(self) -> Iterator[None]:
        try:
            yield
        except self._lost:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)


def renew() -> None:
    """Replace the standard streams by new ones of the kind Stream.

    Streams that were replaced before, as by pytest and by a notebook, stay as they are.
    """
    for name in NAMES:
        old = getattr(sys, name)
        if isinstance(old, Stream) or (old is not None and old is getattr(sys, f"__{name}__")):
            with suppress(OSError):  # it is closed
                setattr(sys, name, Stream(name, old))


@contextmanager
def unbroken() -> Iterator[None]:
    """Let standard streams be of the kind Stream as `renew` does, and closed ones lead nowhere."""
    for number in (0, *NAMES.values()):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number, which a file of ours would get otherwise
            os.open(os.devnull, os.O_RDWR)
    before = {name: getattr(sys, name) for name in NAMES}
    for name, old in before.items():
        if old is None:
            setattr(sys, name, Stream(name, None))
        else:
            old.flush()
    renew()
    try:
        yield
    finally:
        for name, old in before.items():
            if isinstance(new := getattr(sys, name), Stream):
                new.flush()
            setattr(sys, name, old)
