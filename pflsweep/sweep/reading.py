"""A paper's table as its authors' code ran it: the changes of a reading, laid over the sweep file."""

from collections.abc import Iterable, Iterator

from pflsweep.config.keys import key_of
from pflsweep.config.reading import PAPER, Change, asked, matches
from pflsweep.sweep import spec
from pflsweep.sweep.spec import Table
from pflsweep.util.errors import UserError


def read_table(name: str, scale: str, reading: str) -> Table:
    """Return a table as a reading has it. Raises UserError on a reading that its paper does not have."""
    table = spec.read_table(name, scale)
    if reading == PAPER:
        return table
    of = asked(name, reading)
    for change in of.changes:
        table = _changed(table, change)
    known = {row: words for row, words in table.methods.items() if of.has_code(row)}
    if not known:
        raise UserError(f"reading={reading}: there is no public code of any row of {table.file}.")
    return table._replace(methods=known, only={row: where for row, where in table.only.items() if row in known})


def _changed(table: Table, change: Change) -> Table:
    where = f"the reading's change '{change.name}'"
    every = spec.of_trial(change.set, f"{where}: set")
    settings = {
        column: laid_over(words, [*every, *_of(column, change.settings, where)])
        for column, words in table.settings.items()
    }
    methods = {row: laid_over(words, _of(row, change.methods, where)) for row, words in table.methods.items()}
    search = table.search if change.search is None else spec.overrides(change.search, f"{where}: search")
    return table._replace(settings=settings, methods=methods, search=search)


def _of(name: str, by_pattern: dict[str, str], where: str) -> Iterator[str]:
    """Yield the overrides of the patterns that a row or column matches."""
    for like, text in by_pattern.items():
        if matches(name, [like]):
            yield from spec.of_trial(text, f"{where}: {like}")


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
