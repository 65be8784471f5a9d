"""Select the runs that a report is about, by folder, by identity or its beginning, or by a pattern of run names."""

import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from pflsweep.records.archive import exists, places
from pflsweep.records.errors import OtherFormat
from pflsweep.records.record import Record
from pflsweep.records.searches import Searches, find_searches
from pflsweep.util.archive import ArchivePath, Folder
from pflsweep.util.errors import UserError, nearest


class Chosen(NamedTuple):
    """The selected runs.

    records: oldest first, finished or not.
    damaged: an error message for each folder that cannot be read.
    searches: what the sweeps of these runs have searched.
    hidden: trials of searches, which tables do not show.
    copies: a sentence for each folder that is a copy of another.
    places: the folder of runs that was looked through, and its archives.
    unread: pairs (folder, error) of the folders that cannot be read.
    """

    records: list[Record]
    damaged: list[str]
    searches: Searches = Searches()
    hidden: tuple[Record, ...] = ()
    copies: tuple[str, ...] = ()
    places: tuple[Folder, ...] = ()
    unread: tuple[tuple[Folder, UserError], ...] = ()

    @property
    def finished(self) -> list[Record]:
        """Return the runs that are finished."""
        return [record for record in self.records if finished(record)]

    @property
    def unfinished(self) -> list[Record]:
        """Return the runs that are not finished."""
        return [record for record in self.records if not finished(record)]


def choose(runs: Path, words: list[str]) -> Chosen:
    """Return the runs that `words` name, or all runs of the folder `runs` without words. Raises UserError if a word
    names none.
    """
    if not words:
        return _all(runs)
    there = _all(runs) if exists(runs) else Chosen([], [])
    found: dict[Path, Record] = {}
    unread = [(folder, why) for folder, why in there.unread if any(_may_be(word, folder) for word in words)]
    for word in words:
        matches = [Record(word)] if (Path(word) / "meta.json").exists() else _matching(word, there.records)
        if not matches:
            raise UserError(_unknown(word, runs, there.records) + "".join(f" {each}" for each in there.damaged))
        found |= {record.place.resolve(): record for record in matches}
    return _each_once(list(found.values()), _messages(unread))._replace(places=there.places)


def without_searches(chosen: Chosen, words: list[str]) -> Chosen:
    """Return the runs without trials of searches, except those that a word names by folder, identity or its beginning.

    The runs of a sweep are in the sweep's order, whichever began first. Raises UserError if a ledger is damaged.
    """
    found = find_searches(chosen.records, chosen.places)
    shown: list[Record] = []
    hidden: list[Record] = []
    for record in chosen.records:
        searching = record.meta["identity"] in found.trials and not _named(record, words)
        (hidden if searching else shown).append(record)
    return chosen._replace(records=_by_sweep(shown, found), searches=found, hidden=tuple(hidden))


def _by_sweep(records: list[Record], found: Searches) -> list[Record]:
    """Sort runs by age. Runs of a sweep stay together in the sweep's order, at the position of its oldest run."""
    begun: dict[str, str] = {}
    for record in _by_age(records):
        if place := found.order.get(record.meta["identity"]):
            begun.setdefault(place[0], record.meta["created"])

    def at(record: Record) -> tuple[str, int]:
        place = found.order.get(record.meta["identity"])
        return (begun[place[0]], place[1]) if place else (record.meta["created"], -1)

    return sorted(records, key=at)


def _named(record: Record, words: list[str]) -> bool:
    """Return whether a word names this very record: by identity or folder. Its run name does not count, since the final
    trial of its search may have the same.
    """
    folder = record.place.resolve()
    return any(record.meta["identity"].startswith(word) or Path(word).resolve() == folder for word in words)


def _all(runs: Path) -> Chosen:
    """Return all runs of a folder or archive. Raises UserError if it does not exist."""
    if not exists(runs):
        raise UserError(
            f"There is no folder of runs '{runs}' here. Train something first (`pflsweep algorithm=fedavg`), "
            "or name another folder: --runs DIR (in Python: pflsweep.load(DIR))."
        )
    records: list[Record] = []
    unread: list[tuple[Folder, UserError]] = []
    among, names = places(runs), ("meta.json", "rounds.parquet")
    found = {file.parent for place in among for name in names for file in place.glob(f"*/{name}")}
    for folder in sorted(found, key=str):
        try:
            records.append(Record(folder))
        except UserError as error:
            unread.append((folder, error))
    return _each_once(records, _messages(unread))._replace(places=tuple(among), unread=tuple(unread))


def _messages(unread: list[tuple[Folder, UserError]]) -> list[str]:
    """Return why folders cannot be read, a message each; of another format one for all, since one command migrates
    them.
    """
    old: dict[Folder, list[str]] = {}
    for folder, error in unread:
        if isinstance(error, OtherFormat):
            old.setdefault(folder.parent, []).append(str(error))
    found = [str(error) for _, error in unread if not isinstance(error, OtherFormat)]
    for errors in old.values():
        more = f" {len(errors)} records there are of another format." if len(errors) > 1 else ""
        found.append(errors[0] + more)
    return found


def _each_once(records: list[Record], damaged: list[str]) -> Chosen:
    """Return each trial once: of several copies the furthest, of equals the one whose folder has the trial's name.

    Copies in archives are not reported: trials that two sweeps share lie in the archives of both.
    """
    found: dict[str, Record] = {}
    copies = []
    for record in sorted(records, key=_rank):
        identity = record.meta["identity"]
        if identity in found and not isinstance(found[identity].place, ArchivePath):
            copies.append(f"{found[identity].place} is a copy of {record.place}")
        found[identity] = record
    return Chosen(_by_age(list(found.values())), damaged, copies=tuple(copies))


def _rank(record: Record) -> tuple[bool, int, bool, bool]:
    """Return the sort key of copies of a trial; the largest is kept."""
    own_name = record.place.name == record.meta["identity"]
    return finished(record), record.done, own_name, not isinstance(record.place, ArchivePath)


def _matching(word: str, known: list[Record]) -> list[Record]:
    """Return the records whose identity begins with a word, or else those whose run name matches it as a pattern."""
    by_identity = [record for record in known if record.meta["identity"].startswith(word)]
    return by_identity or [record for record in known if fnmatchcase(record.meta["name"], word)]


def _may_be(word: str, folder: Folder) -> bool:
    """Return whether a word may name a record that cannot be read: any may, where its name cannot be read either."""
    try:
        meta = json.loads((folder / "meta.json").read_bytes())
        return fnmatchcase(str(meta["name"]), word) or str(meta["identity"]).startswith(word)
    except (OSError, ValueError, KeyError, TypeError):
        return True


def _unknown(word: str, runs: Path, known: list[Record]) -> str:
    """Return the error message for a word that names no run."""
    names = sorted({record.meta["name"] for record in known})
    some = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return (
        f"No run '{word}': it is neither the folder of a record, nor an identity or the name of a run in "
        f"'{runs}' (patterns like 'pgfed-*' are fine).{nearest(word, names)} There are: {some or 'none'}."
    )


def _by_age(records: list[Record]) -> list[Record]:
    return sorted(records, key=lambda record: record.meta["created"])


def finished(record: Record) -> bool:
    """Return whether a trial has reached its last round."""
    return bool(record.status["status"] == "finished")


def comparable(record: Record) -> bool:
    """Return whether a trial is finished and has an accuracy: where no client with test rows was scored it has none."""
    return finished(record) and bool(record.evaluated)
