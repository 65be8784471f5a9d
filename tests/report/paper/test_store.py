"""Which runs are behind a cell: by the ledgers, as of the round that was asked for, and never a mixture."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from pflsweep.records.ledger import ledgers
from pflsweep.report.paper.reproduction import Stores
from pflsweep.report.paper.store import CellTrials, Store, TrialReader
from pflsweep.util.errors import UserError
from tests.report.paper.fixtures import Sweep, create, finished, place, train

SETTING = "cifar10/clients25"


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return Sweep(tmp_path / "runs")


def cell_trials(sweep: Sweep, method: str = "fedavg", scale: str = "small") -> CellTrials:
    store = Store(TrialReader(sweep.runs), scale, ledgers(sweep.runs))
    return store.cell_trials([sweep.name], SETTING, method)


def test_finished_trials_by_seed(sweep: Sweep) -> None:
    sweep.add(SETTING, "fedavg", {1: [1, 2, 3, 4], 0: [2, 4, 6, 8]})
    sweep.write()
    found = cell_trials(sweep)
    assert (list(found.finished), found.complete, found.open, found.failed) == ([0, 1], True, {}, {})
    assert found.commands == ["pflsweep -m sweep=pgfed/table1 scale=small"]


def test_a_trial_is_shown_as_of_the_rounds_that_its_search_has_chosen(sweep: Sweep) -> None:
    (record,) = sweep.add(SETTING, "fedavg", {0: [2, 4, 6, 8]})
    sweep.group(SETTING, "fedavg")["winner"] = {"train.rounds": 2}
    sweep.write()
    assert cell_trials(sweep).finished[0].record.done == 2 < record.done


def test_what_nobody_has_asked_for_is_not_there(sweep: Sweep) -> None:
    sweep.add(SETTING, "fedavg", {0: [1, 1, 1, 1]})
    # A foreign run, which no ledger names
    finished(sweep.runs, "pgfed", [9, 9, 9, 9])
    sweep.write()
    found = cell_trials(sweep, "pgfed")
    assert (found.finished, found.seeds, found.complete, found.commands) == ({}, [], False, [])


def test_failed_running_and_absent_trials_are_named(sweep: Sweep) -> None:
    sweep.seeds = [0, 1, 2, 3]
    sweep.add(SETTING, "fedavg", {0: [2, 4, 6, 8]})
    sweep.group(SETTING, "fedavg")["failed"]["1"] = "ValueError: the loss is nan"
    running = train(create(sweep.runs, "fedavg", 2, dataset___option_=place(SETTING)), [[1, 1, 1, 1]])
    sweep.name_trial(SETTING, "fedavg", 2, running)
    sweep.group(SETTING, "fedavg")["trials"]["3"] = "feedfeedfeedfeed"
    sweep.write()
    found = cell_trials(sweep)
    assert list(found.finished) == [0]
    assert found.failed == {1: "ValueError: the loss is nan"}
    assert "is running at round 1 of 3" in found.open[2]
    assert "feedfeedfeedfeed is not in" in found.open[3]


def test_a_trial_is_read_as_of_the_round_asked_for(sweep: Sweep) -> None:
    (record,) = sweep.add(SETTING, "fedavg", {0: [2, 4, 6, 8]}, peak=1)
    # The trial goes on at another scale
    train(record, [[9, 9, 9, 9]])
    record.set_status(status="running", target=300)
    sweep.write()
    trial = cell_trials(sweep).finished[0]
    assert trial.rounds["round"].max() == 3
    assert trial.clients.query("view == 'personal'")["correct"].tolist() == [2, 4, 6, 8]
    assert trial.clients_best.query("view == 'personal'")["correct"].tolist() == [3, 5, 7, 9]


def test_a_trial_that_went_on_keeps_the_scores_of_its_earlier_end(sweep: Sweep) -> None:
    (record,) = sweep.add(SETTING, "fedavg", {0: [2, 4, 6, 8]})
    # The trial went on with eval_every=2
    record.set_scores_apart(lambda t: t % 2 == 0)
    train(record, [[9, 9, 9, 9]])
    sweep.write()
    trial = cell_trials(sweep).finished[0]
    assert trial.clients.query("view == 'personal'")["correct"].tolist() == [2, 4, 6, 8]
    # It never ended there
    for file in record.folder.glob("ends_*"):
        file.unlink()
    found = cell_trials(sweep)
    assert found.finished == {}
    assert "has more rounds and is not evaluated after round 3" in found.open[0]


def test_seeds_of_other_rounds_are_an_error(sweep: Sweep) -> None:
    sweep.seeds = [0]
    sweep.add(SETTING, "fedavg", {0: [2, 4, 6, 8]})
    sweep.write("a")
    sweep.groups.clear()
    sweep.seeds = [1]
    sweep.add(SETTING, "fedavg", {1: [2, 4, 6, 8]})
    # The record has been extended since
    sweep.group(SETTING, "fedavg")["config"]["train.rounds"] = 2
    sweep.write("b")
    with pytest.raises(UserError, match=r"they differ in train\.rounds: train\.rounds is 3 and 2"):
        cell_trials(sweep)


def test_scales_do_not_mix(sweep: Sweep) -> None:
    sweep.add(SETTING, "fedavg", {0: [2, 4, 6, 8]})
    sweep.write("a", at=1.0)
    sweep.scale = "smoke"
    sweep.groups.clear()
    sweep.group(SETTING, "fedavg")
    sweep.write("b", at=2.0)
    stores = Stores(TrialReader(sweep.runs), ledgers(sweep.runs))
    assert stores.best_scale([sweep.name]) == stores.best_scale(["another"]) == "smoke"
    assert Stores(TrialReader(sweep.runs), []).best_scale([sweep.name]) == "paper"
    assert stores.readings([sweep.name], "smoke") == stores.readings([sweep.name], "large") == ["paper"]
    sweep.write("e" * 16, at=5e9, reading="code")
    sweep.scale = "150"
    sweep.write("f" * 16, at=6e9, reading="one_step")
    stores = Stores(TrialReader(sweep.runs), ledgers(sweep.runs))
    assert stores.readings([sweep.name], "smoke") == ["paper", "code"]
    assert stores.best_scale([sweep.name]) == "smoke", "a single change makes no page"
    assert list(cell_trials(sweep, scale="small").finished) == [0]
    assert list(cell_trials(sweep, scale="smoke").finished) == []


def test_the_papers_own_scale_is_the_best_once_a_trial_of_it_has_finished(sweep: Sweep) -> None:
    sweep.scale = "paper"
    sweep.group(SETTING, "fedavg")
    sweep.write("a" * 16, at=1.0)
    sweep.scale = "150"
    sweep.write("b" * 16, at=2.0)
    assert Stores(TrialReader(sweep.runs), ledgers(sweep.runs)).best_scale([sweep.name]) == "150"
    sweep.scale = "paper"
    sweep.add(SETTING, "fedavg", {0: [2, 4, 6, 8]})
    sweep.write("a" * 16, at=1.0)
    assert Stores(TrialReader(sweep.runs), ledgers(sweep.runs)).best_scale([sweep.name]) == "paper"


def test_portions_of_a_sweep_make_one_table(sweep: Sweep) -> None:
    sweep.seeds = [0]
    sweep.add(SETTING, "fedavg", {0: [2, 4, 6, 8]})
    sweep.write("a")
    sweep.groups.clear()
    sweep.seeds = [1]
    sweep.add(SETTING, "fedavg", {1: [2, 4, 6, 8]})
    sweep.write("b")
    found = cell_trials(sweep)
    assert (list(found.finished), found.seeds, found.complete) == ([0, 1], [0, 1], True)


def test_seeds_of_different_configs_are_an_error_that_names_the_runs(sweep: Sweep) -> None:
    sweep.seeds = [0]
    (first,) = sweep.add(SETTING, "fedavg", {0: [2, 4, 6, 8]})
    sweep.write("a")
    sweep.groups.clear()
    sweep.seeds = [1]
    (second,) = sweep.add(SETTING, "fedavg", {1: [2, 4, 6, 8]}, train__lr=0.5)
    sweep.write("b")
    with pytest.raises(UserError, match="would mix configs") as error:
        cell_trials(sweep)
    for record in (first, second):
        assert record.meta["identity"] in str(error.value)
    assert "train.lr is 0.05 and 0.5" in str(error.value)
    oldest, newest = (re.escape(f"{name}.json (of ") for name in "ab")
    assert re.search(rf"the oldest first: \S*{oldest}\d{{4}}-.* UTC, `pflsweep .*`\); \S*{newest}", str(error.value))


@pytest.mark.parametrize("keys", [({}, {"dataset__augment": "crop_flip"}), ({"dataset__augment": "crop_flip"}, {})])
def test_a_seed_with_a_neutral_value_does_not_mix_with_one_without(sweep: Sweep, keys: tuple[dict, dict]) -> None:
    """Of two seeds the second may have a key that the first's record leaves out."""
    for seed, (stem, more) in enumerate(zip("ab", keys, strict=True)):
        sweep.groups.clear()
        sweep.seeds = [seed]
        sweep.add(SETTING, "fedavg", {seed: [2, 4, 6, 8]}, **more)
        sweep.write(stem)
    with pytest.raises(UserError, match=r"would mix configs.*they differ in dataset\.augment"):
        cell_trials(sweep)


def test_two_runs_for_a_seed_are_an_error(sweep: Sweep) -> None:
    sweep.seeds = [0]
    for stem, lr in (("a", 0.05), ("b", 0.5)):
        sweep.groups.clear()
        sweep.add(SETTING, "fedavg", {0: [2, 4, 6, 8]}, train__lr=lr)
        sweep.write(stem)
    with pytest.raises(UserError, match="seed 0 has two runs"):
        cell_trials(sweep)


def test_the_same_run_in_two_ledgers_is_one(sweep: Sweep) -> None:
    sweep.seeds = [0]
    sweep.add(SETTING, "fedavg", {0: [2, 4, 6, 8]})
    sweep.write("a")
    sweep.write("b")
    assert list(cell_trials(sweep).finished) == [0]


def test_a_cell_names_as_few_commands_as_train_its_seeds(sweep: Sweep) -> None:
    sweep.seeds = [0]
    sweep.add(SETTING, "fedavg", {0: [2, 4, 6, 8]})
    sweep.write("a", at=1.0, command="narrow")
    sweep.write("b", at=2.0, command="wide")
    # Both have the same, and this one is newer
    assert cell_trials(sweep).commands == ["wide"]
    sweep.seeds = [0, 1]
    sweep.add(SETTING, "fedavg", {1: [2, 4, 6, 8]})
    sweep.write("c", at=0.5, command="both seeds")
    # This one has more
    assert cell_trials(sweep).commands == ["both seeds"]
    sweep.seeds = [0]
    sweep.write("e", at=9.0, command="the newest, narrow")
    assert cell_trials(sweep).commands == ["both seeds"], "though that one comes first"
    sweep.seeds = [2]
    sweep.write("d", at=3.0, command="another seed")
    assert cell_trials(sweep).commands == ["another seed", "both seeds"]


def test_a_checkout_may_give_ledgers_any_time(sweep: Sweep) -> None:
    sweep.add(SETTING, "fedavg", {0: [2, 4, 6, 8]})
    files = [sweep.write("a", at=2.0), sweep.write("b", at=1.0)]
    for file, at in zip(files, (5.0, 9.0), strict=True):
        os.utime(file, (at, at))
    assert [ledger.id for ledger in ledgers(sweep.runs)] == ["b", "a"]


def test_versions_of_a_method_do_not_mix(sweep: Sweep) -> None:
    records = sweep.add(SETTING, "fedavg", {0: [2, 4, 6, 8], 1: [2, 4, 6, 8]})
    file = records[1].folder / "meta.json"
    file.write_text(json.dumps({**records[1].meta, "method_version": 2}))
    sweep.write()
    with pytest.raises(UserError, match="differ in method_version: method_version is 1 and 2"):
        cell_trials(sweep)


@pytest.mark.parametrize("limit", [None, 100])
def test_seeds_may_have_other_rows_only_where_each_draws_its_own(sweep: Sweep, limit: int | None) -> None:
    records = sweep.add(SETTING, "fedavg", {0: [2, 4, 6, 8], 1: [2, 4, 6, 8]}, data__limit=limit)
    (records[1].folder / "meta.json").write_text(json.dumps({**records[1].meta, "data_checksum": "other"}))
    sweep.write()
    if limit is None:
        with pytest.raises(UserError, match="differ in data_checksum"):
            cell_trials(sweep)
    else:
        assert sorted(cell_trials(sweep).finished) == [0, 1]


def test_numerics_mix_only_where_they_are_the_same_numbers(sweep: Sweep) -> None:
    """A migrated record does not name its model's family, whose version was 1."""
    records = sweep.add(SETTING, "fedavg", {0: [2, 4, 6, 8], 1: [2, 4, 6, 8]})
    file = records[1].folder / "meta.json"
    file.write_text(json.dumps({**records[1].meta, "numerics": {"engine": 1}}))
    sweep.write()
    assert sorted(cell_trials(sweep).finished) == [0, 1]
    file.write_text(json.dumps({**records[1].meta, "numerics": {"engine": 1, "dense": 2}}))
    with pytest.raises(UserError, match="differ in numerics"):
        cell_trials(sweep)


def test_a_record_that_is_not_what_the_ledger_says_is_an_error(sweep: Sweep) -> None:
    (record,) = sweep.add(SETTING, "fedavg", {0: [2, 4, 6, 8]})
    sweep.group(SETTING, "fedavg")["winner"] = {"train.lr": 0.1}
    sweep.write()
    with pytest.raises(UserError, match=r"train\.lr is 0\.05 there and 0\.1 in"):
        cell_trials(sweep)
    assert record.folder.exists()


def test_damage_of_ledgers_and_files_that_are_none_are_said(sweep: Sweep) -> None:
    sweep.add(SETTING, "fedavg", {0: [2, 4, 6, 8]})
    path = sweep.write()
    other = path.with_stem("other")
    other.write_text(json.dumps({"id": "1", "groups": []}))
    with pytest.raises(UserError, match=r"other\.json is not a ledger of a sweep: KeyError: 'sweep'"):
        ledgers(sweep.runs)
    other.unlink()
    whole = path.read_text()
    path.write_text(whole.replace('"failed_points"', '"else"'))
    with pytest.raises(UserError, match="KeyError: 'failed_points'"):
        ledgers(sweep.runs)
    path.write_text(whole[:100])
    with pytest.raises(UserError, match="is not a ledger of a sweep"):
        ledgers(sweep.runs)


def test_a_damaged_record_is_said(sweep: Sweep) -> None:
    (record,) = sweep.add(SETTING, "fedavg", {0: [2, 4, 6, 8]})
    sweep.write()
    (record.folder / "rounds.parquet").write_bytes(b"x")
    with pytest.raises(UserError, match=r"rounds\.parquet cannot be read"):
        cell_trials(sweep)
    shutil.rmtree(record.folder)
    assert "is not in" in cell_trials(sweep).open[0]
