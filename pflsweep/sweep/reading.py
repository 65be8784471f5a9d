"""Lay the changes of a reading over a sweep file, which gives a paper's table as the authors' code ran it."""

import itertools
from collections.abc import Iterator

from pflsweep.config.reading import PAPER, Change, matches, table_reading
from pflsweep.sweep import spec
from pflsweep.sweep.spec import Table, laid_over
from pflsweep.util.errors import UserError


def read_table(name: str, scale: str, reading: str) -> Table:
    """Read a sweep file with the changes of a reading. Raises UserError if its paper has no such reading."""
    table = spec.read_table(name, scale)
    if reading == PAPER:
        return table
    of = table_reading(name, reading)
    for change in of.changes:
        table = _changed(table, change)
    known = {row: words for row, words in table.methods.items() if of.has_code(row)}
    if not known:
        raise UserError(f"reading={reading}: there is no public code of any row of {table.file}.")
    only = {row: where for row, where in table.only.items() if row in known}
    return table._replace(methods=known, only=only, without_code=tuple(table.methods.keys() - known.keys()))


def _changed(table: Table, change: Change) -> Table:
    """Return a table with one change of a reading."""
    where = f"the reading's change '{change.name}'"
    every = spec.of_trial(change.set, f"{where}: set")
    settings = {
        column: laid_over(words, [*every, *_of(column, change.settings, where)])
        for column, words in table.settings.items()
    }
    methods = {row: laid_over(words, _of(row, change.methods, where)) for row, words in table.methods.items()}
    own = dict(table.own)
    for row, columns in change.cells.items():
        for column, method in itertools.product(table.settings, table.methods):
            if matches(method, [row]) and (words := list(_of(column, columns, f"{where}: {row}"))):
                own[column, method] = laid_over(own.get((column, method), []), words)
    search = table.search if change.search is None else spec.overrides(change.search, f"{where}: search")
    return table._replace(settings=settings, methods=methods, search=search, own=own)


def _of(name: str, by_pattern: dict[str, str], where: str) -> Iterator[str]:
    """Yield the overrides of the patterns that a row or column matches."""
    for like, text in by_pattern.items():
        if matches(name, [like]):
            yield from spec.of_trial(text, f"{where}: {like}")
