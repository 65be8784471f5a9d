"""Tuned methods in one table: a sweep's winners are in it, the trials of its searches are not."""

import json
import shutil
from pathlib import Path

import pytest

from pflsweep.commands.report import main
from pflsweep.records.record import Record
from pflsweep.records.searches import find_searches
from pflsweep.records.select import Chosen, choose, without_searches
from pflsweep.report import page
from pflsweep.report.compare import settings
from pflsweep.util.errors import UserError
from tests.report import records
from tests.report.records import create, finished
from tests.sweep.sweeping import run_here

SMALL = ("train.rounds=3", "partition.clients=6", "model.hidden=[16]", "checkpoint.every=0", "checkpoint.models=false")
# The second learning rate learns nothing in three rounds
SPACES = {"fedavg": [0.5, 0.0001], "pgfed": [0.1, 0.0001]}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return a folder in which two methods were tuned, with different winners, and what the sweep printed."""
    folder = tmp_path_factory.mktemp("swept")
    (folder / "sweeps/space").mkdir(parents=True)
    for method, rates in SPACES.items():
        (folder / f"sweeps/space/{method}.yaml").write_text(f"train.lr: {{grid: {rates}}}\n")
    done = run_here(folder, "-m", "algorithm=fedavg,pgfed", "seed=0,1", "tune=grid", *SMALL)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


@pytest.fixture
def here(swept, tmp_path, monkeypatch) -> Path:
    """Return a copy of the folder."""
    shutil.copytree(swept[0], tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_winners_meet_in_one_table_and_their_search_in_none(here, capsys):
    main(["runs"])
    text = (here / "reports/comparison/runs.md").read_text()
    assert "# Comparison of 4 finished runs" in text
    assert "4 trials of searches, by which hyperparameters were chosen, are left out" in text
    assert "`pflsweep report runs runs/[0-9a-f]*`" in text
    assert "Setting 1" not in text
    table = [line.split(" | ") for line in text.split("Other metrics")[0].splitlines() if line.startswith("| ")]
    assert [line[0] for line in table] == ["| method", "| :--", "| fedavg", "| pgfed"]
    assert table[3][1] == "2"  # seeds
    assert table[3][4][0] in "+-", "a paired difference"
    assert table[3][4][1].isdigit()
    assert "- fedavg: `train.lr=0.5`; the best of 2 points on validation data of seed 0, " in text
    assert "`train.lr=0.1`; the best of 2 points on validation data of seed 0, " in text
    commands = text.split("Commands of these sweeps:")[1].split("## How")[0]
    assert commands.strip().startswith("- `pflsweep -m algorithm=fedavg,pgfed seed=0,1 tune=grid train.rounds=3 ")
    assert "S-acc" not in text, "which nobody asked for"
    assert "- train: " in text
    assert "train.lr=" not in text.split("- train: ")[1].splitlines()[0]
    assert "4 trials of searches left out" in capsys.readouterr().out


def test_the_table_that_ends_the_sweep_is_one(swept):
    end = swept[1].split("-----\n")[1]
    assert end.split()[0] == "method", "no column says that settings differ"
    assert "fedavg" in end
    assert "pgfed" in end


def test_what_a_sweep_has_not_trained_yet_is_named(tmp_path):
    won = finished(tmp_path, "fedavg", [5, 5, 5, 5], train__lr=0.05)
    ledger(tmp_path, won, "test")
    (file,) = (tmp_path / "sweeps").glob("*.json")
    content = json.loads(file.read_text())
    (of,) = content["groups"]
    content |= {"seeds": [0, 1], "groups": [of, {**of, "method": "local", "trials": {}, "winner": None}]}
    file.write_text(json.dumps(content))
    chosen = without_searches(choose(tmp_path, []), [])
    text = page.write(chosen, tmp_path / "out", None).read_text()
    waiting = text.split("Of these sweeps not trained, or not yet:")[1].split("##")[0]
    assert [line for line in waiting.splitlines() if line] == ["- fedavg: 1 of 2 seeds", "- local: 0 of 2 seeds"]


@pytest.mark.slow
def test_a_search_is_shown_where_its_folder_is_named(here, capsys):
    hidden = without_searches(choose(Path("runs"), []), []).hidden
    assert len(hidden) == 4
    main(["runs", *map(str, sorted(Path("runs").glob("[0-9a-f]*")))])
    out = capsys.readouterr().out
    for label in ("fedavg (train.lr=0.0001)", "fedavg (train.lr=0.5)", "validation=0.2", "validation=0.0"):
        assert label in out
    assert "8 runs" in out
    main(["runs", hidden[0].meta["identity"][:8]])
    assert "1 run\n" in capsys.readouterr().out
    # Trials of the search have the same names as final ones
    main(["runs", "fedavg-*"])
    assert "2 runs; 2 trials of searches left out" in capsys.readouterr().out


def test_another_rate_is_another_row_of_the_same_table(here):
    done = run_here(here, "algorithm=pgfed", "train.lr=0.2", *SMALL)
    assert done.returncode == 0, done.stderr
    main(["runs", "--baseline", "pgfed (train.lr=0.1)"])
    text = (here / "reports/comparison/runs.md").read_text()
    assert "Setting 1" not in text
    table = text.split("Other metrics")[0]
    for row in ("| fedavg | 2 (0, 1) |", "| pgfed (train.lr=0.1) | 2 (0, 1) |", "| pgfed (train.lr=0.2) | 1 (0) |"):
        assert row in table


def ledger(runs: Path, record: Record, split: str, **more) -> None:
    """Return a ledger of a sweep that has searched train.lr in this record's setting."""
    asked = {"model.hidden": [200], "train.rounds": 3, "train.batch": 32, "data.validation": 0.0}
    own = {
        "config": asked, "space": {"train.lr": [0.05, 0.1, 0.2]}, "points": 3, "points_settled": 3,
        "winner": {"train.lr": 0.05}, "winner_value": 0.5, "trials": {"0": record.meta["identity"]}, **more,
    }  # fmt: skip
    (runs / "sweeps").mkdir(exist_ok=True)
    content = records.ledger([records.group("", record.meta["method"], **own)])
    content["tune"] |= {"split": split}
    (runs / "sweeps" / f"{split}.json").write_text(json.dumps(content))


@pytest.mark.parametrize(("sampler", "ranges", "hidden"), [
    ("grid", None, [0.05, 0.2]), ("random", {"train.lr": [0.04, 0.15, True]}, [0.05, 0.07, 0.2]),
    ("random", None, [0.05, 0.07, 0.2, 0.3]),  # a ledger of before ranges were written
])  # fmt: skip
def test_a_trial_by_hand_is_of_a_search_only_where_it_may_have_been_tried(tmp_path, sampler, ranges, hidden):
    won = finished(tmp_path, "fedavg", [5, 5, 5, 5], data__validation=0.0, train__lr=0.1)
    ledger(tmp_path, won, "validation", **({} if ranges is None else {"ranges": ranges}))
    (file,) = (tmp_path / "sweeps").glob("*.json")
    content = json.loads(file.read_text())
    content["tune"]["sampler"] = sampler
    file.write_text(json.dumps(content))
    for lr in (0.05, 0.07, 0.2, 0.3):
        finished(tmp_path, "fedavg", [5, 5, 5, 5], data__validation=0.2, train__lr=lr)
    found = without_searches(choose(tmp_path, []), []).hidden
    assert sorted(record.config["train"]["lr"] for record in found) == hidden


def test_trials_that_have_no_result_are_of_the_search_too(tmp_path):
    won = finished(tmp_path, "fedavg", [5, 5, 5, 5], data__validation=0.0)
    tried = [create(tmp_path, "fedavg", data__validation=0.2, train__lr=lr) for lr in (0.1, 0.07)]
    tried[0].set_status(status="failed", error="Diverged")
    others = [
        create(tmp_path, "fedavg", data__validation=0.1),
        create(tmp_path, "fedavg", data__validation=0.2, model__hidden=[100]),
        # The search uses the first seed alone
        create(tmp_path, "fedavg", data__validation=0.2, seed=1),
    ]
    ledger(tmp_path, won, "validation")
    assert find_searches([won, *tried, *others]).trials == {record.meta["identity"] for record in tried}


def test_a_rate_that_was_searched_plain_is_no_trial_of_the_search_with_a_plug_in(tmp_path):
    plugged = {"ala": {"ala__layers": 1}, "attack": {"attack__scale": 5.0}, "privacy": {"privacy__clip": 1.0}}
    won, tried = (finished(tmp_path, "fedavg", [5, 5, 5, 5], data__validation=0.0, train__lr=lr) for lr in (0.05, 0.1))
    others = [
        finished(tmp_path, "fedavg", [5, 5, 5, 5], data__validation=0.0, train__lr=0.1, **keys)
        for keys in plugged.values()
    ]
    ledger(tmp_path, won, "test")
    assert find_searches([won, tried, *others]).trials == {tried.meta["identity"]}


def test_a_trial_with_a_neutral_value_is_no_trial_of_a_search_with_another(tmp_path):
    keys = {"data__validation": 0.0, "dataset__augment": "crop_flip"}
    won, tried = (finished(tmp_path, "fedavg", [5, 5, 5, 5], train__lr=lr, **keys) for lr in (0.05, 0.1))
    plain = finished(tmp_path, "fedavg", [5, 5, 5, 5], data__validation=0.0, train__lr=0.1)
    asked = {"model.hidden": [200], "train.rounds": 3, "data.validation": 0.0, "dataset.augment": "crop_flip"}
    ledger(tmp_path, won, "test", config=asked)
    assert find_searches([won, tried, plain]).trials == {tried.meta["identity"]}


def test_on_test_data_a_rate_of_ones_own_is_no_trial_of_the_search(tmp_path):
    won, tried, drawn, own = (
        finished(tmp_path, "fedavg", [5, 5, 5, 5], data__validation=0.0, train__lr=lr) for lr in (0.05, 0.1, 0.13, 0.07)
    )
    ledger(tmp_path, won, "test", tried=[{"point": {"train.lr": 0.13}, "value": 0.4}])
    found = find_searches([won, tried, drawn, own])
    assert found.trials == {tried.meta["identity"], drawn.meta["identity"]}
    at = "train.lr=0.05 is the smallest value tried"
    assert found.won == {won.meta["identity"]: f"the best of 3 points on TEST data of seed 0, 50.0%; {at}"}
    (setting,) = settings([won, own], found.keys)
    assert [row.label for row in setting.rows] == ["fedavg (train.lr=0.05)", "fedavg (train.lr=0.07)"]
    assert len(settings([won, own])) == 2, "a rate that nothing has searched is of the setting"


def test_a_search_alone_is_nothing_to_report_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tried = finished(tmp_path / "runs", "fedavg", [5, 5, 5, 5], data__validation=0.2)
    ledger(tmp_path / "runs", tried, "validation", trials={})
    with pytest.raises(UserError, match="No finished run to report on in 'runs': 1 trial of searches"):
        main(["runs"])


def test_a_row_of_a_search_with_points_that_have_no_result_is_marked(tmp_path, monkeypatch, capsys):
    won, _ = (finished(tmp_path, name, [5, 5, 5, 5], data__validation=0.0) for name in ("fedavg", "fedprox"))
    ledger(tmp_path, won, "validation", without_result=["out of memory"])
    monkeypatch.chdir(tmp_path)
    assert main(["runs", "--runs", "."]) == 0
    text = (tmp_path / "reports/comparison/runs.md").read_text()
    assert "| fedavg † | 1 |" in text
    assert "| fedprox | 1 |" in text
    assert "† The hyperparameters of this row were chosen although some points of its search have no result" in text
    assert "fedavg †" in capsys.readouterr().out


def test_a_final_trial_that_is_superseded_is_named_and_in_no_table(tmp_path, monkeypatch):
    """A final trial is superseded where its point won before another point was tried again."""
    won, lost = (finished(tmp_path, "fedavg", [n, 5, 5, 5], data__validation=0.0, train__lr=lr)
                 for n, lr in ((5, 0.05), (4, 0.1)))  # fmt: skip
    ledger(tmp_path, won, "validation", superseded=[lost.meta["identity"]])
    monkeypatch.chdir(tmp_path)
    assert main(["runs", "--runs", "."]) == 0
    text = (tmp_path / "reports/comparison/runs.md").read_text()
    assert text.startswith("# Comparison of 1 finished run\n")
    assert "Left out are final trials of searches in which another point has won since" in text


def test_a_final_trial_whose_point_has_won_again_is_not_superseded(tmp_path):
    won = finished(tmp_path, "fedavg", [5, 5, 5, 5], data__validation=0.0)
    ledger(tmp_path, won, "validation", superseded=[won.meta["identity"]])
    found = find_searches([won])
    assert (found.superseded, found.trials) == (frozenset(), frozenset())


def test_the_runs_of_a_sweep_stand_in_its_order(tmp_path):
    """The order in which trials began, with two workers or a kill, must not change a page or its baseline."""
    late, early = (finished(tmp_path, "fedavg", [5, 5, 5, 5], seed=seed, data__validation=0.0) for seed in (1, 0))
    for record, hour in ((late, "09"), (early, "10")):
        record.meta["created"] = f"2026-01-01T{hour}:00:00.000+00:00"
    ledger(tmp_path, early, "validation", trials={"0": early.meta["identity"], "1": late.meta["identity"]})
    shown = without_searches(Chosen([late, early], []), []).records
    assert [record.meta["seed"] for record in shown] == [0, 1]
