"""Find the places that hold records and ledgers: a folder of runs, and the archives that `record export` writes."""

import os
import re
from pathlib import Path

from pflsweep.config.reading import NAME
from pflsweep.records.content import COPIED
from pflsweep.util import files
from pflsweep.util.archive import Archive, ArchivePath, Folder

SUFFIX = ".zip"
# The files of an archive: those of records, and ledgers, which are named by sweep/ledger.py
KNOWN = re.compile(rf"[0-9a-f]{{16}}/({'|'.join(map(re.escape, COPIED))})|sweeps/[0-9a-f]{{16}}(-{NAME}){{0,2}}\.json")


def is_archive(path: Path) -> bool:
    """Return whether a path names an archive. The archive need not exist yet."""
    return path.suffix == SUFFIX and not os.path.isdir(path)


def exists(runs: Path) -> bool:
    """Return whether `runs` is an existing folder or archive. Raises PermissionError if it cannot be read."""
    files.require_readable(runs)
    # Unlike Path.is_dir, os.path.isdir does not raise where a name is too long
    return os.path.isdir(runs) or (is_archive(runs) and os.path.isfile(runs))


def places(runs: Path) -> list[Folder]:
    """Return the folders that directly contain records: a folder of runs and the archives in it, or one archive.

    The list is empty if `runs` is neither. Raises UserError if an archive cannot be read.
    """
    if not os.path.isdir(runs):
        return [ArchivePath(Archive(runs, KNOWN))] if exists(runs) else []
    # is_file, since a folder may have such a name too
    inside = [file for file in sorted(runs.glob(f"*{SUFFIX}")) if file.is_file()]
    return [runs, *(ArchivePath(Archive(file, KNOWN)) for file in inside)]
