"""Archives of records: read like the folder, written whole, and refused where they are not what pflsweep writes."""

import io
import json
import os
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from contextlib import chdir, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pflsweep.commands.main import main
from pflsweep.commands.report import main as report
from pflsweep.records import archive as records_archive
from pflsweep.records import copy
from pflsweep.records.errors import Damaged
from pflsweep.records.ledger import ledgers
from pflsweep.records.record import Record
from pflsweep.records.select import choose
from pflsweep.records.writer import RecordWriter
from pflsweep.util import archive as util_archive
from pflsweep.util.archive import Archive, ArchivePath
from pflsweep.util.errors import UserError
from tests.report import records
from tests.report.paper.fixtures import Sweep

pytestmark = pytest.mark.usefixtures("elsewhere")
C25 = "cifar10/clients25"


def ends(*words: str) -> int:
    return main(["record", *words, *(["--no-tracking"] if words[0] == "import" else [])])


@pytest.fixture
def sweep(elsewhere: None) -> Sweep:
    """Return a sweep of two methods and two seeds, with its records in runs/."""
    sweep = Sweep(Path("runs"))
    sweep.add(C25, "fedavg", {0: [2, 3, 4, 5], 1: [3, 3, 3, 3]})
    sweep.add(C25, "pgfed", {0: [5, 5, 6, 6], 1: [6, 6, 6, 6]})
    sweep.write("0" * 16)
    return sweep


@pytest.fixture
def packed(sweep: Sweep) -> Path:
    """Return an archive of the sweep. The folder stays."""
    assert ends("export", "--out", "x.zip") == 0
    return Path("x.zip")


def search(sweep: Sweep, method: str) -> Record:
    """Return the only trial of a search, which becomes the search of a method's group."""
    tried = records.finished(Path("runs"), method, [1, 2, 3, 4], train__lr=0.7, data__validation=0.2)
    group = sweep.group(C25, method)
    group |= {"points": 1, "points_settled": 1, "space": {"train.lr": [0.7]}, "config": tried.values}
    group["winner"] = {"train.lr": 0.05}
    del group["config"]["data.validation"], group["config"]["train.lr"], group["config"]["seed"]
    return tried


def members(file: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def contents(folder: Path) -> dict[str, bytes]:
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != "lock"]
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def rewritten(file: Path, change: Callable[[zipfile.ZipInfo, bytes], tuple[zipfile.ZipInfo | str, bytes]]) -> None:
    """Write an archive again, with each file's content changed by `change`."""
    with zipfile.ZipFile(file) as archive:
        found = [(info, archive.read(info)) for info in archive.infolist()]
    with zipfile.ZipFile(file, "w") as archive:
        for info, content in found:
            archive.writestr(*change(info, content))


# Reading


def test_records_of_an_archive_are_those_of_the_folder(packed: Path) -> None:
    mine, theirs = choose(Path("runs"), []), choose(packed, [])
    assert [each.meta for each in theirs.records] == [each.meta for each in mine.records]
    for one, other in zip(mine.records, theirs.records, strict=True):
        other.verify()
        for table in ("rounds", "clients", "partition", "new_clients", "study"):
            pd.testing.assert_frame_equal(getattr(one, table), getattr(other, table))
        pd.testing.assert_frame_equal(one.clients_in(2), other.clients_in(2))
        assert all(np.array_equal(one.matrices[name], matrix) for name, matrix in other.matrices.items())
        assert one.matrices.keys() == other.matrices.keys()
        assert other.checkpoint() is None
        assert str(other.place) == f"x.zip/{one.folder.name}"
        assert other.place == ArchivePath(other.place.archive, one.folder.name)
    (ledger,), (packed_ledger,) = ledgers(Path("runs")), ledgers(*records_archive.places(packed))
    assert packed_ledger._replace(path=ledger.path) == ledger
    assert packed_ledger.id == "0" * 16


@pytest.mark.usefixtures("elsewhere")
def test_of_two_copies_in_a_folder_the_longer_counts_whatever_it_is_called() -> None:
    record = records.train(records.create(Path("runs")), [[1, 2, 3, 4]] * 2)
    longer = records.train(RecordWriter(shutil.copytree(record.folder, Path("runs/longer"))), [[1, 2, 3, 4]])
    chosen = choose(Path("runs"), [])
    assert [(each.place, each.done) for each in chosen.records] == [(longer.place, 3)]
    assert chosen.copies == (f"{record.place} is a copy of {longer.place}",)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["x.zip", "folder/x.zip"])
def test_a_report_made_of_an_archive_is_that_made_of_the_folder(packed: Path, name: str) -> None:
    for here in ("one", "two"):
        there = Path(here, name)
        there.parent.mkdir(parents=True)
        # A folder with the name of the archive or of its folder
        if here == "one":
            shutil.copytree("runs", there if name == "x.zip" else there.parent, dirs_exist_ok=True)
        else:
            shutil.copyfile(packed, there)
        with chdir(here):
            assert report(["pgfed/table1", "--runs", name.partition("/")[0], "--out", "pages"]) == 0
            assert report(["runs", "--runs", name.partition("/")[0], "--out", "compared"]) == 0
    made = [contents(Path(here, "pages")) | contents(Path(here, "compared")) for here in ("one", "two")]
    assert {"runs.md", "runs.html", "pgfed/table1/README.md", "pgfed/table1/table.csv"} < made[0].keys()
    assert made[0] == made[1]


@pytest.mark.slow
def test_a_trial_in_several_places_is_counted_once_and_the_longest_counts(
    sweep: Sweep, capsys: pytest.CaptureFixture
) -> None:
    for name in ("a", "b"):
        assert ends("export", "--out", f"archives/{name}.zip") == 0
    folder = next(file.parent for file in sweep.runs.glob("*/meta.json"))
    longer = RecordWriter(shutil.copytree(folder, Path("longer", folder.name)))
    records.train(longer, [[9, 9, 9, 9]])
    assert ends("export", "--runs", "longer", "--out", "archives/a.zip") == 0
    chosen = choose(Path("archives"), [])
    assert (len(chosen.records), chosen.copies, chosen.damaged) == (4, (), [])
    assert {record.meta["identity"]: record.done for record in chosen.records}[folder.name] == 4
    assert report(["pgfed/table1", "--runs", "archives", "--out", "pages"]) == 0
    shorter = RecordWriter(shutil.copytree(folder, Path("archives", folder.name)))
    shorter.truncate(1)
    shorter.write()
    (record,) = (each for each in choose(Path("archives"), []).records if each.meta["identity"] == folder.name)
    assert record.done == 4
    assert report(["pgfed/table1", "--runs", "archives", "--out", "pages"]) == 0
    assert capsys.readouterr().out.count("2 of 84 cells complete") == 2


def test_folders_and_archives_lie_beside_one_another(packed: Path, capsys: pytest.CaptureFixture) -> None:
    Path("both").mkdir()
    shutil.copy(packed, "both")
    shutil.copytree("runs", "both", dirs_exist_ok=True)
    chosen = choose(Path("both"), [])
    assert {type(record.place.parent) for record in chosen.records} == {type(Path())}
    other = records.finished(Path("both"), "fedprox", [1, 2, 3, 4])
    assert ends("import", "both", "--runs", "all") == 0
    assert "5 runs and 1 ledger" in capsys.readouterr().out
    assert Record(Path("all", other.folder.name)).done == 3


def test_a_record_of_an_archive_is_not_written_to(packed: Path) -> None:
    record = choose(packed, []).records[0]
    for place in (lambda: record.folder, lambda: record.path_on_disk("checkpoint.pt")):
        with pytest.raises(UserError, match=r"x\.zip/\w+ lies in an archive.*`pflsweep record import x\.zip`"):
            place()


def test_trials_of_searches_are_named_by_their_identity(sweep: Sweep, capsys: pytest.CaptureFixture) -> None:
    tried = search(sweep, "fedavg")
    sweep.write("0" * 16)
    assert ends("export", "--out", "x.zip") == 0
    assert report(["runs", "--runs", "x.zip", "--out", "out"]) == 0
    command = f"pflsweep report runs --runs x.zip {tried.meta['identity']}"
    assert command in Path("out/runs.md").read_text()
    assert report(command.split()[2:]) == 0
    assert "1 run" in capsys.readouterr().out.splitlines()[-2]


# Writing


def test_an_archive_is_the_same_bytes_for_the_same_records(packed: Path) -> None:
    before = packed.read_bytes()
    assert ends("import", "x.zip", "--runs", "imported") == 0
    assert contents(Path("imported")).keys() >= contents(Path("runs")).keys()
    os.utime(Path("imported"))
    for runs, out in (("imported", "y.zip"), ("x.zip", "y2.zip"), ("runs", "x.zip")):
        assert ends("export", "--runs", runs, "--out", out) == 0
        assert Path(out).read_bytes() == before
    assert list(members(packed)) == sorted(members(packed))


def test_an_archive_is_imported_as_it_is(packed: Path, capsys: pytest.CaptureFixture) -> None:
    assert ends("import", "x.zip", "--runs", "imported") == 0
    assert "4 runs and 1 ledger of sweeps imported into imported" in capsys.readouterr().out
    assert contents(Path("imported")) == members(packed)


def test_a_sweep_is_exported_with_the_trials_of_its_search(sweep: Sweep, capsys: pytest.CaptureFixture) -> None:
    other = Sweep(Path("runs"), "another")
    (final,) = other.add(C25, "fedprox", {0: [1, 2, 3, 4]})
    tried = search(other, "fedprox")
    other.write("1" * 16)
    assert ends("export", "--sweep", "another", "--out", "another.zip") == 0
    assert "2 runs and 1 ledger" in capsys.readouterr().out
    found = choose(Path("another.zip"), [])
    assert {record.meta["identity"] for record in found.records} == {final.folder.name, tried.folder.name}
    assert [ledger.sweep for ledger in ledgers(*found.places)] == ["another"]
    assert ends("export", "--sweep", sweep.name, "--out", "folder") == 0
    assert len(choose(Path("folder"), []).records) == 4
    assert ends("export", "--sweep", "anothr", "--out", "none.zip") == 2
    assert "Did you mean 'another'?" in capsys.readouterr().err
    assert ends("export", "fedavg*", "--sweep", "another", "--out", "none.zip") == 2
    assert not Path("none.zip").exists()


@pytest.mark.parametrize("reading", ["code", "one_step", "cifar100_network"])
def test_a_ledger_of_another_reading_is_exported_and_imported(sweep: Sweep, reading: str) -> None:
    sweep.write("1" * 16 + f"-{reading}", reading=reading)
    assert ends("export", "--out", "x.zip") == 0
    assert [ledger.reading for ledger in ledgers(*choose(Path("x.zip"), []).places)] == ["paper", reading]
    assert ends("import", "x.zip", "--runs", "imported") == 0
    assert contents(Path("imported")) == members(Path("x.zip"))


def test_ledgers_of_sweeps_with_the_same_trials_are_both_kept(sweep: Sweep) -> None:
    """Sweeps of two scales may be the same trials: each machine wrote the same file name."""
    sweep.write("1" * 16, scale="paper")
    assert ends("export", "--out", "x.zip") == 0
    sweep.write("1" * 16, scale="small")
    for _ in range(2):
        assert ends("import", "x.zip", "--runs", "runs") == 0
        scales = [ledger.scale for ledger in ledgers(Path("runs")) if ledger.id == "1" * 16]
        assert sorted(scales) == ["paper", "small"]


def test_what_an_archive_has_stays_when_more_is_exported(packed: Path, capsys: pytest.CaptureFixture) -> None:
    before = members(packed)
    new = records.finished(Path("new"), "fedprox", [1, 2, 3, 4])
    assert ends("export", "--runs", "new", "--out", "x.zip") == 0
    assert "1 run and 0 ledgers" in capsys.readouterr().out
    assert {name for name in members(packed) if not name.startswith(new.folder.name)} == set(before)
    assert members(packed).items() >= before.items()


def spoilt(file: Path) -> None:
    """Damage a table in an archive."""
    rewritten(file, lambda info, content: (info, b"PAR1" if info.filename.endswith("clients.parquet") else content))


def holiday(file: Path) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("photo.jpg", b"x")


@pytest.mark.parametrize(("spoil", "said"), [(spoilt, "clients.parquet cannot be read"), (holiday, "'photo.jpg' in")])
def test_nothing_in_an_archive_is_lost_by_an_export(
    packed: Path, spoil: Callable[[Path], None], said: str, capsys: pytest.CaptureFixture
) -> None:
    spoil(packed)
    before = packed.read_bytes()
    assert ends("export", "--out", "x.zip") == 2
    error = capsys.readouterr().err
    assert "x.zip is there and holds what would be lost" in error
    assert said in error
    assert packed.read_bytes() == before


def test_exports_into_one_archive_at_once_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    records.finished(Path("one"), "fedavg", [1, 2, 3, 4])
    records.finished(Path("two"), "fedprox", [1, 2, 3, 4])
    other = Thread(target=ends, args=("export", "--runs", "two", "--out", "x.zip"))

    def slow(*args: Any) -> None:
        if other.ident is None:
            other.start()
            # It ends only where it does not wait for this export
            other.join(timeout=1)
        util_archive.pack(*args)

    monkeypatch.setattr(copy, "pack", slow)
    assert ends("export", "--runs", "one", "--out", "x.zip") == 0
    other.join()
    assert {record.meta["method"] for record in choose(Path("x.zip"), []).records} == {"fedavg", "fedprox"}


KILLED = """
import os, signal, sys, zipfile
from pflsweep.commands.main import main
write, count = zipfile.ZipFile.writestr, 0
def killed(*args, **more):
    global count
    count += 1
    if count == 12:
        os.kill(os.getpid(), signal.SIGKILL)
    return write(*args, **more)
zipfile.ZipFile.writestr = killed
main(["record", "export", "--runs", "new", "--out", "x.zip"])
"""


def test_a_kill_while_an_archive_is_written_leaves_the_old_one(packed: Path) -> None:
    before = packed.read_bytes()
    records.finished(Path("new"), "fedprox", [1, 2, 3, 4])
    done = subprocess.run([sys.executable, "-c", KILLED], env={**os.environ, "TMPDIR": os.getcwd()})
    assert done.returncode == -signal.SIGKILL
    assert any(file.name.startswith(".x.zip.") for file in Path().iterdir()), "it was killed too early"
    assert packed.read_bytes() == before
    assert len(choose(packed, []).records) == 4
    assert ends("export", "--runs", "new", "--out", "x.zip") == 0
    assert len(choose(packed, []).records) == 5


# Foreign archives


def truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-200])


def garbage(file: Path) -> None:
    file.write_bytes(bytes(range(256)) * 40)


def empty(file: Path) -> None:
    file.write_bytes(b"")


def linked(file: Path) -> None:
    def change(info: zipfile.ZipInfo, content: bytes) -> tuple[zipfile.ZipInfo, bytes]:
        if info.filename.endswith("rounds.parquet"):
            info.external_attr, content = (stat.S_IFLNK | 0o777) << 16, b"/etc/passwd"
        return info, content

    rewritten(file, change)


def twice(file: Path) -> None:
    with zipfile.ZipFile(file, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr(archive.namelist()[0], b"another")


def compressed(file: Path) -> None:
    def change(info: zipfile.ZipInfo, content: bytes) -> tuple[zipfile.ZipInfo, bytes]:
        info.compress_type = zipfile.ZIP_LZMA
        return info, content

    rewritten(file, change)


# The layout of an entry in the directory at an archive's end, as zipfile reads it
CENTRAL = struct.Struct("<4s4B4H3L5H2L")
# Indices of its fields
FLAGS, CRC, PACKED, SIZE = 5, 9, 10, 11


def directory(file: Path, change: Callable[[list], None]) -> None:
    """Change the directory entry of the first table of clients in an archive."""
    content = bytearray(file.read_bytes())
    with zipfile.ZipFile(io.BytesIO(bytes(content))) as archive:
        at = archive.start_dir
    while True:
        fields = list(CENTRAL.unpack_from(content, at))
        name = bytes(content[at + CENTRAL.size : at + CENTRAL.size + fields[12]])
        if name.endswith(b"clients.parquet"):
            change(fields)
            CENTRAL.pack_into(content, at, *fields)
            file.write_bytes(bytes(content))
            return
        at += CENTRAL.size + fields[12] + fields[13] + fields[14]


def encrypted(file: Path) -> None:
    directory(file, lambda fields: fields.__setitem__(FLAGS, fields[FLAGS] | 1))


def huge(file: Path) -> None:
    directory(file, lambda fields: fields.__setitem__(SIZE, 2**31))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (truncated, "it is cut short, or no zip archive (BadZipFile"),
        (garbage, "it is cut short, or no zip archive (BadZipFile"),
        (empty, "it is cut short, or no zip archive (BadZipFile"),
        (linked, "rounds.parquet' in it is a link, or not a regular file"),
        (twice, "in it is there twice"),
        (compressed, "in it is compressed in another way"),
        (encrypted, "clients.parquet' in it is encrypted"),
        (huge, "clients.parquet' in it has 2,147,483,648 bytes, and at most 1,073,741,824 are read"),
    ],
)
def test_an_archive_that_is_not_as_we_write_it_is_refused_by_every_command(
    packed: Path, spoil: Callable[[Path], None], said: str, capsys: pytest.CaptureFixture
) -> None:
    spoil(packed)
    before = packed.read_bytes()
    Path("folder").mkdir()
    shutil.copy(packed, "folder")
    capsys.readouterr()
    for words in (
        ["record", "import", "x.zip", "--runs", "imported", "--no-tracking"],
        ["record", "import", "folder", "--runs", "imported", "--no-tracking"],
        ["record", "export", "--runs", "x.zip", "--out", "out"],
        ["record", "export", "--out", "x.zip"],
        ["report", "runs", "--runs", "x.zip"],
        ["report", "pgfed/table1", "--runs", "folder"],
    ):
        assert main(words) == 2
        error = capsys.readouterr().err
        assert "x.zip cannot be read: " in error
        assert said in error
        assert "Replace it with an intact copy, or move it elsewhere." in error
        assert len(error.strip().splitlines()) == 1
    assert packed.read_bytes() == before
    assert not Path("imported").exists()


def test_all_files_of_an_archive_together_are_bounded(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(util_archive, "LARGEST_ARCHIVE", sum(map(len, members(packed).values())) - 1)
    with pytest.raises(UserError, match=r"its files have [\d,]+ bytes, and at most"):
        records_archive.places(packed)


BAD_NAMES = (
    *("../evil.sh", "/etc/evil", "evil.sh", "0123456789abcdef/../../x/meta.json", "0123456789ABCDEF/meta.json"),
    *("0123456789abcdef/checkpoint.pt", "sweeps/plan.json", "sweeps/../meta.json", "a//b", "a\\b", "\x1b[2J"),
)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["import", "export"])
def test_files_with_other_names_are_named_and_never_read(
    packed: Path, command: str, capsys: pytest.CaptureFixture
) -> None:
    before = members(packed)
    with zipfile.ZipFile(packed, "a") as archive:
        for name in BAD_NAMES:
            archive.writestr(name, b"{}")
        archive.mkdir("a folder")
    capsys.readouterr()
    words = (
        ["import", "x.zip", "--runs", "out/in"]
        if command == "import"
        else ["export", "--runs", "x.zip", "--out", "out/in"]
    )
    assert ends(*words) == 0
    said = capsys.readouterr().out
    assert "4 runs and 1 ledger" in said
    for name in BAD_NAMES[:10]:
        assert f"left out: {name!r} in x.zip, which is not a file of a record" in said
    assert "left out: 1 more such files in x.zip" in said
    assert "\x1b" not in said
    assert contents(Path("out")) == {f"in/{name}": content for name, content in before.items()}
    assert report(["runs", "--runs", "x.zip"]) == 0


def lying(file: Path) -> None:
    """Declare a table of some bytes that unpacks to 256 MB, with the checksum of the declared part."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    stream = b"".join(packer.compress(bytes(2**20)) for _ in range(256)) + packer.flush()

    with zipfile.ZipFile(file) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    name = next(name for name in found if name.endswith("clients.parquet"))
    with zipfile.ZipFile(file, "w") as archive:
        for other, content in found.items():
            archive.writestr(other, stream if other == name else content)

    def change(fields: list) -> None:
        fields[6], fields[SIZE], fields[CRC] = zipfile.ZIP_DEFLATED, 100, zlib.crc32(bytes(100))

    directory(file, change)


def short(file: Path) -> None:
    """Declare one byte more than there is."""
    directory(file, lambda fields: fields.__setitem__(SIZE, fields[SIZE] + 1))


def flipped(file: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        info = next(info for info in archive.infolist() if info.filename.endswith("clients.parquet"))
    content = bytearray(file.read_bytes())
    at = info.header_offset + 30 + len(info.filename) + info.compress_size // 2
    content[at] ^= 0xFF
    file.write_bytes(bytes(content))


@pytest.mark.slow
@pytest.mark.parametrize("spoil", [lying, short, flipped, spoilt])
def test_a_damaged_file_of_an_archive_is_named_and_the_others_are_read(
    packed: Path, spoil: Callable[[Path], None], capsys: pytest.CaptureFixture
) -> None:
    spoil(packed)
    broken = [name for name in members_of(packed) if name.endswith("clients.parquet")]
    capsys.readouterr()
    tracemalloc.start()
    assert ends("import", "x.zip", "--runs", "imported") == 2
    assert tracemalloc.get_traced_memory()[1] < 2**26, "a file is unpacked no further than its declared size"
    tracemalloc.stop()
    told = capsys.readouterr()
    count = len(broken) if spoil is spoilt else 1
    if count == 4:
        assert "There is no finished run to import" in told.err
        return
    assert "3 runs and 1 ledger" in told.out
    assert f"left out: x.zip/{broken[0]} cannot be read: it is truncated, or no file of pflsweep's" in told.err
    assert "move the folder" not in told.err
    with pytest.raises(Damaged, match=r"x\.zip/\w+/clients\.parquet cannot be read"):
        Record(ArchivePath(Archive(packed, records_archive.KNOWN), broken[0].split("/")[0]))


def members_of(file: Path) -> list[str]:
    with zipfile.ZipFile(file) as archive:
        return archive.namelist()


def test_a_damaged_ledger_of_an_archive_is_named(packed: Path, capsys: pytest.CaptureFixture) -> None:
    def change(info: zipfile.ZipInfo, content: bytes) -> tuple[zipfile.ZipInfo, bytes]:
        return info, b"[" if info.filename.startswith("sweeps/") else content

    rewritten(packed, change)
    assert ends("import", "x.zip", "--runs", "imported") == 2
    told = capsys.readouterr()
    assert "4 runs and 0 ledgers" in told.out
    assert f"left out: x.zip/sweeps/{'0' * 16}.json is not a ledger of a sweep" in told.err
    with pytest.raises(UserError, match=r"x\.zip/sweeps/0+\.json is not a ledger of a sweep"):
        report(["pgfed/table1", "--runs", "x.zip"])


def test_an_archive_of_another_format_says_what_to_do(packed: Path, capsys: pytest.CaptureFixture) -> None:
    def change(info: zipfile.ZipInfo, content: bytes) -> tuple[zipfile.ZipInfo, bytes]:
        if info.filename.endswith(".json") and "status" not in info.filename:
            content = json.dumps({**json.loads(content), "format": 0}).encode()
        return info, content

    rewritten(packed, change)
    assert ends("import", "x.zip", "--runs", "imported") == 2
    said = capsys.readouterr().err
    assert "was written by an older pflsweep (format 0, not 1). Unzip x.zip into a folder" in said


def test_a_linked_archive_in_a_folder_is_not_imported(packed: Path, capsys: pytest.CaptureFixture) -> None:
    Path("folder").mkdir()
    Path("folder/y.zip").symlink_to(packed.absolute())
    assert ends("import", "folder", "--runs", "imported") == 2
    assert "folder/y.zip is not read: it is a link" in capsys.readouterr().err


@pytest.mark.slow
def test_damage_of_the_directory_of_an_archive_is_an_error_and_no_crash(packed: Path) -> None:
    """Change some bytes of the directory, which is at the end and tells each file's place and size."""
    whole, said = packed.read_bytes(), []
    with zipfile.ZipFile(packed) as archive:
        places = range(archive.start_dir, len(whole), 23)
    for at in places:
        packed.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        with suppress(UserError):
            said += choose(packed, []).damaged
            continue
        said.append("refused")
    assert "refused" in said
    assert any("x.zip" in line for line in said)
