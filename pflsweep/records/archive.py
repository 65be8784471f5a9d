"""Where records and ledgers lie: in a folder of runs, and in archives of them, which `record export` writes."""

import re
from pathlib import Path

from pflsweep.records.content import CARRIED
from pflsweep.util.archive import Archive, ArchivePath, Folder

SUFFIX = ".zip"
# the files of an archive: those of records, and ledgers, whose names end in their reading where it is not the paper's
KNOWN = re.compile(rf"[0-9a-f]{{16}}/({'|'.join(map(re.escape, CARRIED))})|sweeps/[0-9a-f]{{16}}(-[a-z]+)?\.json")


def is_archive(path: Path) -> bool:
    """Return whether a path is that of an archive, which need not be there yet."""
    return path.suffix == SUFFIX and not path.is_dir()


def exists(runs: Path) -> bool:
    """Return whether there is a folder of runs, or an archive, of this name."""
    return runs.is_dir() or (is_archive(runs) and runs.is_file())


def places(runs: Path) -> list[Folder]:
    """Return the folders whose own folders are records: a folder of runs and the archives in it, or one archive; none
    where `runs` is neither. Raises UserError where an archive cannot be read.
    """
    if not runs.is_dir():
        return [ArchivePath(Archive(runs, KNOWN))] if exists(runs) else []
    inside = [file for file in sorted(runs.glob(f"*{SUFFIX}")) if file.is_file()]  # a folder may have such a name, too
    return [runs, *(ArchivePath(Archive(file, KNOWN)) for file in inside)]
