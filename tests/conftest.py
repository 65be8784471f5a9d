"""For all tests."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

# Tests are small: threads that wait for each other only take longer, on a busy machine ten times. torch reads
# this when it is first imported, here and in the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a working directory of the test's own: what a command leaves, it leaves there."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is given to the compiler runs operation by operation, as it was traced: to make it fast takes seconds."""
    import torch

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))


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
