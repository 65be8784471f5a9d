"""Readings of a paper's tables: as the paper is written, or as its authors' code ran.

`sweeps/reading/<paper>.yaml` lists the differences between paper and code, each as a change: what the paper says, what
the code does, and where that was read. `reading=code` applies all changes; `reading=NAME` applies one, which shows how
much it matters.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from pflsweep.config.options import VIEW_NAMES
from pflsweep.util import files
from pflsweep.util.errors import UserError, nearest, one_line, require_known, require_one_of
from pflsweep.util.resources import own_and_shipped

PAPER, CODE = "paper", "code"
KEYS = ("code", "changes", "unknown", "not_modelled")
NAME = "[a-z0-9_]+"  # of a change; a ledger's file name ends in it
NEEDED = ("paper", "code", "where")  # keys that every change must have, each a sentence


@dataclass(frozen=True)
class Change:
    """One difference of the authors' code from their paper. Overrides are text, as in a sweep file."""

    name: str
    paper: str  # what the paper says
    code: str  # what the code does
    where: str  # the file and function that it was read from
    set: str = ""  # overrides of all trials
    settings: dict[str, str] = field(default_factory=dict)  # columns, as names or patterns -> overrides
    methods: dict[str, str] = field(default_factory=dict)  # rows, as names or patterns -> overrides
    cells: dict[str, dict[str, str]] = field(default_factory=dict)  # rows -> columns -> overrides of these cells alone
    search: str | None = None  # overrides of the group `tune`; None: those of the table
    tables: list[str] = field(default_factory=lambda: ["*"])  # tables that it applies to, as names or patterns
    views: dict[str, str] = field(default_factory=dict)  # rows -> the view that they are scored by
    rounds: dict[str, str] = field(default_factory=dict)  # rows -> the round that is scored, last or best
    expected: dict[str, dict[str, str]] = field(default_factory=dict)  # rows -> metric -> up or down, as predicted

    @property
    def overrides(self) -> list[str]:
        """The overrides of the change, for display: of all trials, of columns, rows and cells, and of the search."""
        cells = (
            (f"{row} in {column}", text) for row, columns in self.cells.items() for column, text in columns.items()
        )
        named = [*self.settings.items(), *self.methods.items(), *cells]
        search = [] if self.search is None else [f"search: {self.search or 'none'}"]
        return [*filter(None, [self.set]), *(f"{like}: {text}" for like, text in named), *search]


class Reading(NamedTuple):
    """The differences between a paper and its authors' code, from its file in sweeps/reading."""

    code: str  # the code that was read, with its version
    changes: dict[str, Change]
    unknown: list[str]  # rows without public code, as names or patterns
    not_modelled: list[str]  # other differences, in sentences, with their expected effects

    def of(self, table: str) -> dict[str, Change]:
        """Return the changes that apply to a table, such as table1."""
        return {name: change for name, change in self.changes.items() if matches(table, change.tables)}


class TableReading(NamedTuple):
    """The reading of one table: the changes that apply, and the rows that cannot be run."""

    changes: list[Change]
    unknown: list[str]  # rows without public code, as names or patterns

    @property
    def views(self) -> dict[str, str]:
        """The views that rows are scored by where these differ from the table's."""
        return {row: view for change in self.changes for row, view in change.views.items()}

    @property
    def rounds(self) -> dict[str, str]:
        """The rounds (last or best) that rows are scored after where these differ from the table's."""
        return {row: round for change in self.changes for row, round in change.rounds.items()}

    def has_code(self, row: str) -> bool:
        """Return whether a row can be run in this reading."""
        return not matches(row, self.unknown)


def names() -> list[str]:
    """Return the papers whose code has been read."""
    found = (file for sweeps in own_and_shipped("sweeps") for file in sorted((sweeps / "reading").glob("*.yaml")))
    return list(dict.fromkeys(file.stem for file in found))


def read(paper: str) -> Reading | None:
    """Return how a paper's code differs; None if it has not been read. Raises UserError if the file is wrong."""
    if paper not in names():
        return None
    file = next(f for s in own_and_shipped("sweeps") if (f := s / "reading" / f"{paper}.yaml").is_file())
    shown = f"sweeps/reading/{paper}.yaml"
    try:
        content = files.read_yaml(file)  # not hydra_loader.read_option: reports of runs and tables do not import Hydra
    except Exception as error:  # the parser raises errors of several kinds
        raise UserError(f"{shown} cannot be read as YAML: {one_line(error)}.") from error
    require_known(content, KEYS, shown)
    changes = content.get("changes")
    if not isinstance(changes, dict) or not isinstance(content.get("code"), str):
        raise UserError(f"{shown}: it needs `code`, whose code was read, and `changes`, each as `name: ...`.")
    found = {str(name): _change(str(name), given, f"{shown}: changes.{name}") for name, given in changes.items()}
    unknown, other = (_texts(content.get(key, []), f"{shown}: {key}") for key in ("unknown", "not_modelled"))
    return Reading(content["code"], found, unknown, other)


def table_reading(sweep: str, reading: str) -> TableReading:
    """Return a reading of one table. sweep: a paper's table, such as fedpg/table1. reading: such as code.

    Raises UserError if the paper has no such reading.
    """
    if reading == PAPER:
        return TableReading([], [])
    paper, table = Path(sweep).parent.name, Path(sweep).stem
    known = read(paper)
    if known is None:
        raise UserError(
            f"reading={reading}: there is no list of code differences for sweep={sweep}, only for the papers "
            f"{', '.join(names())}. Use reading=paper, which every sweep has."
        )
    changes = known.of(table)
    if reading == CODE:
        return TableReading(list(changes.values()), known.unknown)
    if reading in changes:
        return TableReading([changes[reading]], [])
    guess = nearest(reading, [PAPER, CODE, *changes])
    raise UserError(
        f"reading={reading}: {sweep} has no such reading.{guess} It is {PAPER}, {CODE}, or one change of the code's "
        f"alone: {', '.join(changes)}."
    )


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a name is among some names, or matches a pattern among them."""
    return any(fnmatchcase(name, like) for like in patterns)


def _change(name: str, given: Any, where: str) -> Change:
    """Return a change from its content in a file. where: its place, for messages. Raises UserError."""
    if not re.fullmatch(NAME, name):
        raise UserError(
            f"{where} has no name that a file can have: use lower-case letters, digits and underscores, as in one_step."
        )
    if not isinstance(given, dict):
        raise UserError(f"{where} is {given!r}: it has to be lines of `key: value`.")
    require_known(given, tuple(part.name for part in fields(Change) if part.name != "name"), where)
    for key in NEEDED:
        if not isinstance(given.get(key), str):
            wrong = f"is {given[key]!r}, which is no text" if key in given else "is missing"
            raise UserError(f"{where}.{key} {wrong}: say in a sentence what the {key} is.")
    for key in ("settings", "methods", "cells", "views", "rounds", "expected"):
        if not isinstance(given.get(key, {}), dict):
            raise UserError(f"{where}.{key} is {given[key]!r}: it has to be lines of `name: value`.")
    for row, columns in given.get("cells", {}).items():
        if not isinstance(columns, dict):
            raise UserError(f"{where}.cells.{row} is {columns!r}: it has to be lines of `column: overrides`.")
    for row, metrics in given.get("expected", {}).items():
        if not isinstance(metrics, dict) or not set(metrics.values()) <= {"up", "down"}:
            raise UserError(
                f"{where}.expected.{row} is {metrics!r}: it has to name metrics that go up or down, such as "
                "{s_acc: up, l_acc: down}."
            )
    for key, allowed in (("views", VIEW_NAMES), ("rounds", ("last", "best"))):
        for row, value in given.get(key, {}).items():
            require_one_of(f"{key}.{row}", value, allowed, where)
    _texts(given.get("tables", []), f"{where}.tables")
    return Change(name, **given)


def _texts(found: Any, where: str) -> list[str]:
    """Return a list of texts. where: its place, for the message. Raises UserError if it is none."""
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise UserError(f"{where} is {found!r}: it has to be a list of texts.")
    return found
