"""Each method's line in the conformance table: its mechanism improves accuracy, or the test fails."""

import numpy as np
import pytest

from tests.conformance.test_methods import TABLE
from tests.works import Works, holds

pytestmark = pytest.mark.slow

CLAIMS = [(name, works) for name, row in TABLE.items() for works in row.works]


@pytest.mark.parametrize(("name", "works"), CLAIMS, ids=lambda v: getattr(v, "says", v))
def test_works(name: str, works: Works) -> None:
    margins = works.margins(TABLE[name].algorithm or name)
    assert holds(margins), f"{name}, {works.says}: {np.round(100 * margins, 1)} points above {works.off}"


def test_the_same_code_twice_is_no_better() -> None:
    """A mechanism that is switched off on both sides fails its test."""
    assert not holds(Works("nothing", off="", where="train.rounds=1 partition.clients=5").margins("fedavg"))
    assert not holds(np.array([0.02, -0.01, 0.0]))
    assert holds(np.array([0.02, 0.01, 0.03]))
