"""For all tests."""

import os
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

# Tests are small: threads that wait for each other only take longer, on a busy machine ten times. torch reads
# this when it is first imported, here and in the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")


ALWAYS = ("tests/test_chaos.py", "tests/test_browser.py")  # whatever share is run


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--share", type=int, default=1, help="run one in so many of the tests, others at each commit")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the share of the tests that falls to this commit, so that CI is short and every test runs within a few."""
    share = config.getoption("--share")
    if share == 1:
        return
    asked = subprocess.run(["git", "rev-parse", "HEAD"], cwd=config.rootpath, capture_output=True, text=True)
    turn = int(asked.stdout.strip() or "0", 16) % share  # a copy without history has the first share
    kept = [
        item for item in items if item.nodeid.startswith(ALWAYS) or zlib.crc32(item.nodeid.encode()) % share == turn
    ]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a working directory of the test's own: what a command leaves, it leaves there."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def real_data() -> Callable[[str], Path]:
    """Asks for real data: the data folder that holds `folder`, or a skip; with PFLSWEEP_REQUIRE_DATA=1 a failure."""

    def ask(folder: str) -> Path:
        root = os.environ.get("PFLSWEEP_DATA")
        if root and (Path(root) / folder).exists():
            return Path(root)
        why = f"{folder} is not in PFLSWEEP_DATA ({root or 'unset'})"
        if os.environ.get("PFLSWEEP_REQUIRE_DATA"):
            pytest.fail(why)
        pytest.skip(why)

    return ask
