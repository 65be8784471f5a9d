"""Show an exception's traceback from the user's own code on: what calls that code is of no use to its author."""

import traceback
from collections.abc import Iterator
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException

from pflsweep.util.errors import BadReturn
from pflsweep.util.source_hash import ROOT, is_own_file

HEADER = "Traceback (most recent call last)"  # Python's, which begins a note of another process's frames too


def text(error: BaseException) -> str:
    """Return an exception's traceback as text, from the first frame of the user's own code that pflsweep called.

    All frames are shown if there is none, and none of a BadReturn. An exception of another process has its text in a
    note.
    """
    if isinstance(error, BadReturn):
        return f"{type(error).__name__}: {error}"
    if noted := _noted(error):
        return noted
    shown = TracebackException.from_exception(error)
    for each in _chain(shown):
        each.stack = StackSummary.from_list(_from_own(each.stack) or each.stack)
    return "".join(shown.format()).rstrip()


def is_shortened(error: BaseException) -> bool:
    """Return True if `text` leaves frames of an exception out."""
    return (
        isinstance(error, BadReturn)
        or bool(_noted(error))
        or any(_from_own(e.stack) for e in _chain(TracebackException.from_exception(error)))
    )


def line(error: BaseException) -> str:
    """Return where a module failed, as " (file, line n)": the innermost line that is in a file of the user's own."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    frame = ([frame for frame in frames if _is_own(frame)] or frames)[-1]
    return "" if isinstance(error, SyntaxError) else f" ({frame.filename}, line {frame.lineno})"


def _chain(shown: TracebackException) -> Iterator[TracebackException]:
    """Yield an exception with those that it came from."""
    yield shown
    before = shown.__cause__ or (None if shown.__suppress_context__ else shown.__context__)
    if before is not None:
        yield from _chain(before)


def _noted(error: BaseException) -> str:
    """Return the note with an exception's frames in another process; "" if there is none."""
    return next((note for note in getattr(error, "__notes__", ()) if HEADER in note), "")


def _from_own(frames: list[FrameSummary]) -> list[FrameSummary]:
    """Return the frames from the first of the user's own after one of pflsweep's; none if there is no such frame."""
    ours = next((k for k, frame in enumerate(frames) if Path(frame.filename).is_relative_to(ROOT)), len(frames))
    own = next((k for k, frame in enumerate(frames) if k > ours and _is_own(frame)), len(frames))
    return frames[own:]


def _is_own(frame: FrameSummary) -> bool:
    """Return True if a frame is in a file of the user's own. Code without a file, such as exec's, is not."""
    return not frame.filename.startswith("<") and is_own_file(Path(frame.filename))
