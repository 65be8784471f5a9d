"""Retry a whole operation until its database answers again.

Reconnecting at the level of the connection is not enough: a transaction that breaks in the middle has lost its earlier
statements, which a new connection does not know. An operation that is retried must be safe to run twice, since the
reply to a successful commit may be lost as well.
"""

import time
from collections.abc import Callable
from typing import TypeVar

from pflsweep.util import signals
from pflsweep.util.errors import UserError

PATIENCE = 300.0  # seconds after which a sweep gives up
PAUSE = 1.0  # seconds between two attempts

T = TypeVar("T")


class StorageUnavailable(UserError):  # noqa: N818 (a state)
    """A database does not answer. This does not count as the failure of a trial."""


class StorageLost(StorageUnavailable):
    """A database is gone for good, such as a file that was deleted. Waiting for it does not help."""


def retry_until_available(call: Callable[[], T]) -> T:
    """Return the result of `call`, which is called again as long as it raises StorageUnavailable.

    Raises StorageUnavailable after PATIENCE seconds, StorageLost at once, KeyboardInterrupt if a signal asks to stop
    meanwhile.
    """
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return call()
        except StorageLost:
            raise
        except StorageUnavailable:
            if signals.requested():
                raise KeyboardInterrupt from None
            if time.monotonic() >= until:
                raise
            time.sleep(PAUSE)
