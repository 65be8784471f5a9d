"""Files are written whole, small, and with the same values."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pflsweep.util import files


def test_a_table_of_losses_takes_three_quarters_of_pandas_bytes_and_keeps_every_bit(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "round": np.repeat(np.arange(40, dtype=np.int32), 100),
            "view": "personal",
            "loss": rng.gamma(2, 0.1, 4000).astype(np.float32),
            "lr": np.repeat(0.1 * 0.999 ** np.arange(40), 100),
        }
    )
    table.loc[7, "loss"] = np.nan
    files.write_parquet(tmp_path / "ours.parquet", table)
    table.to_parquet(tmp_path / "pandas.parquet", index=False)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "ours.parquet"), table, check_exact=True)
    ours, theirs = ((tmp_path / f"{name}.parquet").stat().st_size for name in ("ours", "pandas"))
    assert ours < 0.75 * theirs


def test_a_table_without_rows_or_floats_is_written(tmp_path: Path) -> None:
    for table in (pd.DataFrame({"loss": np.array([], np.float32)}), pd.DataFrame({"client": [0, 1]})):
        files.write_parquet(tmp_path / "x.parquet", table)
        pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "x.parquet"), table)


def test_text_is_utf8_whatever_the_locale(tmp_path: Path) -> None:
    code = r"""
import locale, sys
from pathlib import Path
from pflsweep.util import files
assert locale.getpreferredencoding(False).lower() in ("ansi_x3.4-1968", "us-ascii")
files.write_text(Path(sys.argv[1]), '{"a": "\u2260"}')
assert files.read_json(Path(sys.argv[1])) == files.read_yaml(Path(sys.argv[1])) == {"a": "\u2260"}
"""
    place, ascii = tmp_path / "page.md", {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", code, str(place)], check=True, env={**os.environ, **ascii})
    assert place.read_text("utf-8") == '{"a": "≠"}'


def test_a_lock_is_released_although_a_fork_has_a_copy_of_it(tmp_path: Path) -> None:
    """Engine workers are forks, which may begin while another thread holds a lock."""
    reader, writer = os.pipe()
    with files.locked(tmp_path / "lock"):
        child = os.fork()
        if not child:
            os.close(writer)
            os.read(reader, 1)  # until the parent closes its end
            os._exit(0)
    try:
        with files.locked(tmp_path / "lock", wait=False):
            pass
    finally:
        os.close(writer)
        os.waitpid(child, 0)
        os.close(reader)


@pytest.mark.parametrize(("number", "room"), [(errno.ENOSPC, True), (errno.EFBIG, True), (errno.EROFS, False)])
def test_room_helps_on_a_full_disk_alone(tmp_path: Path, number: int, room: bool) -> None:
    said = str(files.as_disk_full(OSError(number, os.strerror(number)), tmp_path))
    assert ("Make room, or choose another folder" in said) is ("of space are free there" in said) is room
    assert ("(Read-only file system). Choose another folder" in said) is not room


def test_a_yaml_file_has_no_aliases(tmp_path: Path) -> None:
    """Records that have some are refused."""
    hidden = [8, 8]
    files.write_yaml(tmp_path / "config.yaml", {"one": hidden, "two": hidden})
    assert "&" not in (tmp_path / "config.yaml").read_text()
    assert files.read_yaml(tmp_path / "config.yaml") == {"one": hidden, "two": hidden}
