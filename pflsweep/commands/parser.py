"""The argument parser of the commands: errors are UserErrors, and flags may come in any order."""

import argparse
import re
from typing import Any, NoReturn

from pflsweep.util.errors import UserError, nearest


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
