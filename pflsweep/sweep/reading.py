"""Lay the changes of a reading over a sweep file, which gives a paper's table as the authors' code ran it."""

import itertools
from collections.abc import Iterator

from pflsweep.config.reading import PAPER, Change, matches, table_reading
from pflsweep.sweep import spec
from pflsweep.sweep.spec import Table, lay_over
from pflsweep.util.errors import UserError
from pflsweep.util.once import warn_once


def read_table_as(name: str, scale: str, reading: str) -> Table:
    """Read a sweep file with the changes of a reading. Raises UserError if its paper has no such reading."""
    before = table = spec.read_table(name, scale)
    if reading == PAPER:
        return table
    differences = table_reading(name, reading)
    for change in differences.changes:
        table = _apply_change(table, change)
    if table == before and not differences.views and not differences.rounds:
        warn_once(
            __name__,
            f"reading={reading} changes nothing in {table.file}: none of its changes is of a row or a column there.",
        )
    known = {row: words for row, words in table.methods.items() if differences.has_code(row)}
    if not known:
        raise UserError(f"reading={reading}: there is no public code of any row of {table.file}.")
    only = {row: where for row, where in table.only.items() if row in known}
    return table._replace(methods=known, only=only, without_code=tuple(table.methods.keys() - known.keys()))


def _apply_change(table: Table, change: Change) -> Table:
    """Return a table with one change of a reading."""
    where = f"the reading's change '{change.name}'"
    every = spec.trial_overrides(change.set, f"{where}: set")
    settings = {
        column: lay_over(words, [*every, *_matching_overrides(column, change.settings, where)])
        for column, words in table.settings.items()
    }
    methods = {
        row: lay_over(words, _matching_overrides(row, change.methods, where)) for row, words in table.methods.items()
    }
    cells = dict(table.cell_overrides)
    for row, columns in change.cells.items():
        for column, method in itertools.product(table.settings, table.methods):
            if matches(method, [row]) and (words := list(_matching_overrides(column, columns, f"{where}: {row}"))):
                cells[column, method] = lay_over(cells.get((column, method), []), words)
    search = table.search if change.search is None else spec.split_overrides(change.search, f"{where}: search")
    return table._replace(settings=settings, methods=methods, search=search, cell_overrides=cells)


def _matching_overrides(name: str, by_pattern: dict[str, str], where: str) -> Iterator[str]:
    """Yield the overrides of the patterns that a row or column matches."""
    for like, text in by_pattern.items():
        if matches(name, [like]):
            yield from spec.trial_overrides(text, f"{where}: {like}")
