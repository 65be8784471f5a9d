"""A loader's result is cached, and used only where nothing has changed."""

import logging
import os
from pathlib import Path

import numpy as np
import pytest

from pflsweep.data.datasets.cache import prepared
from pflsweep.data.datasets.pack import Content, content


class Loader:
    """Reads a folder of one file, and counts how often."""

    def __init__(self, root: Path) -> None:
        self.root, self.folder, self.made = root, root / "source", 0
        self.folder.mkdir()
        self.write(b"\1\2\3")

    def write(self, numbers: bytes) -> None:
        (self.folder / "numbers").write_bytes(numbers)

    def make(self) -> Content:
        self.made += 1
        x = np.frombuffer((self.folder / "numbers").read_bytes(), np.uint8)[:, None]
        return content(x, np.zeros(len(x)), 2, np.arange(len(x)))

    def load(self, *options: int) -> Content:
        return prepared(self.root, "numbers", self.folder, list(options), self.make)

    @property
    def kept(self) -> Path:
        return self.root / "prepared/numbers.bin"


@pytest.fixture
def loader(tmp_path: Path) -> Loader:
    return Loader(tmp_path)


def same(one: Content, other: Content) -> bool:
    arrays = all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(one[:2], other[:2], strict=True))
    return arrays and np.array_equal(one.owner, other.owner) and one.train == other.train


def test_the_second_load_reads_what_the_first_one_made(loader):
    first, second = loader.load(), loader.load()
    assert loader.made == 1
    assert same(first, second)
    assert first.checksum == second.checksum
    assert second.x.flags.writeable, "as torch wants it"


def test_options_and_source_files_count(loader):
    loader.load(1)
    loader.load(2)
    assert loader.made == 2
    before = os.stat(loader.folder / "numbers").st_mtime_ns
    # The same length, but a later time
    loader.write(b"\1\2\4")
    os.utime(loader.folder / "numbers", ns=(before + 1, before + 1))
    assert loader.load(2).x[2] == 4
    # Longer, at the same time
    loader.write(b"\1\2\4\5")
    os.utime(loader.folder / "numbers", ns=(before + 1, before + 1))
    assert len(loader.load(2).x) == 4
    (loader.folder / "more").write_bytes(b"")
    loader.load(2)
    assert loader.made == 5
    assert [path.name for path in loader.kept.parent.iterdir()] == ["numbers.bin"], "one file, whatever it was"


@pytest.mark.slow
def test_any_damage_to_what_is_kept_is_seen(loader):
    right = loader.load()
    whole = loader.kept.read_bytes()
    for place in range(len(whole)):
        garbled = bytearray(whole)
        garbled[place] ^= 4
        loader.kept.write_bytes(garbled)
        assert same(loader.load(), right), place
    for length in (0, 1, len(whole) // 2, len(whole) - 1):
        loader.kept.write_bytes(whole[:length])
        assert same(loader.load(), right), length
    made = loader.made
    assert same(loader.load(), right)
    assert loader.made == made, "the last one was made anew and kept"


def test_a_folder_that_cannot_be_written_to_costs_time_alone(loader, caplog):
    (loader.root / "prepared").write_text("a file where a folder should be")
    with caplog.at_level(logging.WARNING):
        assert same(loader.load(), loader.load())
    assert loader.made == 2
    assert "prepared anew in each start" in caplog.text
