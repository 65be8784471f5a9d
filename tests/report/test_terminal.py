"""The table that a command prints at its end, and its legend."""

import pytest

import pflsweep
from pflsweep.report.terminal import scored_on, table_with_legend


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "their own test data"),
        ({"metrics": {"rows": "train"}}, "their own training data"),
        ({"data": {"targets": "permuted"}}, "another client's test data"),
    ],
)
def test_it_says_what_was_scored(config: dict, said: str) -> None:
    assert scored_on(config) == said


def test_trials_of_both_kinds_are_named(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    short = [
        "algorithm=fedavg",
        "dataset=synthetic",
        "partition.clients=4",
        "train.rounds=1",
        "tracking=none",
        "device=cpu",
    ]
    records = [pflsweep.run([*short, f"metrics.rows={rows}"]).record for rows in ("test", "train")]
    assert "on their own test data or their own training data, last round" in table_with_legend(records)
