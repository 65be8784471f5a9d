"""Which runs a report is about: folders, identities or their beginnings, patterns of run names."""

from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from pflsweep.records.archive import exists, places
from pflsweep.records.record import OtherFormat, Record
from pflsweep.records.searches import Searches, beside
from pflsweep.util.archive import ArchivePath, Folder
from pflsweep.util.errors import UserError, nearest


class Chosen(NamedTuple):
    records: list[Record]  # oldest first, finished or not
    damaged: list[str]  # what is wrong with each folder that cannot be read
    searches: Searches = Searches()
    hidden: tuple[Record, ...] = ()  # trials of searches, which stand in no table
    copies: tuple[str, ...] = ()  # which folders are copies of others
    places: tuple[Folder, ...] = ()  # the folder of runs that was looked through, and its archives

    @property
    def done(self) -> list[Record]:
        return [record for record in self.records if finished(record)]

    @property
    def left(self) -> list[Record]:
        """Those that are not finished."""
        return [record for record in self.records if not finished(record)]


def choose(runs: Path, words: list[str]) -> Chosen:
    """The runs that `words` name, or all in the folder `runs`. Raises UserError on a word that names none."""
    if not words:
        return _all(runs)
    there = _all(runs) if exists(runs) else Chosen([], [])
    found: dict[Path, Record] = {}
    for word in words:
        matches = [Record(word)] if (Path(word) / "meta.json").exists() else _matching(word, there.records)
        if not matches:
            raise UserError(_unknown(word, runs, there.records) + "".join(f" {each}" for each in there.damaged))
        found |= {record.place.resolve(): record for record in matches}
    return _each_once(list(found.values()), [])._replace(places=there.places)


def without_searches(chosen: Chosen, words: list[str]) -> Chosen:
    """Return the runs without the trials that sweeps have chosen hyperparameters by, unless a word is the folder of
    one, or its identity or the beginning of it. The runs of a sweep stand in its order, whichever began first. Raises
    UserError on a damaged ledger.
    """
    found = beside(chosen.records, chosen.places)
    shown: list[Record] = []
    hidden: list[Record] = []
    for record in chosen.records:
        searching = record.meta["identity"] in found.trials and not _named(record, words)
        (hidden if searching else shown).append(record)
    return chosen._replace(records=_by_sweep(shown, found), searches=found, hidden=tuple(hidden))


def _by_sweep(records: list[Record], found: Searches) -> list[Record]:
    """Sort runs by age, those of a sweep together, in its order, where its oldest one stands."""
    begun: dict[str, str] = {}
    for record in _by_age(records):
        if place := found.order.get(record.meta["identity"]):
            begun.setdefault(place[0], record.meta["created"])

    def at(record: Record) -> tuple[str, int]:
        place = found.order.get(record.meta["identity"])
        return (begun[place[0]], place[1]) if place else (record.meta["created"], -1)

    return sorted(records, key=at)


def _named(record: Record, words: list[str]) -> bool:
    """By itself, not by a name that its final trial has, too."""
    folder = record.place.resolve()
    return any(record.meta["identity"].startswith(word) or Path(word).resolve() == folder for word in words)


def _all(runs: Path) -> Chosen:
    if not exists(runs):
        raise UserError(
            f"There is no folder of runs '{runs}' here. Train something first (`pflsweep algorithm=fedavg`), "
            "or name another folder: --runs DIR."
        )
    records, damaged = [], []
    old: dict[Folder, list[str]] = {}
    among, names = places(runs), ("meta.json", "rounds.parquet")
    found = {file.parent for place in among for name in names for file in place.glob(f"*/{name}")}
    for folder in sorted(found, key=str):
        try:
            records.append(Record(folder))
        except OtherFormat as error:
            old.setdefault(folder.parent, []).append(str(error))
        except UserError as error:
            damaged.append(str(error))
    for errors in old.values():  # a sentence for all: they are mended by one command
        more = f" {len(errors)} records there are of another format." if len(errors) > 1 else ""
        damaged.append(errors[0] + more)
    return _each_once(records, damaged)._replace(places=tuple(among))


def _each_once(records: list[Record], damaged: list[str]) -> Chosen:
    """Return of several copies of a trial the one that is furthest; of equals the one in the folder of its name. One in
    an archive is not named as a copy: what two sweeps have in common lies in the archives of both.
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
    own_name = record.place.name == record.meta["identity"]
    return finished(record), record.done, own_name, not isinstance(record.place, ArchivePath)


def _matching(word: str, known: list[Record]) -> list[Record]:
    by_identity = [record for record in known if record.meta["identity"].startswith(word)]
    return by_identity or [record for record in known if fnmatchcase(record.meta["name"], word)]


def _unknown(word: str, runs: Path, known: list[Record]) -> str:
    names = sorted({record.meta["name"] for record in known})
    some = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return (
        f"No run '{word}': it is neither the folder of a record, nor an identity or the name of a run in "
        f"'{runs}' (patterns like 'pgfed-*' are fine).{nearest(word, names)} There are: {some or 'none'}."
    )


def _by_age(records: list[Record]) -> list[Record]:
    return sorted(records, key=lambda record: record.meta["created"])


def finished(record: Record) -> bool:
    return bool(record.status["status"] == "finished")
