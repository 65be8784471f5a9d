"""Read zip archives in place, including archives that somebody else made.

Opening an archive checks its central directory alone: names, kinds, sizes and compression of its files. A file is read
no further than its declared size, so a malicious archive cannot fill the memory.
"""

import re
import stat
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pflsweep.util.errors import UserError
from pflsweep.util.files import atomic

# Bytes of one file: many times the largest table of 1,000 clients over 1,000 rounds.
LARGEST = 2**30
# Bytes of all files of an archive, uncompressed.
LARGEST_ARCHIVE = 2**32
# zipfile decompresses any other method in one piece, however long that becomes.
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# Every packed file has the earliest date of the format, so that the same files give the same bytes.
DATE = (1980, 1, 1, 0, 0, 0)


class Archive:
    """An open zip archive. Only its files with known names can be read."""

    def __init__(self, path: Path, known: re.Pattern[str]) -> None:
        """Open and check an archive. known: a pattern that matches the names of files that may be read.

        Raises UserError if the file is not an archive or is damaged, or a file with a known name is not one that `pack`
        could have written.
        """
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except PermissionError as error:
            raise UserError(f"{path} cannot be read ({error.strerror}).") from error
        except Exception as error:  # zipfile raises a different error for each kind of damage
            raise self._refused(f"it is cut short, or no zip archive ({type(error).__name__}: {error})") from error
        self.files: dict[str, zipfile.ZipInfo] = {}
        self.unknown: list[str] = []  # names of the other files, which are never read
        for info in self._zip.infolist():
            if not known.fullmatch(info.filename):
                self.unknown += [] if info.is_dir() else [info.filename]
                continue
            if why := _refusal(info, self.files):
                raise self._refused(f"{info.filename!r} in it {why}")
            self.files[info.filename] = info
        if (size := sum(info.file_size for info in self.files.values())) > LARGEST_ARCHIVE:
            raise self._refused(f"its files have {size:,} bytes, and at most {LARGEST_ARCHIVE:,} are read")
        self.folders = {str(PurePosixPath(name).parent) for name in self.files}

    def read(self, name: str) -> bytes:
        """Return the content of a file. Raises FileNotFoundError if there is none, OSError where it is damaged."""
        if name not in self.files:
            raise FileNotFoundError(f"{self.path}/{name}")
        info = self.files[name]
        try:
            with self._zip.open(info) as file:
                # with a size argument, zipfile never decompresses more than that
                content = file.read(info.file_size + 1)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
            raise OSError(f"{self.path}/{name} is damaged: {error}") from error
        if len(content) != info.file_size:
            raise OSError(f"{self.path}/{name} is damaged: it has {len(content)} bytes of {info.file_size}")
        return content

    def _refused(self, why: str) -> UserError:
        return UserError(f"{self.path} cannot be read: {why}. Replace it with an intact copy, or move it elsewhere.")


def _refusal(info: zipfile.ZipInfo, before: Iterable[str]) -> str:
    """Return why a file of an archive is refused, or "" if it may be read. before: names that came before it."""
    mode = info.external_attr >> 16  # 0 if it was packed on a system without file modes
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        return "is a link, or not a regular file"
    if info.flag_bits & 0x1:
        return "is encrypted"
    if info.compress_type not in METHODS:
        return "is compressed in another way than zip's usual one (deflate)"
    if info.file_size > LARGEST:
        return f"has {info.file_size:,} bytes, and at most {LARGEST:,} are read"
    return "is there twice" if info.filename in before else ""


@dataclass(frozen=True)
class ArchivePath:
    """A file or folder in an archive, with the reading methods of pathlib.Path.

    zipfile.Path is not used: it is not hashable, decompresses without a bound, and follows any name in an archive.
    """

    archive: Archive
    at: str = ""  # the path inside the archive; "" is the archive itself

    def __truediv__(self, name: str) -> "ArchivePath":
        return ArchivePath(self.archive, f"{self.at}/{name}" if self.at else name)

    def __str__(self) -> str:
        return f"{self.archive.path}/{self.at}" if self.at else str(self.archive.path)

    def as_posix(self) -> str:
        return Path(str(self)).as_posix()

    def resolve(self) -> Path:
        """Return the absolute path, for messages and comparisons. It cannot be opened."""
        return self.archive.path.resolve() / self.at

    @property
    def name(self) -> str:
        return PurePosixPath(self.at).name or self.archive.path.name

    @property
    def parent(self) -> "ArchivePath":
        return ArchivePath(self.archive, self.at.rpartition("/")[0])

    def exists(self) -> bool:
        return self.is_file() or self.at in self.archive.folders

    def is_file(self) -> bool:
        return self.at in self.archive.files

    def glob(self, pattern: str) -> "list[ArchivePath]":
        """Return the files of the whole archive whose names match a pattern with the same number of path parts."""
        return [ArchivePath(self.archive, name) for name in self.archive.files if PurePosixPath(name).match(pattern)]

    def read_bytes(self) -> bytes:
        return self.archive.read(self.at)


Folder = Path | ArchivePath  # a folder that is only read, on the disk or in an archive


def pack(folder: Path, out: Path, known: re.Pattern[str]) -> None:
    """Write the files of a folder that have known names into the archive `out`, replacing an existing one.

    The same files give the same bytes. Raises OSError if a file cannot be read or `out` cannot be written.
    """

    def save(temporary: Path) -> None:
        with zipfile.ZipFile(temporary, "w") as archive:
            for name, file in sorted((file.relative_to(folder).as_posix(), file) for file in folder.rglob("*")):
                if known.fullmatch(name):
                    info = zipfile.ZipInfo(name, DATE)
                    # 3 is Unix; set on every system, so that the bytes are the same
                    info.compress_type, info.create_system = zipfile.ZIP_DEFLATED, 3
                    info.external_attr = (stat.S_IFREG | 0o644) << 16
                    archive.writestr(info, file.read_bytes(), compresslevel=9)

    atomic(out, save)
