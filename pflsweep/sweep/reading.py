"""Readings of a paper's tables: as it is written, or as its authors' code ran.

`sweeps/reading/<paper>.yaml` says what the code does otherwise, a change at a time, each with what the paper says, what
the code does and where that was read. `reading=code` lays all of them over a table; `reading=NAME` one of them, which
tells how much of a difference it makes.
"""

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from pflsweep.config.keys import key_of
from pflsweep.sweep import spec
from pflsweep.sweep.spec import Table
from pflsweep.util.errors import UserError, nearest
from pflsweep.util.resources import own_and_shipped

PAPER, CODE = "paper", "code"
KEYS = ("code", "changes", "unknown", "not_modelled")
CHANGE_KEYS = ("paper", "code", "where", "set", "settings", "methods", "search", "tables", "views", "counts")
NEEDED = ("paper", "code", "where")


class Change(NamedTuple):
    """One thing that the authors' code does otherwise than their paper says."""

    name: str
    paper: str  # what the paper says
    code: str  # what the code does
    where: str  # the file and function that it was read from
    set: list[str]  # overrides of all trials
    settings: dict[str, list[str]]  # columns, as names or patterns -> overrides
    methods: dict[str, list[str]]  # rows, as names or patterns -> overrides
    search: list[str] | None  # overrides of the group `tune`; None: the table's own
    tables: list[str]  # that it is about, as patterns; ["*"]: all of the paper
    views: dict[str, str]  # rows -> the view that they are scored by
    counts: dict[str, str]  # how a report counts: round (last, best), by (clients, samples)


class Reading(NamedTuple):
    """All that is known of a paper's code."""

    paper: str
    code: str  # whose code, of which version
    changes: dict[str, Change]
    unknown: list[str]  # rows without public code, as names or patterns
    not_modelled: list[str]  # what else differs, in sentences, with the effect that is expected
    file: str  # for messages


def names() -> list[str]:
    """Return the papers whose code has been read."""
    files = (file for sweeps in own_and_shipped("sweeps") for file in sorted((sweeps / "reading").glob("*.yaml")))
    return list(dict.fromkeys(file.stem for file in files))


def read(paper: str) -> Reading | None:
    """Return what is known of a paper's code; None where nothing is. Raises UserError on a file that is wrong."""
    if paper not in names():
        return None
    file = next(f for s in own_and_shipped("sweeps") if (f := s / "reading" / f"{paper}.yaml").is_file())
    content, shown = spec.read(file)
    spec.require_known(content, KEYS, shown)
    changes = content.get("changes")
    if not isinstance(changes, dict) or not isinstance(content.get("code"), str):
        raise UserError(f"{shown}: it needs `code`, whose code was read, and `changes`, each as `name: ...`.")
    return Reading(
        paper,
        content["code"],
        {name: _change(name, given, f"{shown}: changes.{name}") for name, given in changes.items()},
        _texts(content, "unknown", shown),
        _texts(content, "not_modelled", shown),
        shown,
    )


def _change(name: str, given: Any, where: str) -> Change:
    if not isinstance(given, dict):
        raise UserError(f"{where} is {given!r}: it has to be lines of `key: value`.")
    spec.require_known(given, CHANGE_KEYS, where)
    for key in NEEDED:
        if not isinstance(given.get(key), str):
            raise UserError(f"{where}.{key} is missing: say in a sentence what the {key} is.")
    by_name = {
        part: {str(like): spec.of_trial(text, f"{where}.{part}.{like}") for like, text in _mapping(given, part, where)}
        for part in ("settings", "methods")
    }
    search = spec.overrides(given["search"], f"{where}.search") if "search" in given else None
    return Change(
        name, given["paper"], given["code"], given["where"],
        spec.of_trial(given.get("set", ""), f"{where}.set"), by_name["settings"], by_name["methods"], search,
        _texts(given, "tables", where) or ["*"],
        *({str(key): str(value) for key, value in _mapping(given, part, where)} for part in ("views", "counts")),
    )  # fmt: skip


def _mapping(content: dict[str, Any], key: str, where: str) -> Iterable[tuple[Any, Any]]:
    found = content.get(key, {})
    if not isinstance(found, dict):
        raise UserError(f"{where}.{key} is {found!r}: it has to be lines of `name: value`.")
    return found.items()


def _texts(content: dict[str, Any], key: str, where: str) -> list[str]:
    found = content.get(key, [])
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise UserError(f"{where}: {key} is {found!r}: it has to be a list of texts.")
    return found


def read_table(name: str, scale: str, reading: str) -> Table:
    """Return a table as a reading has it. Raises UserError on a reading that its paper does not have."""
    table = spec.read_table(name, scale)
    if reading == PAPER:
        return table
    changes, unknown = _asked(name, reading)
    for change in changes:
        table = _changed(table, change)
    known = {row: words for row, words in table.methods.items() if not _any(row, unknown)}
    if not known:
        raise UserError(f"reading={reading}: there is no public code of any row of {table.file}.")
    return table._replace(methods=known, only={row: where for row, where in table.only.items() if row in known})


def without_code(name: str, reading: str) -> list[str]:
    """Return the patterns of a table's rows that a reading cannot run, since no code of theirs is public."""
    return [] if reading == PAPER else _asked(name, reading)[1]


def changes_of(name: str, reading: str) -> list[Change]:
    """Return what a reading changes in a table. Raises UserError."""
    return [] if reading == PAPER else _asked(name, reading)[0]


def _asked(name: str, reading: str) -> tuple[list[Change], list[str]]:
    """Return a reading's changes of a table, and the rows that have no public code."""
    paper = Path(name).parent.name
    of = read(paper)
    if of is None:
        raise UserError(
            f"reading={reading}: sweep={name} is of no paper whose code has been read. "
            f"Those that have been are {', '.join(names())}; every sweep has reading=paper."
        )
    changes = {key: change for key, change in of.changes.items() if _any(Path(name).stem, change.tables)}
    if reading == CODE:
        return list(changes.values()), of.unknown
    if reading in changes:
        return [changes[reading]], []
    known = [PAPER, CODE, *changes]
    raise UserError(
        f"reading={reading}: {name} has no such reading.{nearest(reading, known)} It is {PAPER}, {CODE}, or one change "
        f"of the code's alone: {', '.join(changes)}."
    )


def _changed(table: Table, change: Change) -> Table:
    settings = {
        column: laid_over(words, [*change.set, *_of(column, change.settings)])
        for column, words in table.settings.items()
    }
    methods = {row: laid_over(words, _of(row, change.methods)) for row, words in table.methods.items()}
    search = table.search if change.search is None else change.search
    return table._replace(settings=settings, methods=methods, search=search)


def _of(name: str, by_pattern: dict[str, list[str]]) -> Iterator[str]:
    """Yield the overrides of the patterns that a row or column matches."""
    for like, words in by_pattern.items():
        if fnmatchcase(name, like):
            yield from words


def _any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, like) for like in patterns)


def laid_over(words: list[str], more: Iterable[str]) -> list[str]:
    """Return overrides, later ones in place of those of the same key; another algorithm replaces its options too."""
    found = list(words)
    for word in more:
        key = key_of(word)
        found = [old for old in found if not _replaced(key_of(old), key)]
        found.append(word)
    return found


def _replaced(old: str, new: str) -> bool:
    return old == new or (new == "algorithm" and old.startswith("algorithm."))
