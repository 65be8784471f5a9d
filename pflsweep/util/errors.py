"""Exceptions whose message says all, and parts of messages."""

import re
from collections.abc import Iterable, Sequence
from typing import Any


class UserError(Exception):
    """Bad input. Its message says what is wrong, where, and what would be right; the command prints it and exits with
    code 2.
    """


class Diverged(Exception):  # noqa: N818 (as the field says it)
    """A trial has diverged: no client's loss is finite any more. Its record is kept."""


class BadReturn(TypeError):  # noqa: N818 (it says what is wrong)
    """A verb of a method has returned something that it must not. The message names the verb and where it is written,
    so that it is shown without a traceback.
    """


def one_line(error: BaseException) -> str:
    """Return an exception's message as one line, or the name of its class where it has no message."""
    return " ".join(str(error).split()) or type(error).__name__


def counted(number: int, noun: str) -> str:
    """Return a number of things as text, such as "1 run" and "2 runs"."""
    return f"{number} {noun}{'s' * (number != 1)}"


def in_gb(count: float) -> str:
    """Return a number of bytes as text, in GB or TB."""
    return f"{count / 1e12:,.1f} TB" if count >= 1e12 else f"{count / 1e9:.1f} GB"


def shortened(error: BaseException, longest: int = 300) -> str:
    """Return an exception's message as one line, cut after about `longest` characters.

    A word or a quoted text is never cut, since it may be a path. The message of a UserError is returned whole.
    """
    said = one_line(error)
    if isinstance(error, UserError) or len(said) <= longest:
        return said
    quoted = re.compile(r"'[^']{0,500}'|\"[^\"]{0,500}\"|\S+")
    end = next((found.end() for found in quoted.finditer(said) if found.end() >= longest), len(said))
    return said if end == len(said) else f"{said[:end]} ..."


def nearest(word: str, known: list[str]) -> str:
    """Return " Did you mean 'x'?" for the known word that is nearest to `word`, or "" if none is close."""
    import difflib

    close = difflib.get_close_matches(word, known, n=1)
    return f" Did you mean '{close[0]}'?" if close else ""


def require_known(content: Iterable[Any], keys: Sequence[str], where: Any) -> None:
    """Raise UserError on the first key of `content` that is not in `keys`. where: the file, for the message."""
    for key in content:
        if key not in keys:
            guess = nearest(str(key), list(keys))
            raise UserError(f"{where}: unknown key '{key}'.{guess} It may have: {', '.join(keys)}.")


def require_one_of(key: str, value: Any, allowed: Sequence[Any], where: Any) -> None:
    """Raise UserError if a key's value is none of the allowed ones. where: the file, for the message."""
    if value not in allowed:
        words = [str(each) for each in allowed]
        guess = nearest(str(value), words)
        raise UserError(f"{where}: {key} is {value!r}: it has to be one of {', '.join(words)}.{guess}")


def without_password(text: str) -> str:
    """Return a text with the passwords removed from addresses of databases and servers in it.

    What is shown or stored goes through it: messages, pages and records.
    """
    return re.sub(r"([?&]\w*password=)[^&\s'\"]*", r"\1", re.sub(r"(://[^:/@\s]*):\S*@", r"\1@", text))
