"""Read finished records and ledgers that are to be copied, and check them as if they came from somebody else.

Only files that a record has are read. Each has to be a regular file in the record's own folder; it is read once, and
checked by its reader before anybody writes it.
"""

import json
import os
import re
import stat
import tempfile
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from pflsweep.records.content import COPIED, LOCK, PARTS
from pflsweep.records.errors import Damaged
from pflsweep.records.ledger import Ledger, ledger_of
from pflsweep.records.record import Record
from pflsweep.records.select import Chosen, finished
from pflsweep.util import files as util_files
from pflsweep.util.archive import LARGEST, ArchivePath, Folder
from pflsweep.util.errors import UserError

NAME = re.compile(r"[0-9a-f]{16}")  # of a record's folder, and of a ledger without .json
NAMED = 10  # files of an archive that belong to no record: so many are listed


class CheckedRecord(NamedTuple):
    """A finished record with the contents of the files to copy, meta.json last."""

    record: Record
    files: dict[str, bytes]


class Contents(NamedTuple):
    """Records and ledgers to copy, read and checked, and what is left out.

    ledgers: each with its file's content, oldest first.
    left_out: files that belong to no record, and runs that are not finished.
    damaged: an error message for each record or ledger that cannot be read.
    """

    found: list[CheckedRecord]
    ledgers: list[tuple[Ledger, dict[str, Any]]]
    left_out: list[str]
    damaged: list[str]


def read_contents(chosen: Chosen, sweep: str | None, *, own: bool, with_ledgers: bool) -> Contents:
    """Read and check records and ledgers to copy.

    sweep: read the ledgers of this one alone. own: these are the user's own runs, whose folders may be links.
    """
    left = [f"{record.meta['name']} ({record.status['status']})" for record in chosen.unfinished]
    damaged, found = list(chosen.damaged), list[CheckedRecord]()
    for record in chosen.finished:
        try:
            if files := _content(record, left, own):
                found.append(CheckedRecord(record, files))
        except UserError as error:
            damaged.append(str(error))
    for place in chosen.places:
        if isinstance(place, ArchivePath):
            unknown = place.archive.unknown
            left += [f"{name!r} in {place}, which is not a file of a record" for name in unknown[:NAMED]]
            left += [f"{len(unknown) - NAMED} more such files in {place}"] if len(unknown) > NAMED else []
    ledgers = _ledgers(chosen.places, damaged) if with_ledgers else []
    ledgers = [each for each in ledgers if sweep is None or each[0].sweep == sweep]
    return Contents(found, ledgers, [*left, *chosen.copies], damaged)


def _content(record: Record, left: list[str], own: bool) -> dict[str, bytes]:
    """Read the files of a record, each once, and check what was read. Return {} if its trial goes on meanwhile.

    left: what is left out is appended: files that belong to no record, and the trial that goes on.
    own: the record is the user's own, whose folder may be a link.

    Raises UserError if a file is not regular, too large or damaged, or where the folder has another record's name.
    """
    folder, identity = record.place, record.meta["identity"]
    if not NAME.fullmatch(identity):
        raise UserError(f"{folder / 'meta.json'}: identity {identity!r} is not 16 hexadecimal digits.")
    if folder.name != identity:
        raise UserError(f"{folder} is the record of {identity}: give the folder its name back.")
    files = _in_archive(folder) if isinstance(folder, ArchivePath) else _in_folder(folder, left, own)
    with tempfile.TemporaryDirectory() as checked:
        copy = Path(checked, identity)
        copy.mkdir()
        with util_files.writing(Path(checked), "TMPDIR"):
            for name, content in files.items():
                (copy / name).write_bytes(content)
        try:
            found = Record(copy)
            found.verify()
        except UserError as error:
            # The error names the copy, and the user has to know the original
            raise UserError(str(error).replace(str(copy), str(folder))) from error
    # Another process may have trained more rounds since the record was chosen, or between two files
    if not finished(found) or not found.done == found.status["rounds"] == record.done:
        left.append(f"{record.meta['name']} (trained further just now)")
        return {}
    if not own:
        _require_sendable(found, folder)
    return files


def _require_sendable(record: Record, folder: Folder) -> None:
    """Raise Damaged unless what is sent to MLflow has the right type. folder: of the original, for messages."""
    meta, tracking = record.meta, record.config.get("tracking")
    for key in ("dataset", "partition", "model"):
        if not isinstance(meta.get(key), str):
            raise Damaged(f"{folder / 'meta.json'} is not copied: {key} is {meta.get(key)!r}, which is not a name.")
    if not isinstance(tracking, dict) or not isinstance(tracking.get("experiment", ""), str | None):
        raise Damaged(f"{folder / 'config.yaml'} is not copied: tracking is {tracking!r}, without an experiment.")
    try:
        for session in ({"begun": meta["created"], "from": 1}, *meta.get("sessions", [])):
            # Times before the year 1 or after 9999 in UTC have no stamp
            datetime.fromisoformat(session["begun"]).timestamp()
            int(session["from"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise Damaged(
            f"{folder / 'meta.json'} is not copied: created or sessions are not as pflsweep writes them "
            f"({type(error).__name__}: {error})."
        ) from error


def _in_folder(folder: Path, left: list[str], links: bool) -> dict[str, bytes]:
    """Return the files of a record in a folder. left, links: as for `_content`. Raises UserError."""
    try:
        # Files are opened relative to the opened folder, since its path could name another one a moment later
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | (0 if links else os.O_NOFOLLOW))
    except OSError as error:
        raise UserError(f"{folder} is not read: it is a link, or no folder ({error.strerror}).") from error
    try:
        there = sorted(name for name in os.listdir(opened) if name[0] != ".")
        left += [f"{folder / name}, which is not a file of a record" for name in there if name not in (*PARTS, LOCK)]
        return {name: _read(folder / name, opened) for name in COPIED if name in there}
    finally:
        os.close(opened)


def _in_archive(folder: ArchivePath) -> dict[str, bytes]:
    """Return the files of a record in an archive. Raises UserError if one is damaged."""
    try:
        return {name: (folder / name).read_bytes() for name in COPIED if (folder / name).exists()}
    except OSError as error:
        raise UserError(f"{error}. Put the right archive there.") from error


def _read(file: Path, folder: int | None = None) -> bytes:
    """Return the bytes of a regular file. folder: descriptor of its folder, if that is opened. Raises UserError."""
    # O_NONBLOCK, since opening a pipe would wait for a writer
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        opened = os.open(file if folder is None else file.name, flags, dir_fd=folder)
        with open(opened, "rb") as content:
            found = os.fstat(opened)
            if not stat.S_ISREG(found.st_mode):
                raise UserError(f"{file} is not copied: it is not a regular file.")
            if found.st_size > LARGEST:
                raise UserError(f"{file} is not copied: it has {found.st_size:,} bytes, and at most {LARGEST:,} are.")
            return content.read(LARGEST)
    except OSError as error:
        if file.is_symlink():
            raise UserError(f"{file} is not copied: it is a link. Put the file itself there.") from error
        raise UserError(f"{file} cannot be read ({error.strerror}).") from error


def _ledgers(places: Iterable[Folder], damaged: list[str]) -> list[tuple[Ledger, dict[str, Any]]]:
    """Return the ledgers of some places with their contents, oldest first. damaged: error messages are appended."""
    found = []
    for place in places:
        if isinstance(place, Path) and (place / "sweeps").is_symlink():
            damaged.append(f"{place / 'sweeps'} is not read: it is a link. Put the folder itself there.")
            continue
        paths: list[Folder] = sorted(place.glob("sweeps/*.json"), key=str)
        for path in paths:
            try:
                ledger = ledger_of(path, content := _json(path))
                named = [identity for group in ledger.groups.values() for identity in group["trials"].values()]
                if not all(map(NAME.fullmatch, [ledger.id, *named])):
                    raise UserError(f"{path} is not copied: it and its trials are named by 16 hexadecimal digits each.")
                found.append((ledger, content))
            except UserError as error:
                damaged.append(str(error))
    return sorted(found, key=lambda each: each[0].written)


def _json(path: Folder) -> dict[str, Any]:
    """Read a JSON object. Raises UserError if the file is none."""
    try:
        content = json.loads(_read(path) if isinstance(path, Path) else path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not a ledger of a sweep: it is not JSON ({type(error).__name__}).") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a ledger of a sweep: it is not a JSON object.")
    return content
