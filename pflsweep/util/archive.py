"""Read zip archives in place, also those of somebody else.

An archive is checked when it is opened, by its directory alone: names, kinds, sizes and compression of its files. What
a file holds is read no further than its declared size, so that an archive cannot fill the memory.
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

LARGEST = 2**30  # bytes of a file: many times the largest table of 1,000 clients over 1,000 rounds
LARGEST_ARCHIVE = 2**32  # bytes of all files of an archive, uncompressed
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # zipfile reads others in one piece, however long that becomes
DATE = (1980, 1, 1, 0, 0, 0)  # of every file that is packed: the earliest that the format knows


class Archive:
    """An open zip archive, of which the files with known names can be read."""

    def __init__(self, path: Path, known: re.Pattern[str]) -> None:
        """known: matches the names that are read. Raises UserError where the file is no archive, or is damaged, or
        where a file with a known name is not one that `pack` could have written.
        """
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except PermissionError as error:
            raise UserError(f"{path} cannot be read ({error.strerror}).") from error
        except Exception as error:  # each kind of damage has its own
            raise self._refused(f"it is cut short, or no zip archive ({type(error).__name__}: {error})") from error
        self.files: dict[str, zipfile.ZipInfo] = {}
        self.unknown: list[str] = []  # names of files that are never read
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
        """Return what a file holds. Raises FileNotFoundError where there is none, OSError where it is damaged."""
        if name not in self.files:
            raise FileNotFoundError(f"{self.path}/{name}")
        info = self.files[name]
        try:
            with self._zip.open(info) as file:
                content = file.read(info.file_size + 1)  # with a number, it never unpacks more than that
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
            raise OSError(f"{self.path}/{name} is damaged: {error}") from error
        if len(content) != info.file_size:
            raise OSError(f"{self.path}/{name} is damaged: it has {len(content)} bytes of {info.file_size}")
        return content

    def _refused(self, why: str) -> UserError:
        return UserError(f"{self.path} cannot be read: {why}. Put the right archive there, or move this one away.")


def _refusal(info: zipfile.ZipInfo, before: Iterable[str]) -> str:
    """Return why a file of an archive is not read, "" where it is."""
    mode = info.external_attr >> 16  # 0 where the system that packed it has none
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        return "is a link, or no regular file"
    if info.flag_bits & 0x1:
        return "is encrypted"
    if info.compress_type not in METHODS:
        return "is compressed in another way than zip's usual one (deflate)"
    if info.file_size > LARGEST:
        return f"has {info.file_size:,} bytes, and at most {LARGEST:,} are read"
    return "is there twice" if info.filename in before else ""


@dataclass(frozen=True)
class ArchivePath:
    """A file or folder in an archive, read as a Path is. It takes the place of zipfile.Path, which has no hash, unpacks
    without a bound, and follows whatever names an archive has.
    """

    archive: Archive
    at: str = ""  # "" is the archive itself

    def __truediv__(self, name: str) -> "ArchivePath":
        return ArchivePath(self.archive, f"{self.at}/{name}" if self.at else name)

    def __str__(self) -> str:
        return f"{self.archive.path}/{self.at}" if self.at else str(self.archive.path)

    def as_posix(self) -> str:
        return Path(str(self)).as_posix()

    def resolve(self) -> Path:
        """Return the absolute name, for messages and for telling files apart: it cannot be opened."""
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
        """Return the files, of all in the archive, that match a pattern of as many parts as their names have."""
        return [ArchivePath(self.archive, name) for name in self.archive.files if PurePosixPath(name).match(pattern)]

    def read_bytes(self) -> bytes:
        return self.archive.read(self.at)

    def read_text(self) -> str:
        return self.read_bytes().decode()


Folder = Path | ArchivePath  # that is read, and may be one in an archive


def pack(folder: Path, out: Path, known: re.Pattern[str]) -> None:
    """Write the files of a folder that have known names into a new archive `out`, in the place of the one that is
    there: the same bytes for the same files. Raises OSError.
    """

    def save(temporary: Path) -> None:
        with zipfile.ZipFile(temporary, "w") as archive:
            for name, file in sorted((file.relative_to(folder).as_posix(), file) for file in folder.rglob("*")):
                if known.fullmatch(name):
                    info = zipfile.ZipInfo(name, DATE)
                    info.compress_type, info.create_system = zipfile.ZIP_DEFLATED, 3  # whatever the system: as on Unix
                    info.external_attr = (stat.S_IFREG | 0o644) << 16
                    archive.writestr(info, file.read_bytes(), compresslevel=9)

    atomic(out, save)
