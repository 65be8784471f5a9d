"""Settings and fixtures of all tests."""

import os
import subprocess
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

# Tests are small: threads that wait for each other only take longer, on a busy machine ten times. torch reads
# this when it is first imported, here and in the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# What the user's commands would copy is not made by a test, such as an empty MLflow store. The folder stays, since
# creating that store takes 8 s.
os.environ["XDG_CACHE_HOME"] = str(Path(tempfile.gettempdir()) / f"pflsweep-tests-{os.getuid()}")


# Tests that are run whatever the share is
ALWAYS = ("tests/test_chaos.py", "tests/test_browser.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--share", type=int, default=1, help="run one in so many of the tests, others at each commit")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the share of the tests that is due for this commit, so that CI is short and every test runs within a few
    commits.
    """
    share = config.getoption("--share")
    if share == 1:
        return
    asked = subprocess.run(["git", "rev-parse", "HEAD"], cwd=config.rootpath, capture_output=True, text=True)
    # A copy without git history runs the first share
    turn = int(asked.stdout.strip() or "0", 16) % share
    kept = [
        item for item in items if item.nodeid.startswith(ALWAYS) or zlib.crc32(item.nodeid.encode()) % share == turn
    ]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test in its own working directory, so that a command leaves its files there."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def real_data() -> Callable[[str], Path]:
    """Return the data folder that holds `folder`. Skip the test without it; with PFLSWEEP_REQUIRE_DATA=1 fail."""

    def ask(folder: str) -> Path:
        root = os.environ.get("PFLSWEEP_DATA")
        if root and (Path(root) / folder).exists():
            return Path(root)
        why = f"{folder} is not in PFLSWEEP_DATA ({root or 'unset'})"
        if os.environ.get("PFLSWEEP_REQUIRE_DATA"):
            pytest.fail(why)
        pytest.skip(why)

    return ask
