"""The chaos test with few events on a small sweep, and that it detects differences."""

from pathlib import Path

import numpy as np
import pytest

from tests.chaos import Chaos
from tests.sweep.differences import Comparison, without_times

pytestmark = pytest.mark.slow


def test_a_disturbed_sweep_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    chaos = Chaos(tmp_path, kills=4, seed=1, setups=["sqlite-2"], methods=["scaffold", "pgfed"])
    assert chaos.run() == 0, chaos.differences
    assert chaos.events.total() == 4
    assert chaos.comparisons > 1000


def test_one_bit_is_a_difference() -> None:
    comparison, values = Comparison(), np.array([0.25, np.nan, 0.5])
    comparison.same_array("losses", values, values.copy())
    assert comparison.differences == []
    comparison.same_array("losses", values, np.nextafter(values, 1))
    assert comparison.differences == [
        f"losses: 2 of 3 values differ, the first at 0: undisturbed {values[0]!r}, disturbed {np.nextafter(0.25, 1)!r}"
    ]


def test_only_times_are_left_out_of_tables() -> None:
    printed = "\n".join([
        "-" * 60,
        "method accuracy %         95% CI seconds images/s floats sent",
        "fedavg      92.77 [87.64, 97.22]    {} {}       4,840",
        "-" * 60,
        "| method | {} | rounds |",
        "| fedavg | {} | 30 |",
    ])  # fmt: skip
    table = without_times(printed.format("2.2", "27,600", "seconds", "2.2"))
    assert table == without_times(printed.format("9.9", "1,000", "seconds", "10.25"))
    assert "4,840" in table
    assert table != without_times(printed.format("2.2", "27,600", "loss", "2.2"))
    assert table != without_times(printed.replace("92.77", "92.78").format("2.2", "27,600", "seconds", "2.2"))
