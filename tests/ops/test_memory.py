"""The limits that a container or a job puts on this process's memory."""

from pathlib import Path

import pytest
import torch

from pflsweep.ops import memory

GB = 1 << 30
FILES = {
    2: ("memory.max", "memory.current", "inactive_file"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def group(folder: Path, version: int, limit: str, used: int, dropped: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    most, now, inactive = FILES[version]
    (folder / most).write_text(f"{limit}\n")
    (folder / now).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{inactive} {dropped}\n")


@pytest.mark.parametrize(("version", "lines"), [(2, "0::/slurm/job_7\n"), (1, "9:cpu:/\n4:memory:/slurm/job_7\n")])
def test_limits_of_a_job_and_of_the_groups_around_it(tmp_path: Path, version: int, lines: str) -> None:
    (tmp_path / "own").write_text(lines)
    top = tmp_path / "mounted"
    mount = top if version == 2 else top / "memory"
    group(mount / "slurm/job_7", version, str(16 * GB), 5 * GB, dropped=2 * GB)
    group(mount / "slurm", version, str(64 * GB), 40 * GB)
    group(mount, version, "max", 50 * GB)
    assert memory._limits(tmp_path / "own", top) == [(16 * GB, 3 * GB), (64 * GB, 40 * GB)]


def test_a_container_sees_its_own_group_at_the_top(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("4:memory:/docker/of_the_host\n")
    group(tmp_path / "memory", 1, str(8 * GB), 7 * GB)
    assert memory._limits(tmp_path / "own", tmp_path) == [(8 * GB, 7 * GB)]


def test_no_groups_are_no_limit(tmp_path: Path) -> None:
    assert memory._limits(tmp_path / "none", tmp_path) == []
    (tmp_path / "own").write_text("nonsense")
    assert memory._limits(tmp_path / "own", tmp_path) == []


def test_a_limit_bounds_what_there_is_and_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_ram", memory._ram.__wrapped__)  # without its cache
    monkeypatch.setattr(memory, "_limits", lambda: [(3 << 20, 1 << 20)])
    assert memory.total(torch.device("cpu")) == 3 << 20
    assert memory.available() == 2 << 20
    monkeypatch.setattr(memory, "_limits", lambda: [(1 << 20, 2 << 20)])
    assert memory.available() == 0
