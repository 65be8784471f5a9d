"""Records of format 0, as pflsweep 0.1 wrote them, are migrated to the present format."""

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from pflsweep.commands.main import main
from pflsweep.records.content import FORMAT
from pflsweep.records.ledger import ledgers
from pflsweep.records.migrate import migrate
from pflsweep.records.record import Record
from pflsweep.records.select import choose
from pflsweep.util import files
from pflsweep.util.errors import UserError

OLD = ("52dd8077f66b724e", "b3c99c90f1f72654")  # Ditto of FedALA's table 2 on MNIST, two seeds


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Return a folder of two committed records of format 0 and their ledger."""
    with zipfile.ZipFile(Path(__file__).with_name("format0.zip")) as archive:
        archive.extractall(tmp_path / "runs")
    return tmp_path / "runs"


def test_older_records_are_refused_with_the_command_that_mends_it(runs: Path) -> None:
    with pytest.raises(UserError, match=r"older pflsweep \(format 0, not 1\)\. `pflsweep record migrate .*runs`"):
        Record(runs / OLD[0])
    with pytest.raises(UserError, match=r"json was written by an older pflsweep.*record migrate .*runs`"):
        ledgers(runs)
    (said,) = choose(runs, []).damaged
    assert said.endswith("brings all that is in this folder up to date. 2 records there are of another format.")


def test_newer_records_are_refused(runs: Path) -> None:
    migrate(runs)
    (folder, _) = (file.parent for file in runs.glob("*/meta.json"))
    files.write_json(folder / "meta.json", {**files.read_json(folder / "meta.json"), "format": FORMAT + 1})
    with pytest.raises(UserError, match=r"newer pflsweep \(format 2, not 1\): update pflsweep"):
        Record(folder)


def test_a_folder_is_migrated_by_a_command(runs: Path, capsys: pytest.CaptureFixture) -> None:
    tables = {old: (runs / old / "rounds.parquet").read_bytes() for old in OLD}
    assert main(["record", "migrate", str(runs)]) == 0
    assert "2 records and 1 ledger of sweeps" in capsys.readouterr().out
    records = [Record(file.parent) for file in runs.glob("*/meta.json")]
    assert {record.meta["migrated_from"] for record in records} == set(OLD)
    for record in records:
        record.verify()
        assert record.folder.name == record.meta["identity"] not in OLD
        assert record.config["algorithm"] == {"_option_": "ditto", "lam": 1.0, "own_epochs": None}
        assert (record.folder / "rounds.parquet").read_bytes() == tables[record.meta["migrated_from"]]
    (ledger,) = ledgers(runs)
    (group,) = ledger.groups.values()
    assert set(group["trials"].values()) == {record.meta["identity"] for record in records}
    assert all(group["config"].get(key, value) == value for key, value in records[0].values.items() if key != "seed")
    assert main(["record", "migrate", str(runs)]) == 0
    assert "0 records and 0 ledgers" in capsys.readouterr().out


def test_files_that_were_not_committed_go_along(runs: Path) -> None:
    folder, weights = runs / OLD[0], torch.ones(2)
    rounds = files.read_json(folder / "status.json")["rounds"]
    state = {"round": rounds, "last": torch.zeros(3), "study": {"rows": [1]}}
    # The state from before there were blocks and private training
    state["clients"] = {"ids": torch.arange(2), "rows": [weights]}
    torch.save({"identity": OLD[0], "simulation": state}, folder / "checkpoint.pt")
    torch.save({"global": None, "personal": {0: {"w": weights}}}, folder / "models.pt")
    files.write_parquet(folder / "newcomers.parquet", pd.DataFrame({"epoch": [0], "n": [1], "correct": [1]}))
    migrate(runs)
    record = next(
        r for r in map(Record, (f.parent for f in runs.glob("*/meta.json"))) if r.meta["migrated_from"] == OLD[0]
    )
    checkpoint = record.checkpoint()
    assert checkpoint is not None
    assert (checkpoint.round, checkpoint.study) == (rounds, {"rows": [1]})
    ((block,),) = checkpoint.simulation["clients"]["rows"]
    assert torch.equal(block, weights)
    assert [part.tolist() for part in checkpoint.simulation["spent"]] == [[0, 0, 0]] * 3
    assert torch.equal(record.models()["personal"][0]["w"], weights)
    assert len(record.new_clients) == 1


def test_what_was_killed_goes_on(runs: Path) -> None:
    whole = runs.with_name("whole")
    shutil.copytree(runs, whole)
    migrate(whole)
    new = {files.read_json(file)["migrated_from"]: file.parent for file in whole.glob("*/meta.json")}
    # Killed before the old folder was removed
    shutil.copytree(new[OLD[0]], runs / new[OLD[0]].name)
    shutil.copytree(new[OLD[1]], runs / new[OLD[1]].name)
    # Killed before meta.json was written
    (runs / new[OLD[1]].name / "meta.json").unlink()
    migrate(runs)
    assert contents(runs) == contents(whole)


@pytest.mark.parametrize(("rounds", "kept"), [(1, False), (10_000, True)])
def test_of_an_old_record_and_one_that_was_trained_anew_the_longer_stays(runs: Path, rounds: int, kept: bool) -> None:
    """The shorter one stayed, and the ledger named a record that was gone."""
    whole = runs.with_name("whole")
    shutil.copytree(runs, whole)
    migrate(whole)
    new = {files.read_json(file)["migrated_from"]: file.parent for file in whole.glob("*/meta.json")}[OLD[0]]
    anew = runs / new.name
    shutil.copytree(new, anew)
    meta = {key: value for key, value in files.read_json(anew / "meta.json").items() if key != "migrated_from"}
    files.write_json(anew / "meta.json", {**meta, "name": "trained anew"})
    status = files.read_json(anew / "status.json")
    files.write_json(anew / "status.json", {**status, "rounds": rounds, "status": "interrupted"})
    assert migrate(runs)[:2] == (2, 1)
    migrated = files.read_json(anew / "meta.json")
    assert (migrated["name"] == "trained anew") == kept
    assert migrated["migrated_from"] == OLD[0]
    assert files.read_json(anew / "status.json")["rounds"] == (rounds if kept else status["rounds"])
    (ledger,) = ledgers(runs)
    assert new.name in {identity for group in ledger.groups.values() for identity in group["trials"].values()}


def contents(folder: Path) -> dict[str, Any]:
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != "lock"]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def test_a_record_whose_config_was_changed_stays_as_it_is(runs: Path, capsys: pytest.CaptureFixture) -> None:
    config = files.read_yaml(runs / OLD[0] / "config.yaml")
    config["train"]["lr"] = 12.5
    files.write_text(runs / OLD[0] / "config.yaml", json.dumps(config))
    assert main(["record", "migrate", str(runs)]) == 2
    assert f"left as it is: {runs / OLD[0]} is not migrated: ValueError: its identity is not" in capsys.readouterr().err
    assert (runs / OLD[0] / "meta.json").exists()
    (ledger,) = (json.loads(file.read_text()) for file in runs.glob("sweeps/*.json"))
    assert OLD[0] in ledger["groups"][0]["trials"].values()


def test_a_damaged_record_stays_as_it_is(runs: Path, capsys: pytest.CaptureFixture) -> None:
    before = contents(runs / OLD[0])
    (runs / OLD[0] / "clients.parquet").write_bytes(before["clients.parquet"][:-9])
    before = contents(runs / OLD[0])
    assert main(["record", "migrate", str(runs)]) == 2
    assert f"left as it is: {runs / OLD[0] / 'clients.parquet'} cannot be read" in capsys.readouterr().err
    assert contents(runs / OLD[0]) == before
    assert len(list(runs.glob("*/meta.json"))) == 2, "no half of a migrated record"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("meta.json", b"garbage", "meta.json cannot be read (JSONDecodeError"),
        ("config.yaml", b"a: &a {b: *a}", " is not migrated: ValueError: an alias. Put the right file back"),
        ("status.json", b"garbage", "status.json is not migrated: JSONDecodeError"),
        ("status.json", b"{}", "status.json is not migrated: KeyError: 'status'"),
        ("checkpoint.pt", b"garbage", "checkpoint.pt is not migrated: "),
        ("models.pt", b"garbage", "models.pt is not migrated: "),
        ("newcomers.parquet", b"garbage", "newcomers.parquet is not migrated: ArrowInvalid"),
    ],
)
def test_a_damaged_record_is_named_and_the_others_are_migrated(
    runs: Path, name: str, content: bytes, said: str, capsys: pytest.CaptureFixture
) -> None:
    (runs / OLD[0] / name).write_bytes(content)
    before = contents(runs / OLD[0])
    for records in (1, 0):
        assert main(["record", "migrate", str(runs)]) == 2
        told = capsys.readouterr()
        s = "s" * (records != 1)
        assert f"{records} record{s} and {records} ledger{s} of sweeps" in told.out
        (line,) = told.err.splitlines()
        assert line.startswith(f"left as it is: {runs / OLD[0]}")
        assert said in line
    assert contents(runs / OLD[0]) == before
    # The damaged one, the other one, and the ledger's: no half of a migrated record
    assert len(list(runs.iterdir())) == 3


@pytest.mark.parametrize("content", ['{"sweep": "x"}', "garbage", '{"sweep": "x", "groups": [], "tune": {}}'])
def test_a_damaged_ledger_is_named_and_the_others_are_migrated(
    runs: Path, content: str, capsys: pytest.CaptureFixture
) -> None:
    file = runs / "sweeps" / f"{'0' * 16}.json"
    file.write_text(content)
    assert main(["record", "migrate", str(runs)]) == 2
    told = capsys.readouterr()
    assert "2 records and 1 ledger" in told.out
    assert f"left as it is: {file}" in told.err
    assert file.read_text() == content


def test_a_record_trained_anew_stays_where_the_older_one_is_damaged(runs: Path) -> None:
    """It was removed with the half of the migrated one."""
    whole = runs.with_name("whole")
    shutil.copytree(runs, whole)
    migrate(whole)
    new = {files.read_json(file)["migrated_from"]: file.parent for file in whole.glob("*/meta.json")}[OLD[0]]
    shutil.copytree(new, runs / new.name)
    status = files.read_json(new / "status.json")
    files.write_json(runs / new.name / "status.json", {**status, "status": "interrupted"})
    before = contents(runs / new.name)
    (runs / OLD[0] / "clients.parquet").write_bytes(b"garbage")
    assert len(migrate(runs).left) == 1
    assert contents(runs / new.name) == before


def test_a_linked_record_is_migrated_into_the_folder_of_runs(runs: Path) -> None:
    moved = runs.with_name("disk")
    (runs / OLD[0]).rename(moved)
    (runs / OLD[0]).symlink_to(moved)
    before = contents(moved)
    assert migrate(runs) == (2, 1, [])
    assert not (runs / OLD[0]).is_symlink()
    assert contents(moved) == before
    assert OLD[0] in {Record(file.parent).meta["migrated_from"] for file in runs.glob("*/meta.json")}


def test_what_is_no_folder_of_runs_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no folder of runs"):
        migrate(tmp_path / "none")
