"""Records that are copied between folders: what is copied, what is kept, and that nothing is trained again."""

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pflsweep.commands.main import main
from pflsweep.config.compose import Config
from pflsweep.records import copy
from pflsweep.records.ledger import ledgers
from pflsweep.records.record import Record
from pflsweep.records.writer import RecordWriter
from pflsweep.trial.build import Parts
from pflsweep.util.errors import UserError
from pflsweep.util.files import locked_folder
from tests.report import records
from tests.report.records import require_same_rounds

pytestmark = pytest.mark.usefixtures("elsewhere")
SMALL = ["partition.clients=4", "model.hidden=[8]", "train.epochs=1"]
TRIAL = [*SMALL, "algorithm=local", "tracking=none"]


def only(runs: str) -> RecordWriter:
    (file,) = Path(runs).glob("*/meta.json")
    return RecordWriter(file.parent)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # MLflow's and SQLAlchemy's own
def test_a_sweep_carried_to_another_machine_trains_nothing_there(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words = [*SMALL, "train.rounds=1", "algorithm=local,fedavg", "tune=grid", "tune.points=2"]
    assert main(["-m", *words, "tracking=none"]) == 0
    assert main(["record", "export", "--out", "out"]) == 0
    assert "6 runs and 1 ledger of sweeps exported to out" in capsys.readouterr().out
    names = {file.name for file in Path("out").rglob("*") if file.is_file() and file.parent.name != "sweeps"}
    assert names == {"meta.json", "status.json", "config.yaml"} | {
        f"{name}.parquet" for name in ("rounds", "clients", "partition")
    }
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(other)
    assert main(["record", "import", "../out"]) == 0
    assert "6 runs and 1 ledger of sweeps imported into runs" in capsys.readouterr().out
    before = {path: path.read_bytes() for path in Path("runs").glob("*/status.json")}
    assert main(["-m", *words]) == 0
    assert len(before) == 6
    assert {path: path.read_bytes() for path in Path("runs").glob("*/status.json")} == before
    from mlflow import MlflowClient

    # MLflow keeps one store per address
    client = MlflowClient(f"sqlite:///{other}/mlflow.db")
    experiment = client.get_experiment_by_name("pflsweep")
    runs = client.search_runs([experiment.experiment_id], "tags.identity LIKE '%'")
    assert {run.data.tags["identity"] for run in runs} == {path.parent.name for path in before}
    assert all(run.info.status == "FINISHED" for run in runs)
    roles = {run.data.tags["identity"]: run.data.tags["role"] for run in runs}
    finals = {
        identity for each in ledgers(Path("runs")) for g in each.groups.values() for identity in g["trials"].values()
    }
    assert {identity for identity, role in roles.items() if role == "final"} == finals
    assert set(roles.values()) == {"final", "search"}


@pytest.mark.filterwarnings("ignore")  # MLflow's and SQLAlchemy's own
def test_an_import_says_the_experiments_to_which_its_runs_go(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed, name in enumerate(("theirs", "another")):
        assert main([*TRIAL, "train.rounds=1", f"seed={seed}", f"tracking.experiment={name}", "paths.runs=out"]) == 0
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///my.db")
    capsys.readouterr()
    monkeypatch.setattr("pflsweep.commands.record.EVERY", 0.0)
    assert main(["record", "import", "out"]) == 0
    out, err = capsys.readouterr()
    assert [line for line in err.splitlines() if "to MLflow:" in line] == [
        "to MLflow: 0 of 2 runs",
        "to MLflow: 1 of 2 runs",
    ]
    (line,) = [line for line in out.splitlines() if line.startswith("Runs go to MLflow")]
    assert "sqlite:///my.db (MLFLOW_TRACKING_URI), experiments another, theirs as their records say" in line
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{Path('my.db').absolute()}")
    found = {each.name: len(client.search_runs([each.experiment_id])) for each in client.search_experiments()}
    assert found == {"Default": 0, "theirs": 1, "another": 1}
    assert "2 runs sent to MLflow" in out
    # The runs are there, and a store that is new lacks them
    for store, sent in (("my", 0), ("new", 2)):
        assert main(["record", "import", "out", "--uri", f"sqlite:///{store}.db"]) == 0
        assert f"2 there already\n{sent} runs sent to MLflow" in capsys.readouterr().out


def test_an_import_whose_store_cannot_be_used_copies_nothing(capsys: pytest.CaptureFixture) -> None:
    assert main([*TRIAL, "train.rounds=1", "paths.runs=out"]) == 0
    Path("diary.db").write_text("this is a diary\n" * 100)
    capsys.readouterr()
    assert main(["record", "import", "out", "--uri", "sqlite:///diary.db"]) == 2
    said = capsys.readouterr().err
    assert "not a database" in said
    assert "Or choose another store with --uri sqlite:///other.db, or import without MLflow: --no-tracking." in said
    assert "tracking=" not in said
    assert not Path("runs").exists()


def test_what_is_longer_or_whole_stays(capsys: pytest.CaptureFixture) -> None:
    assert main([*TRIAL, "train.rounds=1"]) == 0
    shutil.copytree("runs", "short")
    assert main([*TRIAL, "train.rounds=3"]) == 0
    take = ["record", "import", "--no-tracking", "--runs"]
    assert main([*take, "runs", "short"]) == 0
    assert "0 runs and 0 ledgers of sweeps imported into runs, 1 there already" in capsys.readouterr().out
    assert only("runs").done == 3
    assert main([*take, "short", "runs"]) == 0
    assert only("short").done == 3
    # Models of one round do not stay
    assert not (only("short").folder / "models.pt").exists()
    rounds = only("short").folder / "rounds.parquet"
    rounds.write_bytes(rounds.read_bytes()[:50])
    assert main([*take, "short", "runs"]) == 0
    pd.testing.assert_frame_equal(only("short").rounds, only("runs").rounds)
    assert not Path("mlflow.db").exists()


@pytest.mark.parametrize("through", ["folder", "archive"])
def test_a_longer_record_keeps_the_scores_at_which_the_shorter_one_ended(
    through: str, capsys: pytest.CaptureFixture
) -> None:
    """The command that had trained the shorter one was told that its last round was not evaluated."""
    words = [*TRIAL, "partition.clients=5", "data.new=1", "data.new_epochs=1", "train.eval_every=4"]
    for rounds, runs in ((1, "A"), (2, "A"), (4, "B")):
        assert main([*words, f"train.rounds={rounds}", f"paths.runs={runs}"]) == 0

    def tables(rounds: int) -> list[pd.DataFrame]:
        record = Record.as_of(only("A").folder, rounds)
        scores = pd.DataFrame([record.last_row]).filter(like="personal_")
        return [record.clients, record.new_clients, scores]

    before = {rounds: tables(rounds) for rounds in (1, 2)}
    if through == "archive":
        for runs in ("A", "B", "B"):
            assert main(["record", "export", "--runs", runs, "--out", "x.zip"]) == 0
        shutil.rmtree("A")
        assert main(["record", "import", "x.zip", "--runs", "A", "--no-tracking"]) == 0
    else:
        assert main(["record", "import", "B", "--runs", "A", "--no-tracking"]) == 0
    assert only("A").scored == [1, 2, 4]
    pd.testing.assert_frame_equal(only("A").rounds, only("B").rounds)
    capsys.readouterr()
    for rounds, known in before.items():
        assert main([*words, f"train.rounds={rounds}", "paths.runs=A"]) == 0
        assert f"trained already, 4 rounds, reported as of round {rounds}" in capsys.readouterr().err
        for table, old in zip(tables(rounds), known, strict=True):
            assert len(old)
            pd.testing.assert_frame_equal(table, old)


@pytest.mark.parametrize("name", ["ends_rounds.parquet", "newcomers.parquet", "study.parquet"])
def test_a_damaged_file_that_the_copy_does_not_have_goes(name: str) -> None:
    """It stayed, so that no import could replace the damaged record."""
    records.finished(Path("runs"), "fedavg", [1, 2, 3, 4])
    shutil.copytree("runs", "damaged")
    next(Path("damaged").glob("*/meta.json")).with_name(name).write_bytes(b"garbage")
    assert main(["record", "import", "runs", "--runs", "damaged", "--no-tracking"]) == 0
    assert only("damaged").done == 3


def test_a_longer_run_that_was_stopped_stays_with_its_checkpoint(capsys: pytest.CaptureFixture) -> None:
    assert main([*TRIAL, "train.rounds=1"]) == 0
    assert main(["record", "export", "--out", "out"]) == 0
    assert main([*TRIAL, "train.rounds=3"]) == 0
    only("runs").set_status(status="interrupted")
    assert main(["record", "import", "out", "--no-tracking"]) == 0
    assert "0 runs and 0 ledgers of sweeps imported into runs, 1 there already" in capsys.readouterr().out
    assert (only("runs").done, (only("runs").folder / "checkpoint.pt").exists()) == (3, True)


@pytest.mark.slow
def test_a_checkpoint_stays_where_rounds_can_follow_it(capsys: pytest.CaptureFixture) -> None:
    """A checkpoint stays for a run that was to become longer, and for one with a damaged table whose backup is
    imported.
    """
    assert main([*TRIAL, "train.rounds=2"]) == 0
    assert main(["record", "export", "--out", "out"]) == 0
    folder = only("runs").folder
    # Killed before the next checkpoint
    only("runs").set_status(status="interrupted", target=4)
    (folder / "rounds.parquet").write_bytes(b"PAR1")
    assert main(["record", "import", "out", "--no-tracking"]) == 0
    assert (only("runs").done, only("runs").models_round) == (2, 2)
    capsys.readouterr()
    assert main([*TRIAL, "train.rounds=4"]) == 0
    assert "goes on after round 2" in capsys.readouterr().err
    assert main([*TRIAL, "train.rounds=4", "paths.runs=anew"]) == 0
    require_same_rounds(only("runs").rounds, only("anew").rounds)


@pytest.mark.slow
def test_a_checkpoint_of_fewer_rounds_stays_too(capsys: pytest.CaptureFixture) -> None:
    assert main([*TRIAL, "train.rounds=1"]) == 0
    shutil.copytree("runs", "behind")
    assert main([*TRIAL, "train.rounds=2"]) == 0
    assert main(["record", "import", "runs", "--runs", "behind", "--no-tracking"]) == 0
    folder = only("behind").folder
    assert (only("behind").done, (folder / "checkpoint.pt").exists(), (folder / "models.pt").exists()) == (
        2,
        True,
        False,
    )
    assert main([*TRIAL, "train.rounds=2", "paths.runs=behind"]) == 0
    assert "its models were not saved" in capsys.readouterr().err
    assert main([*TRIAL, "train.rounds=3", "paths.runs=behind"]) == 0
    assert "goes on after round 1" in capsys.readouterr().err
    assert (only("behind").done, only("behind").models_round) == (3, 3)


@pytest.mark.parametrize(("place", "flag"), [("behind", "--runs"), ("temporary", "TMPDIR")])
def test_a_copy_that_fails_half_way_leaves_what_was_there(
    place: str, flag: str, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main([*TRIAL, "train.rounds=1"]) == 0
    shutil.copytree("runs", "behind")
    assert main([*TRIAL, "train.rounds=2"]) == 0
    before = {file.name: file.read_bytes() for file in only("behind").folder.iterdir()}
    Path("temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(Path("temporary").absolute()))
    written, write = [], Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if place in path.parts:
            written.append(path)
        if len(written) == 3:
            raise OSError(28, "No space left on device")
        return write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        assert main(["record", "import", "runs", "--runs", "behind", "--no-tracking"]) == 2
    assert f"Make room, or choose another folder ({flag})" in capsys.readouterr().err
    assert {file.name: file.read_bytes() for file in only("behind").folder.iterdir()} == before


def test_a_place_that_cannot_be_written_to_is_chosen_by_its_flag(capsys: pytest.CaptureFixture) -> None:
    assert main([*TRIAL, "train.rounds=1"]) == 0
    Path("file").touch()
    assert main(["record", "export", "--out", "file"]) == 2
    assert "Choose another folder: --out." in capsys.readouterr().err


@pytest.mark.slow
def test_a_ledger_of_trials_that_failed_gives_way_to_that_of_their_retry(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pflsweep.trial.run

    def failed() -> list[dict[str, str]]:
        (file,) = Path("out/sweeps").glob("*.json")
        return [group["failed"] for group in json.loads(file.read_text())["groups"]]

    command = ["-m", *TRIAL, "train.rounds=1", "seed=0,1"]
    build, export = pflsweep.trial.run.build, ["record", "export", "--out", "out"]

    def broken(config: Config, *more: Any) -> Parts:
        if config.values["seed"]:
            raise UserError("a full disk")
        return build(config, *more)

    monkeypatch.setattr(pflsweep.trial.run, "build", broken)
    assert main(command) == 2
    assert main(export) == 0
    assert failed() == [{"1": "a full disk"}]
    shutil.copytree("out", "old")
    monkeypatch.setattr(pflsweep.trial.run, "build", build)
    assert main([*command, "retry=true"]) == 0
    assert main(export) == 0
    assert failed() == [{}]
    assert main(export) == 0
    assert "0 runs and 0 ledgers of sweeps exported" in capsys.readouterr().out
    assert main(["record", "import", "old", "--runs", "out", "--no-tracking"]) == 0
    assert failed() == [{}], "nor does the older one take its place"


@pytest.mark.slow
@pytest.mark.parametrize("apart", [False, True])
def test_ledgers_of_one_plan_from_two_machines_are_joined(
    apart: bool, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """apart: the searches were won by different points, whose final trials do not belong together."""
    import pflsweep.trial.run

    build = pflsweep.trial.run.build
    # Each machine fails at the other's seed
    for machine in (0, 1):

        def broken(config: Config, *more: Any, machine: int = machine) -> Parts:
            if config.values["seed"] != machine:
                raise UserError("a full disk")
            return build(config, *more)

        monkeypatch.setattr(pflsweep.trial.run, "build", broken)
        assert main(["-m", *TRIAL, "train.rounds=1", "seed=0,1", f"paths.runs=machine{machine}"]) == 2
    if apart:
        (file,) = Path("machine1/sweeps").glob("*.json")
        told = json.loads(file.read_text())
        told["groups"][0]["winner"] = {"train.lr": 0.1}
        file.write_text(json.dumps(told))
    for machine in (0, 1, 1):
        assert main(["record", "import", f"machine{machine}", "--no-tracking"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "imported" in line]
    assert [line.partition(" of sweeps")[0] for line in lines] == [
        "1 run and 1 ledger", "1 run and 1 ledger", "0 runs and 0 ledgers",
    ]  # fmt: skip
    (group,) = json.loads(next(Path("runs/sweeps").glob("*.json")).read_text())["groups"]
    assert list(group["trials"]) == (["1"] if apart else ["0", "1"])
    assert group["failed"] == ({"0": "a full disk"} if apart else {})


def group(winner: float, trials: str, points: int = 3, without_result: int = 0, **failed: str) -> dict[str, Any]:
    return records.group(
        "a", "local", winner={"train.lr": winner}, points_settled=points, without_result=["it broke"] * without_result,
        trials={seed: f"run{seed}" for seed in trials}, failed=failed, config={}, winner_value=0.5, points=3,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "winner", "trials", "failed"),
    [
        # Of equal searches, the one with more final trials
        (group(0.1, "01"), group(0.2, "0"), 0.1, "01", []),
        # A better search counts more than more final trials
        (group(0.1, "01", without_result=1), group(0.2, "0"), 0.2, "0", []),
        # Although it is the older one
        (group(0.2, "0"), group(0.1, "01", without_result=1), 0.2, "0", []),
        # Of equal ones, the newer
        (group(0.1, "0"), group(0.2, "0"), 0.2, "0", []),
        # Failures are merged
        (group(0.1, "0", **{"2": "full"}), group(0.1, "1", **{"0": "full"}), 0.1, "01", ["2"]),
    ],
)
def test_what_is_joined_of_two_ledgers(
    old: dict[str, Any], new: dict[str, Any], winner: float, trials: str, failed: list[str]
) -> None:
    told = copy._merge_groups(old, new)
    assert told["winner"] == {"train.lr": winner}
    assert ("".join(sorted(told["trials"])), list(told["failed"])) == (trials, failed)


def test_final_trials_of_a_ledger_whose_winner_loses_are_superseded() -> None:
    here = {**group(0.1, "0"), "trials": {"0": "a", "1": "b"}, "superseded": ["old"]}
    there = {**group(0.2, "0"), "trials": {"0": "c"}, "superseded": ["b"]}
    joined = copy._merge_groups(there, here)
    assert (joined["trials"], joined["superseded"]) == ({"0": "a", "1": "b"}, ["c", "old"])
    alike = copy._merge_groups(here, {**here, "trials": {"2": "d"}, "superseded": ["older"]})
    assert (alike["trials"], alike["superseded"]) == ({"0": "a", "1": "b", "2": "d"}, ["old", "older"])


def test_groups_are_joined_by_setting_and_method_in_whatever_order_they_stand(tmp_path: Path) -> None:
    other = {**group(0.1, "0"), "method": "fedavg"}
    for machine, written, groups in (("one", 2, [group(0.1, "0"), other]), ("two", 1, [other, group(0.1, "1")])):
        folder = tmp_path / machine / "sweeps"
        folder.mkdir(parents=True)
        (folder / "plan.json").write_text(json.dumps(records.ledger(groups, written=written)))
    (two,) = ledgers(tmp_path / "two")
    content = json.loads(two.path.read_text())
    assert copy._merge_ledger(two, content, tmp_path / "one", "--out")
    (joined,) = ledgers(tmp_path / "one")
    assert {method: sorted(group["trials"]) for (_, method), group in joined.groups.items()} == {
        "local": ["0", "1"],
        "fedavg": ["0"],
    }
    assert joined.written == 2
    assert not copy._merge_ledger(two, content, tmp_path / "one", "--out")


def unfinished() -> None:
    only("runs").set_status(status="interrupted")


def renamed() -> None:
    only("runs").folder.rename("runs/other")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "words", "said"),
    [
        (unfinished, ["export", "--out", "out"], "no finished run to export in 'runs'"),
        (unfinished, ["import", "runs", "--runs", "more"], "no finished run to import in 'runs'"),
        (renamed, ["import", "runs", "--runs", "more"], "give the folder its name back"),
        (None, ["import", "away"], "no folder or archive 'away'. `pflsweep record export --out DIR`"),
        (None, ["export"], "--out"),
        (None, ["exprt"], "'exprt'"),
        (None, ["export", "fedavg-*", "--out", "out"], "No run 'fedavg-*'"),
    ],
)
def test_what_cannot_be_carried(
    spoil: Callable[[], None] | None, words: list[str], said: str, capsys: pytest.CaptureFixture
) -> None:
    assert main([*TRIAL, "train.rounds=1"]) == 0
    if spoil is not None:
        spoil()
    assert main(["record", *words]) == 2
    assert said in capsys.readouterr().err
    assert not Path("out").exists()
    assert not Path("more").exists()


def test_a_trial_that_is_being_trained_is_left_alone(capsys: pytest.CaptureFixture) -> None:
    assert main([*TRIAL, "train.rounds=1"]) == 0
    shutil.copytree("runs", "short")
    assert main([*TRIAL, "train.rounds=2"]) == 0
    folder, other = only("short").folder, records.finished(Path("runs"), "fedavg", [1, 2, 3, 4])
    with locked_folder(folder.absolute()):
        assert main(["record", "import", "runs", "--runs", "short", "--no-tracking"]) == 2
    said = capsys.readouterr()
    assert "1 run and 0 ledgers of sweeps imported into short\n" in said.out
    assert f"left out: {folder}: another process trains or copies this trial. Repeat the command" in said.err
    assert (Record(folder).done, Record("short" / other.folder.relative_to("runs")).done) == (1, 3)


def test_some_runs_alone_are_exported_without_ledgers(capsys: pytest.CaptureFixture) -> None:
    assert main(["-m", *TRIAL, "train.rounds=1", "seed=0,1"]) == 0
    assert main(["record", "export", "*-1", "--out", "out"]) == 0
    assert "1 run and 0 ledgers" in capsys.readouterr().out
    assert only("out").meta["seed"] == 1
