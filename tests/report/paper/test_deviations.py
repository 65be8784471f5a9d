"""Where trials differ from what their paper states, in the lines of a table's page."""

import json
from pathlib import Path

import pytest

from pflsweep.report.paper import deviations
from tests.report.paper.fixtures import Sweep, reproduced

C25 = "cifar10/clients25"


@pytest.mark.parametrize(("rounds", "fewer"), [(3, {(3, 300)}), (300, set()), (400, set())])
def test_more_rounds_than_the_papers_are_not_fewer(rounds: int, fewer: set[tuple[int, int]], tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "runs", seeds=(0,))
    sweep.group(C25, "pgfed")["config"]["train.rounds"] = rounds
    sweep.write()
    of = reproduced(sweep.runs, "pgfed/table1")
    assert deviations.fewer_rounds(of) == fewer
    said = f"rounds: stated 300, here {rounds} (cifar10 clients25)"
    assert (said in deviations.lines(of)) == (rounds != 300)


def test_what_a_search_has_chosen_is_what_trials_have(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "runs", seeds=(0,))
    group = sweep.group(C25, "pgfed")
    group["config"]["train.momentum"] = 0.9
    group |= {"space": {"train.momentum": [0.5, 0.9]}, "winner": {"train.momentum": 0.5}, "winner_value": 0.8}
    sweep.write()
    found = deviations.lines(reproduced(sweep.runs, "pgfed/table1"))
    assert "momentum: stated 0.9, here 0.5 (cifar10 clients25)" in found


def test_values_are_said_as_on_a_command_line(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "runs", seeds=(0,))
    sweep.group(C25, "pgfed")["config"] |= {"train.momentum": None, "data.flip": True}
    sweep.group(C25, "local")["config"] |= {"train.momentum": None, "data.flip": None}
    sweep.write()
    found = deviations.lines(reproduced(sweep.runs, "pgfed/table1"))
    assert "momentum: stated 0.9, here null (cifar10 clients25)" in found
    assert f"**rows of one column differ in `data.flip`** ({C25}): null for local; true for pgfed" in found


@pytest.mark.parametrize(
    ("key", "ours", "said"),
    [
        ("dataset.name", "cifar100", "dataset: cifar10 in the paper, here cifar100"),
        ("model", "cnn_norm", "model: cnn in the paper, here cnn_norm"),
        ("partition", "quantity", "partition: dirichlet 0.3 in the paper, here quantity"),
    ],
)
def test_a_longer_name_is_another_one(key: str, ours: str, said: str, tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "runs", seeds=(0,))
    same = {"dataset.name": "cifar10", "model": "tf_cnn", "partition": "dirichlet", "partition.alpha": 0.3}
    sweep.group(C25, "pgfed")["config"] |= same
    sweep.write()
    assert f"{said} (cifar10 clients25)" not in (before := deviations.lines(reproduced(sweep.runs, "pgfed/table1")))
    sweep.group(C25, "pgfed")["config"][key] = ours
    sweep.write()
    assert f"{said} (cifar10 clients25)" in (after := deviations.lines(reproduced(sweep.runs, "pgfed/table1")))
    assert len(after) == len(before) + 1


def test_what_the_command_changes_is_said(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "runs", seeds=(0,))
    sweep.add(C25, "local", {0: [7]})
    words = "attack=gaussian +privacy=dp_sgd data.validation=0.5 seed=0 'only=[cifar10/clients25,local]' tune.scale=5"
    sweep.write(command=f"pflsweep -m sweep=pgfed/table1 scale=small device=cpu tracking=none workers.count=2 {words}")
    found = [
        line for line in deviations.lines(reproduced(sweep.runs, "pgfed/table1")) if line.startswith("the command")
    ]
    changes = ("attack=gaussian", "+privacy=dp_sgd", "data.validation=0.5")
    assert found == [f"the command has `{change}` ({C25})" for change in changes]


def test_seeds_are_said_where_rows_have_different_ones(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "runs", seeds=(0, 1))
    sweep.add("cifar10/clients25", "fedavg", {0: [60], 1: [62]})
    sweep.add("cifar10/clients25", "local", {0: [70]})
    sweep.write()
    found = deviations.lines(reproduced(sweep.runs, "pgfed/table1"))
    assert any(line.startswith("runs: stated 3, here 1 to 2 (seeds) (cifar10 clients25)") for line in found), found


def test_the_fewest_classes_of_any_trial_are_said(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "runs", "fedfomo/table1", seeds=(0, 1))
    records = sweep.add("mnist/clients15", "local", {0: [6, 7], 1: [6, 7]}, partition__classes_per_client=2)
    for record, least in zip(records, (2, 1), strict=True):
        meta = {**record.meta, "statistics": {"classes_min": least, "emd_code": 3.0}}
        (record.folder / "meta.json").write_text(json.dumps(meta))
    sweep.write()
    found = deviations.lines(reproduced(sweep.runs, "fedfomo/table1"))
    assert any("here some clients have 1, dealt more than once" in line for line in found)
