"""A database that is away is waited for: what needs it is done anew, as a whole, until it answers.

The connection is too low a place for that. One can wait for its server and be found stale in time, but a transaction
that is cut in the middle has lost the statements before, which the connection does not know. So what is done patiently
has to bear being done twice: the answer to a commit may be lost too.
"""

import time
from collections.abc import Callable
from typing import TypeVar

from pflsweep.util import signals
from pflsweep.util.errors import UserError

PATIENCE = 300.0  # seconds for which a sweep waits
PAUSE = 1.0  # seconds between two attempts

T = TypeVar("T")


class StorageUnavailable(UserError):  # noqa: N818 (a state)
    """A database that does not answer: no trial's fault."""


def retry_until_available(call: Callable[[], T]) -> T:
    """Return what `call` does, however often it raised StorageUnavailable before.

    Raises that after PATIENCE seconds, and KeyboardInterrupt if a signal asks to stop meanwhile.
    """
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return call()
        except StorageUnavailable:
            if signals.requested():
                raise KeyboardInterrupt from None
            if time.monotonic() >= until:
                raise
            time.sleep(PAUSE)
