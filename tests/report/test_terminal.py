"""The table that a command prints at its end, and its legend."""

import re
from pathlib import Path

import pytest

import pflsweep
from pflsweep.commands.main import main
from pflsweep.report.terminal import scored_on, table_with_legend
from tests.report.records import finished


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


def test_records_in_several_folders_are_all_named(tmp_path, monkeypatch) -> None:
    """Two commands on one disk with a database in common leave records in two folders."""
    there, here = tmp_path / "their runs", tmp_path / "here/runs"
    records = [
        finished(there, "fedavg", [4, 4], 0),
        finished(there, "fedavg", [4, 4], 1),
        finished(here, "local", [5, 5]),
    ]
    (tmp_path / "here").mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / "here")
    last = table_with_legend(records).splitlines()[-2:]
    assert last[0].startswith("Next: `pflsweep report runs` writes")
    assert last[0].endswith("; `pflsweep ui` shows the runs in a browser; records are in runs/.")
    untracked = table_with_legend(records, tracked=False).splitlines()[-2]
    assert untracked.endswith("writes a comparison; records are in runs/.")
    assert last[1] == f"2 of 3 records are in {there}: `pflsweep record import '{there}'` copies them first."


def test_rows_have_the_names_of_their_sweep_and_its_page_is_named(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "sweeps/mine/table1": "settings: {digits: dataset=digits partition.clients=4}\n"
        "methods: {ours: algorithm=fedprox algorithm.mu=1, without mu: algorithm=fedprox algorithm.mu=0, fedavg: "
        "algorithm=fedavg}\n",
        "reports/layouts/mine/table1": "title: t\nsweeps: [mine/table1]\nmetrics: {acc: {quantity: accuracy}}\n"
        "own_table: {name: a, rows: {ours: O, fedavg: F}, columns: {digits: here}}\n",
    }.items():
        file = tmp_path / f"{name}.yaml"
        file.parent.mkdir(parents=True)
        file.write_text(text)
    assert main(["-m", "sweep=mine/table1", "train.rounds=1", "tracking=none", "device=cpu"]) == 0
    out = capsys.readouterr().out
    _, heading, *rows, _ = [line for line in out.splitlines() if not line.startswith(("accuracy", "seconds", "Next"))]
    assert heading.split()[0] == "method"
    assert [re.split(r" {2,}", row.strip())[0] for row in rows] == ["ours", "without mu", "fedavg"]
    assert "Next: `pflsweep report mine/table1` makes the table's page; `pflsweep report runs` writes a" in out
