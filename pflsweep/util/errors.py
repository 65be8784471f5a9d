"""Exceptions whose message says all, messages about exceptions, and an argument parser."""

import argparse
import re
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn


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


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are UserErrors that name the nearest flag.

    Flags and positional arguments, subcommands included, may come in any order.
    """

    _intermixed = False

    def __init__(self, *args: Any, **options: Any) -> None:
        # Kept as they are added: argparse has no public way to ask for them
        self._own_flags: dict[str, argparse.Action] = {}
        self._commands: Any = None
        # `_command_first` knows whole flags alone, and an abbreviation may become ambiguous in a later version
        super().__init__(*args, **{"allow_abbrev": False, **options})

    def add_argument(self, *args: Any, **options: Any) -> argparse.Action:
        action = super().add_argument(*args, **options)
        self._own_flags |= dict.fromkeys(action.option_strings, action)
        return action

    def add_subparsers(self, **options: Any) -> Any:
        self._commands = super().add_subparsers(**options)
        return self._commands

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self._commands is not None:
            return super().parse_known_args(self._command_first(args), namespace)
        if self._intermixed:  # parse_known_intermixed_args calls this method again
            return super().parse_known_args(args, namespace)
        self._intermixed = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._intermixed = False

    def _command_first(self, args: list[str]) -> list[str]:
        """Return the arguments with the subcommand first: `report --runs DIR runs` becomes `report runs --runs DIR`.

        Raises UserError if there is no subcommand or an unknown one.
        """
        parsers: dict[str, Parser] = self._commands.choices
        flags = [pair for parser in parsers.values() for pair in parser._own_flags.items()]
        taking = {flag for flag, action in flags if action.nargs != 0}
        free = [word[:1] != "-" and before not in taking for before, word in zip(["", *args], args, strict=False)]
        if not any(free):
            return args if {"-h", "--help"}.intersection(args) else self.error(f"{self._commands.metavar} is missing")
        at = free.index(True)
        word, known = args[at], list(parsers)
        if word not in known:
            before = args[at - 1] if at else ""
            if before[:1] == "-" and before not in self.flags():
                self.error(f"unrecognized arguments: {before}")
            raise UserError(
                f"{self._own_name}: there is no '{word}'.{nearest(word, known)} There are: {', '.join(known)}."
            )
        return [word, *args[:at], *args[at + 1 :]]

    def error(self, message: str) -> NoReturn:
        said = next((re.split("[=:,]", word)[0] for word in message.split() if word.startswith("-")), "")
        guess = nearest(said, self.flags()) if said not in self.flags() else ""
        raise UserError(f"{self._own_name}: {message}.{guess} See `{self.prog} --help`.")

    @property
    def _own_name(self) -> str:
        """The command without the program's name, which begins each message anyway."""
        return self.prog.removeprefix("pflsweep ")

    def flags(self) -> list[str]:
        """Return the flags of this parser and of its subcommands."""
        parsers = self._commands.choices.values() if self._commands else ()
        return [*self._own_flags, *(flag for parser in parsers for flag in parser.flags())]
