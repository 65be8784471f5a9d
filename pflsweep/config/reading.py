"""Readings of a paper's tables: as it is written, or as its authors' code ran.

`sweeps/reading/<paper>.yaml` says what the code does otherwise, a change at a time, each with what the paper says,
what the code does and where that was read. `reading=code` is all of them, `reading=NAME` one of them, which tells how
much of a difference it makes.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from pflsweep.util import files
from pflsweep.util.errors import UserError, nearest, one_line, require_known
from pflsweep.util.resources import own_and_shipped

PAPER, CODE = "paper", "code"
KEYS = ("code", "changes", "unknown", "not_modelled")
NEEDED = ("paper", "code", "where")  # of a change, each a sentence


@dataclass(frozen=True)
class Change:
    """One thing that the authors' code does otherwise than their paper says. Overrides are text, as in a sweep file."""

    name: str
    paper: str  # what the paper says
    code: str  # what the code does
    where: str  # the file and function that it was read from
    set: str = ""  # overrides of all trials
    settings: dict[str, str] = field(default_factory=dict)  # columns, as names or patterns -> overrides
    methods: dict[str, str] = field(default_factory=dict)  # rows, as names or patterns -> overrides
    cells: dict[str, dict[str, str]] = field(default_factory=dict)  # rows -> columns -> overrides of these cells alone
    search: str | None = None  # overrides of the group `tune`; None: the table's own
    tables: list[str] = field(default_factory=lambda: ["*"])  # that it is about, as names or patterns
    views: dict[str, str] = field(default_factory=dict)  # rows -> the view that they are scored by
    rounds: dict[str, str] = field(default_factory=dict)  # rows -> the round that is scored, last or best
    expected: dict[str, dict[str, str]] = field(default_factory=dict)  # rows -> metric -> up or down, as predicted

    @property
    def overrides(self) -> list[str]:
        """Return what expresses the change, a text each: of all trials, columns, rows, cells, and of the search."""
        cells = ((f"{row} in {column}", text) for row, of in self.cells.items() for column, text in of.items())
        named = [*self.settings.items(), *self.methods.items(), *cells]
        search = [] if self.search is None else [f"search: {self.search or 'none'}"]
        return [*filter(None, [self.set]), *(f"{like}: {text}" for like, text in named), *search]


class Reading(NamedTuple):
    """The differences between a paper and its authors' code, as its file lists them."""

    code: str  # whose code, of which version
    changes: dict[str, Change]
    unknown: list[str]  # rows without public code, as names or patterns
    not_modelled: list[str]  # what else differs, in sentences, with the effect that is expected

    def of(self, table: str) -> dict[str, Change]:
        """Return the changes that are about a table, such as table1."""
        return {name: change for name, change in self.changes.items() if matches(table, change.tables)}


class Asked(NamedTuple):
    """One reading of one table: the changes that apply to it, and the rows that it cannot run."""

    changes: list[Change]
    unknown: list[str]  # rows that have no public code, as names or patterns

    @property
    def views(self) -> dict[str, str]:
        """Return the view that rows are scored by, where it is not the table's."""
        return {row: view for change in self.changes for row, view in change.views.items()}

    @property
    def rounds(self) -> dict[str, str]:
        """Return the round that rows are scored after, where it is not the table's."""
        return {row: round for change in self.changes for row, round in change.rounds.items()}

    def has_code(self, row: str) -> bool:
        """Return whether a row can be run in this reading."""
        return not matches(row, self.unknown)


def names() -> list[str]:
    """Return the papers whose code has been read."""
    found = (file for sweeps in own_and_shipped("sweeps") for file in sorted((sweeps / "reading").glob("*.yaml")))
    return list(dict.fromkeys(file.stem for file in found))


def read(paper: str) -> Reading | None:
    """Return what is known of a paper's code; None where nothing is. Raises UserError on a file that is wrong."""
    if paper not in names():
        return None
    file = next(f for s in own_and_shipped("sweeps") if (f := s / "reading" / f"{paper}.yaml").is_file())
    shown = f"sweeps/reading/{paper}.yaml"
    try:  # without Hydra's reader, since reports do without Hydra
        content = files.read_yaml(file)
    except Exception as error:  # YAML has its own ways to say what is wrong
        raise UserError(f"{shown} cannot be read as YAML: {one_line(error)}.") from error
    require_known(content, KEYS, shown)
    changes = content.get("changes")
    if not isinstance(changes, dict) or not isinstance(content.get("code"), str):
        raise UserError(f"{shown}: it needs `code`, whose code was read, and `changes`, each as `name: ...`.")
    found = {str(name): _change(str(name), given, f"{shown}: changes.{name}") for name, given in changes.items()}
    unknown, other = (_texts(content.get(key, []), f"{shown}: {key}") for key in ("unknown", "not_modelled"))
    return Reading(content["code"], found, unknown, other)


def asked(sweep: str, reading: str) -> Asked:
    """Return what a reading of a paper's table is, such as code of fedpg/table1.

    Raises UserError where the paper has no such reading.
    """
    if reading == PAPER:
        return Asked([], [])
    paper, table = Path(sweep).parent.name, Path(sweep).stem
    known = read(paper)
    if known is None:
        raise UserError(
            f"reading={reading}: sweep={sweep} is of no paper whose code has been read. "
            f"Those that have been are {', '.join(names())}; every sweep has reading=paper."
        )
    changes = known.of(table)
    if reading == CODE:
        return Asked(list(changes.values()), known.unknown)
    if reading in changes:
        return Asked([changes[reading]], [])
    guess = nearest(reading, [PAPER, CODE, *changes])
    raise UserError(
        f"reading={reading}: {sweep} has no such reading.{guess} It is {PAPER}, {CODE}, or one change of the code's "
        f"alone: {', '.join(changes)}."
    )


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a name is one of some, or matches a pattern among them."""
    return any(fnmatchcase(name, like) for like in patterns)


def _change(name: str, given: Any, where: str) -> Change:
    """Raises UserError."""
    if not isinstance(given, dict):
        raise UserError(f"{where} is {given!r}: it has to be lines of `key: value`.")
    require_known(given, tuple(part.name for part in fields(Change) if part.name != "name"), where)
    for key in NEEDED:
        if not isinstance(given.get(key), str):
            raise UserError(f"{where}.{key} is missing: say in a sentence what the {key} is.")
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
    _texts(given.get("tables", []), f"{where}.tables")
    return Change(name, **given)


def _texts(found: Any, where: str) -> list[str]:
    """Raises UserError where what a file has is no list of texts."""
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise UserError(f"{where} is {found!r}: it has to be a list of texts.")
    return found
