"""Real data are asked for, never assumed."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def real_root() -> Path:
    """The folder of real data, or a skip."""
    root = os.environ.get("PFLSWEEP_DATA")
    if not root:
        pytest.skip("PFLSWEEP_DATA is not set")
    return Path(root)
