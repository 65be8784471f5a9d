"""The errors of records and ledgers that cannot be read."""

from typing import Any

from pflsweep.records.content import FORMAT
from pflsweep.util.archive import ArchivePath, Folder
from pflsweep.util.errors import UserError


class OtherFormat(UserError):  # noqa: N818 (a state)
    """A record or ledger was written in another format than this version's."""


class Damaged(UserError):  # noqa: N818 (a state)
    """A file of a record cannot be read."""


def another_format(path: Folder, found: Any, runs: Folder) -> OtherFormat:
    """Return the error to raise where a record or ledger in the folder `runs` has another format than this version."""
    if found is None or (isinstance(found, int) and found < FORMAT):
        mend = f"`pflsweep record migrate {runs}` brings all that is in this folder up to date."
        if isinstance(runs, ArchivePath):
            mend = f"Unzip {runs} into a folder, `pflsweep record migrate` that folder and export it again."
        return OtherFormat(f"{path} was written by an older pflsweep (format {found or 0}, not {FORMAT}). {mend}")
    newer = f"{path} was written by a newer pflsweep (format {found!r}, not {FORMAT})"
    return OtherFormat(f"{newer}: update pflsweep to read it.")
