"""Warn once a process: a sweep builds many trials, of which each would warn anew."""

import logging
from functools import cache


@cache
def warn_once(name: str, text: str) -> None:
    """Log a warning, the first time only. name: of the logger, `__name__` of the caller."""
    logging.getLogger(name).warning("%s", text)
