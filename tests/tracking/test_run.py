"""Runs in a real MLflow store. Creating one takes seconds, so each test gets a copy."""

import json
import logging
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from pflsweep.commands import ui
from pflsweep.commands.main import main
from pflsweep.config.options import Tracking
from pflsweep.sweep.status import summary
from pflsweep.tracking import run as tracking_run
from pflsweep.tracking import sweep_run
from pflsweep.tracking.address import uri_of
from pflsweep.tracking.lookup import allowed_keys
from pflsweep.tracking.overview import SweepRun
from pflsweep.tracking.store import opened
from pflsweep.util.errors import UserError
from tests.report.records import config, create, finished, train

# Warnings of MLflow and SQLAlchemy
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="session")
def empty(tmp_path_factory):
    """Create an empty store."""
    folder = tmp_path_factory.mktemp("store")
    with opened(Tracking.of({"uri": f"sqlite:///{folder / 'mlflow.db'}", "experiment": "unused"})):
        pass
    return folder / "mlflow.db"


@pytest.fixture
def store(tmp_path, empty, monkeypatch):
    """Copy the store into the working directory."""
    shutil.copy(empty, tmp_path / "mlflow.db")
    monkeypatch.chdir(tmp_path)
    for name in (tracking_run.SWEEP, "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    return Store()


class Store:
    def __init__(self):
        self.options = {"backend": "mlflow", "uri": None, "experiment": "pflsweep", "every": 0.0}

    @property
    def client(self):
        from mlflow import MlflowClient

        return MlflowClient(uri_of(Tracking.of(self.options)))

    def runs(self):
        found = self.client.get_experiment_by_name("pflsweep")
        return self.client.search_runs([found.experiment_id], order_by=["attributes.start_time"])

    def steps(self, run, metric):
        return sorted(point.step for point in self.client.get_metric_history(run.info.run_id, metric))

    def table(self, run, file):
        path = self.client.download_artifacts(run.info.run_id, file)
        content = json.loads(Path(path).read_text())
        return pd.DataFrame(content["data"], columns=content["columns"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "folder"),
    [("team/../50% a b?#", "team%2F..%2F50%25 a b?#"), ("..", "%2E%2E"), ("联" * 60, None)],
)
def test_an_experiment_of_any_name_has_one_folder(store, tmp_path, name, folder):
    with opened(Tracking.of({**store.options, "experiment": name})) as (client, experiment):
        run = client.create_run(experiment)
        client.log_text(run.info.run_id, "text", "file.txt")
        assert Path(client.download_artifacts(run.info.run_id, "file.txt")).read_text() == "text"
    assert [made.name for made in (tmp_path / "mlruns").iterdir()] == [folder or name]


def test_a_run_from_beginning_to_end(store, tmp_path):
    record = create(tmp_path / "runs", "pgfed")
    with tracking_run.open_run(record.tracking, record) as run:
        train(record, [[1, 2, 3, 4]])
        run.log_rounds(record)
        (shown,) = store.runs()
        assert shown.info.status == "RUNNING"
        # While the trial runs
        assert shown.data.metrics["personal/accuracy"] == pytest.approx(0.25)
        train(record, [[3, 4, 5, 6], [2, 4, 4, 6]])
        record.set_status(status="finished")
        run.finish(record, "finished")
    (shown,) = store.runs()
    assert shown.info.status == "FINISHED"
    assert shown.info.run_name == "pgfed-digits-dirichlet-0"
    assert store.steps(shown, "personal/accuracy") == store.steps(shown, "train/seconds") == [1, 2, 3]
    metrics = shown.data.metrics
    assert metrics["global/worst10"] == pytest.approx(0.1)
    assert metrics["method/norm"] == pytest.approx(1 / 3)
    assert metrics["summary/accuracy"] == pytest.approx(0.4)
    assert (metrics["summary/best_accuracy"], metrics["summary/best_round"]) == (pytest.approx(0.45), 2)
    assert metrics["summary/floats_per_client_and_round"] == 2000
    tags, params = shown.data.tags, shown.data.params
    assert (tags["method"], tags["seed"], tags["commit"]) == ("pgfed", "0", "0123456789abcdef")
    assert tags["identity"] == record.meta["identity"]
    assert tags["record"] == str(record.folder.resolve())
    assert (params["algorithm.mu"], params["train.lr"], params["model.hidden"]) == ("0.1", "0.05", "[200]")
    assert tags["train.rounds"] == "3"
    clients = store.table(shown, "clients.json").set_index("client")
    assert list(clients["personal accuracy"]) == [0.2, 0.4, 0.4, 0.6]
    assert list(clients["train"]) == [20, 40, 20, 40]
    files = {f.path for f in store.client.list_artifacts(shown.info.run_id, "figures")}
    assert files == {f"figures/{name}.png" for name in ("labels", "accuracy", "A")}
    journal = sqlite3.connect(tmp_path / "mlflow.db").execute("pragma journal_mode").fetchone()
    assert journal == ("wal",)


def test_every_view_and_target_is_shown(store, tmp_path):
    record = create(tmp_path / "runs")
    with tracking_run.open_run(record.tracking, record) as run:
        train(record, [[1, 2, 3, 4]], views=("personal", "personal_subset", "trained_all"))
        run.finish(record, "finished")
    (shown,) = store.runs()
    metrics = shown.data.metrics
    assert metrics["personal/accuracy"] == pytest.approx(0.25)
    assert metrics["personal/subset_accuracy"] == metrics["trained/all_accuracy"] == pytest.approx(0.125)
    assert metrics["personal/f1"] == pytest.approx(0.125)
    table = store.table(shown, "clients.json")
    assert table["personal accuracy"].tolist() == [0.1, 0.2, 0.3, 0.4]
    assert table["personal S-acc accuracy"].tolist() == pytest.approx([0.05, 0.1, 0.15, 0.2], abs=0.06)
    assert len(table) == 4


@pytest.mark.slow
def test_killed_and_continued_no_step_is_doubled(store, tmp_path):
    """The trial is killed after round 3 was sent, with the checkpoint at round 1."""
    record = create(tmp_path / "runs", rounds=4)
    train(record, [[1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3]])
    killed = tracking_run.open_run(record.tracking, record)
    # Killed here, so its status stays RUNNING
    killed.log_rounds(record)
    record.truncate(1)
    with tracking_run.open_run(record.tracking, record) as run:
        train(record, [[2, 2, 2, 2]])
        run.log_rounds(record)
        train(record, [[3, 3, 3, 3], [4, 4, 4, 4]])
        run.finish(record, "finished")
    (shown,) = store.runs()
    assert store.steps(shown, "personal/accuracy") == [1, 2, 3, 4]
    assert shown.info.status == "FINISHED"


@pytest.mark.slow
def test_an_extension_goes_on_in_the_same_run(store, tmp_path):
    record = finished(tmp_path / "runs", "fedavg", [2, 4, 6, 8])
    # Finishing twice adds nothing
    for _ in range(2):
        with tracking_run.open_run(record.tracking, record) as run:
            run.finish(record, "finished")
    longer = config("fedavg", 0, 5, device="cpu")
    record.config = longer
    record.begin()
    with tracking_run.open_run(record.tracking, record) as run:
        (shown,) = store.runs()
        assert (shown.info.status, shown.data.tags["train.rounds"]) == ("RUNNING", "5")
        assert (shown.data.params["device"], shown.data.tags["device"]) == ("auto", "cpu")
        train(record, [[4, 4, 4, 4], [6, 6, 6, 6]])
        run.finish(record, "finished")
    (shown,) = store.runs()
    assert store.steps(shown, "train/seconds") == [1, 2, 3, 4, 5]
    assert store.steps(shown, "summary/accuracy") == [3, 5]
    assert len(store.table(shown, "clients.json")) == 4


@pytest.mark.slow
def test_a_round_that_turns_out_to_be_the_last_gets_its_scores_and_its_summary(store, tmp_path):
    """The trial is stopped after round 3 with eval_every=2, then given again with train.rounds=3."""
    record = train(create(tmp_path / "runs"), [[1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3]])
    scores = {key: value for key, value in record.last_row.items() if key.startswith(("personal_", "global_"))}
    clients = record.clients_in(3)
    record.set_scores_apart(lambda t: t == 2)
    with tracking_run.open_run(record.tracking, record) as run:
        run.finish(record, "interrupted")
    (shown,) = store.runs()
    assert "summary/accuracy" not in shown.data.metrics, "it may go on, and would have a second one at its end"
    assert store.steps(shown, "personal/accuracy") == [2]
    record.amend(scores, clients)
    for _ in range(2):
        with tracking_run.open_run(record.tracking, record) as run:
            run.finish(record, "finished")
    (shown,) = store.runs()
    assert shown.data.metrics["summary/accuracy"] == pytest.approx(0.3)
    assert store.steps(shown, "personal/accuracy") == store.steps(shown, "global/accuracy") == [2, 3]
    assert store.steps(shown, "train/seconds") == [1, 2, 3]
    assert store.steps(shown, "summary/best_round") == [3], "what is the same is not said again"


@pytest.mark.slow
@pytest.mark.parametrize(("how", "status"), [("failed", "FAILED"), ("interrupted", "KILLED")])
def test_how_a_run_ended(how, status, store, tmp_path):
    record = train(create(tmp_path / "runs"), [[1, 1, 1, 1]])
    with tracking_run.open_run(record.tracking, record) as run:
        run.finish(record, how)
    with tracking_run.open_run(record.tracking, record):
        assert store.runs()[0].info.status == "RUNNING"
    with pytest.raises(KeyboardInterrupt), tracking_run.open_run(record.tracking, record):
        raise KeyboardInterrupt
    assert store.runs()[0].info.status == "KILLED"
    with tracking_run.open_run(record.tracking, record) as run:
        run.finish(record, how)
    assert store.runs()[0].info.status == status


def test_batches_wait_for_their_time(store, tmp_path):
    record = create(tmp_path / "runs", tracking__every=60.0)
    with tracking_run.open_run(record.tracking, record) as run:
        train(record, [[1, 1, 1, 1]])
        run.log_rounds(record)
        assert "train/seconds" not in store.runs()[0].data.metrics
        run.finish(record, "interrupted")
    assert store.runs()[0].data.metrics["train/seconds"] == 0.5


def test_what_mlflow_cannot_hold(store, tmp_path):
    record = create(tmp_path / "runs", partition__path="x" * 7000)
    with tracking_run.open_run(record.tracking, record) as run:
        train(record, [[1, 1, 1, 1]])
        record._rounds[0].update(personal_loss=float("inf"), show_inf=float("inf"), show_nan=float("nan"))
        run.finish(record, "finished")
    (shown,) = store.runs()
    assert all(shown.data.metrics[f"method/{name}"] != shown.data.metrics[f"method/{name}"] for name in ("inf", "nan"))
    assert shown.data.params["partition.path"].endswith("xxx... (whole in config.yaml)")
    (point,) = store.client.get_metric_history(shown.info.run_id, "personal/loss")
    assert point.value != point.value  # NaN, not 1.8e308


def test_names_that_mlflow_refuses_are_logged_under_names_that_it_allows(store, tmp_path):
    names = {"acc@1, (l2)": 0, "../up": 2, "a+b": 3, "a*b": 4}
    record = create(tmp_path / "runs", partition__names={"a+b": 1, "a*b": 2, "c": 3})
    with tracking_run.open_run(record.tracking, record) as run:
        train(record, [[1, 1, 1, 1]])
        record._rounds[0].update({f"show_{name}": float(value) for name, value in names.items()})
        record.matrices["../A (l2)#"] = record.matrices["A"]
        run.finish(record, "finished")
    (shown,) = store.runs()
    assert shown.info.status == "FINISHED"
    metrics = {key: value for key, value in shown.data.metrics.items() if key.startswith("method/")}
    assert metrics == {
        "method/acc_1_ _l2_": 0, "method/_/up": 2, "method/a_b": 3, "method/a_b_2": 4, "method/norm": 1,
    }  # fmt: skip
    params = {key: value for key, value in shown.data.params.items() if key.startswith("partition.names")}
    assert params == {"partition.names.a_b": "1", "partition.names.a_b_2": "2", "partition.names.c": "3"}
    files = {f.path for f in store.client.list_artifacts(shown.info.run_id, "figures/_")}
    assert files == {"figures/_/A _l2__.png"}


@pytest.mark.parametrize("text", ["", ".", "..", "/", "/a", "a//b", "a/./b", "a/../b", "..a", "a/", "a\n", "ü" * 300])
def test_any_text_becomes_a_name_that_mlflow_allows(text):
    from mlflow.utils.validation import _validate_metric

    for key in allowed_keys({text: 1, f"{text}@": 2, f"{text}+": 3}):
        _validate_metric(key, 0.5, 1, 1)
    assert len(allowed_keys({text: 1, f"{text}@": 2, f"{text}+": 3})) == 3


def test_a_sweep_is_a_parent(store, tmp_path, monkeypatch):
    # A run that was never tracked
    before = finished(tmp_path / "runs", "local", [1, 1, 1, 1])
    cfg = before.tracking
    sweep_run.open_sweep(cfg, "abc", SweepRun("algorithm=local,fedavg,pgfed", {}, {}))
    monkeypatch.setenv(tracking_run.SWEEP, "abc")
    records = [before]
    for method in ("fedavg", "pgfed"):
        record = finished(tmp_path / "runs", method, [2, 4, 6, 8])
        with tracking_run.open_run(cfg, record) as run:
            run.finish(record, "finished")
        records.append(record)
    tracking_run.send(cfg, before)
    sweep_run.finish_sweep(cfg, "abc", records, [], {}, {})
    runs = {run.info.run_name: run for run in store.runs()}
    assert len(runs) == 4
    parent = runs.pop("algorithm=local,fedavg,pgfed")
    assert parent.info.status == "FINISHED"
    assert {run.data.tags["mlflow.parentRunId"] for run in runs.values()} == {parent.info.run_id}
    assert list(store.table(parent, "comparison.json")["accuracy %"]) == ["10.00", "50.00", "50.00"]
    files = {f.path for f in store.client.list_artifacts(parent.info.run_id, "comparison")}
    assert {"comparison/runs.md", "comparison/accuracy.png", "comparison/gains.svg"} <= files
    sweep_run.open_sweep(cfg, "abc", SweepRun("again", {}, {}))
    assert len(store.runs()) == 4


@pytest.mark.slow
def test_a_sweep_that_was_trained_untracked_is_sent_when_it_is_given_again(store, monkeypatch):
    # With more trials the table is not made, but all are sent
    monkeypatch.setattr(summary, "MANY", 1)
    words = ["-m", "partition.clients=4", "model.hidden=[8]", "train.rounds=2", "seed=0,1"]
    assert main([*words, "tracking=none"]) == 0
    assert store.client.get_experiment_by_name("pflsweep") is None
    for _ in range(2):
        assert main(words) == 0
        parent, *trials = sorted(store.runs(), key=lambda run: "pflsweep.sweep" not in run.data.tags)
        assert len(trials) == 2
        assert {run.data.tags["mlflow.parentRunId"] for run in trials} == {parent.info.run_id}
        assert {run.info.status for run in (parent, *trials)} == {"FINISHED"}
        assert all(store.steps(run, "personal/accuracy") == [1, 2] for run in trials)


@pytest.mark.slow
def test_a_sweep_that_was_trained_untracked_in_part_is_sent_whole(store, tmp_path):
    words = ["-m", "partition.clients=4", "model.hidden=[8]", "train.rounds=2", "seed=0,1"]
    assert main([*words, "tracking=none"]) == 0
    # As if the trial had been stopped before
    shutil.rmtree(next(tmp_path.glob("runs/*/meta.json")).parent)
    assert main(words) == 0
    assert len([run for run in store.runs() if "mlflow.parentRunId" in run.data.tags]) == 2


@pytest.mark.slow
def test_a_sweep_whose_end_was_not_told_is_ended_by_the_same_command(store):
    words = ["-m", "partition.clients=4", "model.hidden=[8]", "train.rounds=2", "seed=0,1"]
    assert main(words) == 0
    (parent,) = (run for run in store.runs() if "pflsweep.sweep" in run.data.tags)
    store.client.set_tag(parent.info.run_id, "mlflow.loggedArtifacts", "[]")
    # As if the sweep had died before
    store.client.update_run(parent.info.run_id, status="RUNNING")
    assert main(words) == 0
    (parent,) = (run for run in store.runs() if "pflsweep.sweep" in run.data.tags)
    assert parent.info.status == "FINISHED"
    assert "comparison.json" in parent.data.tags["mlflow.loggedArtifacts"]


def test_all_tables_of_a_sweep_are_named(store, tmp_path):
    record = finished(tmp_path / "runs", "local", [1, 1, 1, 1])
    tables = {"status": pd.DataFrame({"a": [1]}), "winners": pd.DataFrame({"b": [2]})}
    for _ in range(2):
        sweep_run.finish_sweep(record.tracking, "abc", [record], [], tables, {})
    (parent,) = store.runs()
    logged = [table["path"] for table in json.loads(parent.data.tags["mlflow.loggedArtifacts"])]
    assert logged == ["comparison.json", "status.json", "winners.json"]


def test_a_sweep_with_failures_has_failed_and_names_them(store, tmp_path):
    record = finished(tmp_path / "runs", "local", [1, 1, 1, 1])
    for records in ([], [record]):
        sweep_run.open_sweep(record.tracking, "abc", SweepRun("seed=0,1", {}, {}))
        sweep_run.finish_sweep(record.tracking, "abc", records, ["the trial seed=1 failed: no"], {}, {})
        parent = next(run for run in store.runs() if run.info.run_name == "seed=0,1")
        assert parent.info.status == "FAILED"
        assert parent.data.tags["failed"] == "the trial seed=1 failed: no"
    page = Path(store.client.download_artifacts(parent.info.run_id, "comparison/runs.md")).read_text()
    assert "- the trial seed=1 failed: no" in page.split("## In no table")[1]


def test_a_store_that_is_gone_when_the_sweep_ends_costs_a_warning(store, tmp_path, caplog):
    record = finished(tmp_path / "runs", "local", [1, 1, 1, 1])
    sweep_run.open_sweep(record.tracking, "abc", SweepRun("seed=0,1", {}, {}))
    (tmp_path / "mlflow.db").write_text("this is a diary")
    sweep_run.finish_sweep(record.tracking, "abc", [record], [], {}, {})
    assert "MLflow did not take the sweep abc" in caplog.text


def test_a_stopped_sweep_is_not_running(store, tmp_path):
    cfg = finished(tmp_path / "runs", "local", [1, 1, 1, 1]).tracking
    sweep_run.open_sweep(cfg, "abc", SweepRun("algorithm=local", {}, {}))
    sweep_run.stop_sweep(cfg, "abc")
    assert store.runs()[0].info.status == "KILLED"


def test_a_record_that_was_never_tracked_is_sent_once(store, tmp_path):
    record = finished(tmp_path / "runs", "local", [1, 1, 1, 1])
    for _ in range(2):
        tracking_run.send(record.tracking, record)
        (run,) = store.runs()
        assert run.info.status == "FINISHED"
        assert run.data.metrics["summary/accuracy"] == 0.1


@pytest.mark.slow
def test_what_the_store_lacks_of_a_record_is_sent_again(store, tmp_path):
    record = finished(tmp_path / "runs", "local", [1, 1, 1, 1])
    # Killed after training, before the run was ended
    killed = tracking_run.open_run(record.tracking, record)
    killed.log_rounds(record)
    tracking_run.send(record.tracking, record)
    (run,) = store.runs()
    assert (run.info.status, run.data.metrics["summary/accuracy"]) == ("FINISHED", 0.1)
    # A session without tracking
    train(record, [[2, 2, 2, 2]])
    tracking_run.send(record.tracking, record)
    (run,) = store.runs()
    assert store.steps(run, "personal/accuracy") == [1, 2, 3, 4]
    assert (run.info.status, run.data.metrics["summary/accuracy"]) == ("FINISHED", 0.2)


def test_a_store_that_fails_at_the_end_is_sent_to_again(store, tmp_path, monkeypatch):
    record = finished(tmp_path / "runs", "local", [1, 1, 1, 1])
    with monkeypatch.context() as patch, tracking_run.open_run(record.tracking, record) as run:
        assert isinstance(run, tracking_run.MlflowTracker)
        patch.setattr(run.client, "log_batch", lambda *_, **__: 1 / 0)
        run.finish(record, "finished")
    assert store.runs()[0].info.status == "FINISHED"
    assert store.runs()[0].data.tags[tracking_run.INCOMPLETE] == "division by zero"
    tracking_run.send(record.tracking, record)
    assert store.runs()[0].info.status == "FINISHED"
    assert tracking_run.INCOMPLETE not in store.runs()[0].data.tags
    assert store.steps(store.runs()[0], "train/seconds") == [1, 2, 3]


def test_a_run_ends_although_its_files_cannot_be_stored_and_they_are_sent_later(store, tmp_path, caplog):
    (tmp_path / "mlruns").write_text("in the way")
    record = finished(tmp_path / "runs", "local", [1, 1])
    with caplog.at_level(logging.WARNING):
        tracking_run.send(record.tracking, record)
    assert "MLflow did not take the end of local-digits-dirichlet-0" in caplog.text
    assert "the same command sends it again" in caplog.text
    (run,) = store.runs()
    assert run.info.status == "FINISHED"
    assert run.data.metrics["summary/accuracy"] == 0.1
    (tmp_path / "mlruns").unlink()
    tracking_run.send(record.tracking, record)
    (run,) = store.runs()
    assert (run.info.status, tracking_run.INCOMPLETE in run.data.tags) == ("FINISHED", False)
    assert list((tmp_path / "mlruns").rglob("accuracy.png"))
    assert store.steps(run, "train/seconds") == [1, 2, 3]


@pytest.mark.slow
def test_a_sweep_ends_although_its_files_cannot_be_stored_and_they_are_sent_later(store, tmp_path):
    command = ["-m", *SMALL, "algorithm=local", "seed=0,1"]
    (tmp_path / "mlruns").write_text("in the way")
    assert main(command) == 0
    assert {run.info.status for run in store.runs()} == {"FINISHED"}
    (tmp_path / "mlruns").unlink()
    assert main(command) == 0
    assert {run.info.status for run in store.runs()} == {"FINISHED"}
    assert not any(tracking_run.INCOMPLETE in run.data.tags for run in store.runs())
    assert len(list((tmp_path / "mlruns").rglob("config.yaml"))) == 2
    assert list((tmp_path / "mlruns").rglob("runs.html"))


def test_none_imports_nothing(tmp_path):
    code = (
        "import sys; from pflsweep.tracking import run\n"
        "with run.open_run(run.Tracking.of({'backend': 'none'}), None) as run: run.log_rounds(None)\n"
        "sys.exit(bool({'mlflow', 'torch', 'matplotlib'} & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=environment)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_deleted_run_comes_back_with_another_command_alone(store):
    def tracked():
        return {run.data.tags["identity"] for run in store.runs() if "identity" in run.data.tags}

    words = ["-m", "seed=0,1", *SMALL]
    assert main(words) == 0
    lost = next(run for run in store.runs() if "identity" in run.data.tags)
    identity = lost.data.tags["identity"]
    store.client.delete_run(lost.info.run_id)
    assert main(words) == 0
    assert identity not in tracked()
    for seed in (0, 1):
        assert main([*SMALL, f"seed={seed}"]) == 0
    assert identity in tracked()


def test_final_trials_that_have_lost_are_tagged(store, tmp_path):
    record = finished(tmp_path / "runs", "local", [1, 1, 1, 1])
    tracking_run.send(record.tracking, record)
    sweep_run.tag_superseded(record.tracking, "abc", [record.meta["identity"], "0" * 16])
    (run,) = store.runs()
    assert run.data.tags["pflsweep.superseded"] == "another point has won the sweep abc since"


def _text(file):
    file.write_text("this is a diary\n" * 100)


def _other_program(file):
    with sqlite3.connect(file) as connection:
        connection.execute("create table contacts (name)")


def _other_version(file):
    shutil.copy("mlflow.db", file)
    with sqlite3.connect(file) as connection:
        connection.execute("update alembic_version set version_num = '0000'")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_text, "not a database.*move it away"),
        (_other_program, "not MLflow's.*contacts"),
        (_other_version, "Another version of MLflow made it.*mlflow db upgrade"),
        (os.mkdir, "Its place must be there, reachable and writable"),
    ],
)
def test_a_store_that_cannot_be_used(spoil, message, store, tmp_path):
    spoil(tmp_path / "bad.db")
    record = create(tmp_path / "runs", tracking__uri="sqlite:///bad.db")
    with pytest.raises(UserError, match=message) as raised:
        tracking_run.open_run(record.tracking, record)
    assert "tracking=none" in str(raised.value)
    assert "bad.db" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_store_that_fails_later_costs_a_warning(store, tmp_path, caplog):
    record = create(tmp_path / "runs")
    with caplog.at_level(logging.WARNING), tracking_run.open_run(record.tracking, record) as run:
        assert isinstance(run, tracking_run.MlflowTracker)
        log_batch = run.client.log_batch
        run.client.log_batch = lambda *_, **__: 1 / 0
        train(record, [[1, 1, 1, 1]])
        run.log_rounds(record)
        assert "MLflow did not take fedavg-digits-dirichlet-0: division by zero" in caplog.text
        run.client.log_batch = log_batch
        train(record, [[2, 2, 2, 2]])
        run.finish(record, "finished")
    assert store.steps(store.runs()[0], "personal/accuracy") == [1, 2]


@pytest.mark.slow
def test_two_processes_may_make_the_store_at_once(tmp_path):
    code = (
        "from pflsweep.tracking.store import Tracking, opened\n"
        "with opened(Tracking.of({})) as (client, experiment):\n"
        "    print(experiment)"
    )
    # An empty cache: the first store of a user is created, which takes seconds
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    both = [
        subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=environment, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    assert [process.communicate()[0] for process in both] == [b"1\n", b"1\n"]


def test_a_server_that_does_not_answer_is_said_soon(store, tmp_path):
    record = create(tmp_path / "runs", tracking__uri="http://127.0.0.1:9")
    began = time.monotonic()
    with pytest.raises(UserError, match=r"http://127\.0\.0\.1:9 cannot be used"):
        tracking_run.open_run(record.tracking, record)
    assert time.monotonic() - began < 20


def test_training_does_not_wait_for_a_server_that_has_gone(store, tmp_path, caplog):
    from mlflow import MlflowClient

    record = train(create(tmp_path / "runs"), [[1, 1, 1, 1]])
    with tracking_run.open_run(record.tracking, record) as run:
        assert isinstance(run, tracking_run.MlflowTracker)
        run.client, began = MlflowClient("http://127.0.0.1:9"), time.monotonic()
        run.log_rounds(record)
        run.finish(record, "finished")
    assert time.monotonic() - began < 20
    assert "MLflow did not take fedavg-digits-dirichlet-0" in caplog.text
    assert "MLflow did not take the end of fedavg-digits-dirichlet-0 (2 batches)" in caplog.text


def test_training_waits_a_tenth_of_its_time_at_most_for_a_server_that_hangs(store, tmp_path, monkeypatch):
    now, tries, hangs = [0.0], [], [True]
    record = create(tmp_path / "runs", rounds=300, tracking__every=5.0)
    # Rounds of 1 s, and a store that takes 20 s to fail
    monkeypatch.setattr(tracking_run, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    with tracking_run.open_run(record.tracking, record) as run:
        assert isinstance(run, tracking_run.MlflowTracker)
        log_batch = run.client.log_batch

        def hanging(*arguments, **options):
            tries.append(now[0])
            if hangs[0]:
                now[0] += 20
                raise OSError("timed out")
            log_batch(*arguments, **options)

        monkeypatch.setattr(run.client, "log_batch", hanging)
        train(record, [[1, 1, 1, 1]])
        for _ in range(300):
            now[0] += 1
            run.log_rounds(record)
        assert tries == [5, 225]
        assert now[0] == 300 + 2 * 20
        hangs[0] = False
        run.finish(record, "interrupted")
        assert store.steps(store.runs()[0], "train/seconds") == [1], "the end is sent at once"
        run.pause = 0
        run.log_rounds(record)
        assert run.pause == 5


def test_no_password_is_said(store, tmp_path, monkeypatch, capsys, caplog):
    from pflsweep.tracking.failures import errors_as_warnings

    uri = "http://lab:secret@127.0.0.1:9"
    record = create(tmp_path / "runs", tracking__uri=uri)
    with pytest.raises(UserError, match=r"store http://lab@127\.0\.0\.1:9 cannot be used") as caught:
        tracking_run.open_run(Tracking.of({**store.options, "uri": uri}), record)
    with errors_as_warnings("this"):
        raise OSError(f"{uri}/api is away")
    database = "postgresql://lab:secret@127.0.0.1:9/runs"
    with pytest.raises(UserError, match=r"store postgresql://lab@127\.0\.0\.1:9/runs cannot be used") as refused:
        ui.main(["--uri", database])
    for name in ("_check_port", "check_server", "_become_mlflow", "_announce"):
        monkeypatch.setattr(ui, name, lambda *_: None)
    monkeypatch.setattr(ui, "runs_address", lambda _: "#/experiments")
    ui.main(["--uri", database])
    said = capsys.readouterr().out
    assert "MLflow starts on postgresql://lab@127.0.0.1:9/runs (" in said
    assert "http://lab@127.0.0.1:9/api is away" in caplog.text
    assert "secret" not in f"{caught.value} {refused.value} {said} {caplog.text}"


SMALL = ["partition.clients=4", "model.hidden=[8]", "train.rounds=2"]
DEAD = "http://127.0.0.1:9"


def identities():
    return sorted(file.parent.name for file in Path("runs").glob("*/meta.json"))


def test_the_environment_says_where_runs_go_and_the_first_line_repeats_it(store, empty, monkeypatch, capsys):
    shutil.copy(empty, "env.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///env.db")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    assert main(SMALL) == 0
    first, *lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "fedavg-digits-dirichlet-0: sending the rest to MLflow"
    assert first == (
        "Runs go to MLflow at sqlite:///env.db, experiment mine (MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME)"
    )
    with opened(Tracking.of({"uri": "sqlite:///env.db", "experiment": "mine"})) as (client, experiment):
        assert len(client.search_runs([experiment])) == 1
    assert store.client.get_experiment_by_name("pflsweep") is None
    (record,) = Path("runs").glob("*/config.yaml")
    assert "uri: sqlite:///env.db" in record.read_text(), "a report finds the runs without the environment too"


def test_what_the_command_says_wins_over_the_environment_and_trials_stay_the_same(store, monkeypatch, capsys):
    assert main(SMALL) == 0
    before = identities()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", DEAD)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    capsys.readouterr()
    assert main([*SMALL, "tracking.uri=sqlite:///mlflow.db", "tracking.experiment=other"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Runs go to MLflow at sqlite:///mlflow.db, experiment other"
    assert "trained already" in lines[1]
    assert identities() == before
    store.options["experiment"] = "other"
    with opened(Tracking.of(store.options)) as (client, experiment):
        assert len(client.search_runs([experiment])) == 1


def test_a_variable_that_is_set_to_nothing_is_not_set(store, monkeypatch, capsys):
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.setenv(name, "")
    assert main(SMALL) == 0
    assert capsys.readouterr().err.startswith("Runs go to MLflow at sqlite:///mlflow.db, experiment pflsweep\n")
    assert len(store.runs()) == 1


def test_an_address_of_the_environment_that_is_none_is_named(store, monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "foo://bar")
    assert main(SMALL) == 2
    assert "'foo://bar' (tracking.uri, by the environment's MLFLOW_TRACKING_URI) is not " in capsys.readouterr().err


@pytest.mark.parametrize("several", [False, True])
def test_a_dead_server_is_an_error_before_training(several, store, monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", DEAD)
    words = ["-m", *SMALL, "seed=0,1"] if several else SMALL
    assert main(words) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith(f"Runs go to MLflow at {DEAD}, ")
    assert "tracking.required=false" in lines[1]
    assert not identities()


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.slow
def test_where_a_server_is_not_required_the_same_command_sends_later(several, store, capsys, caplog):
    """A trial gives two warnings, at its start and its end; a sweep does not repeat them for each trial."""
    words = [*(["-m", "seed=0,1"] if several else []), *SMALL, "tracking.required=false"]
    assert main([*words, f"tracking.uri={DEAD}"]) == 0
    trained = identities()
    assert len(trained) == 1 + several
    warned = [each.getMessage() for each in caplog.records if each.name.startswith("pflsweep")]
    starts = [line for line in warned if "Training goes on without it (tracking.required=false)" in line]
    assert len(starts) == 1
    assert len(warned) == 2
    assert main(words) == 0
    assert identities() == trained
    runs = store.runs()
    assert {run.data.tags["identity"] for run in runs if "identity" in run.data.tags} == set(trained)
    assert {run.info.status for run in runs} == {"FINISHED"}


def test_a_server_that_is_back_at_the_end_gets_the_whole_trial(store, tmp_path):
    record = create(tmp_path / "runs", tracking__required=False)
    there = record.tracking
    with tracking_run.open_run(replace(there, uri=DEAD), record) as run:
        train(record, [[1, 1, 1, 1]])
        run.log_rounds(record)
        assert isinstance(run, tracking_run.DeferredTracker)
        # Now its server answers
        run.options = there
        run.finish(record, "finished")
    (shown,) = store.runs()
    assert (shown.info.status, store.steps(shown, "personal/accuracy")) == ("FINISHED", [1])


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["random", "hyperband"])
def test_where_a_server_is_not_required_trials_of_a_search_are_sent_later(sampler, store, monkeypatch):
    search = ["algorithm=fedprox", f"tune={sampler}", "tune.points=5", "seed=0"]
    words = ["-m", *SMALL, *search, "train.rounds=9", "tracking.required=false"]
    assert main([*words, f"tracking.uri={DEAD}"]) == 0
    trained, sent = identities(), []
    real = tracking_run.send
    monkeypatch.setattr(tracking_run, "send", lambda *given: (sent.append(given), real(*given)))
    for _ in range(2):
        assert main(words) == 0
        runs = [run for run in store.runs() if "identity" in run.data.tags]
        assert sorted(run.data.tags["identity"] for run in runs) == trained
        assert {run.info.status for run in runs} == {"FINISHED"}
        assert {run.data.tags["role"] for run in runs} == {"search", "final"}
        assert all(run.info.run_name.endswith("(search)") is (run.data.tags["role"] == "search") for run in runs)
        assert all(len(store.steps(run, "train/seconds")) == int(run.data.tags["train.rounds"]) for run in runs)
    assert len(sent) == len(trained), "the second command has nothing to send"
    # As if the store had been away at the end of one trial
    (lost, *_) = (run for run in runs if run.data.tags["role"] == "search")
    store.client.set_tag(lost.info.run_id, tracking_run.INCOMPLETE, "it was away")
    assert main(words) == 0
    assert tracking_run.INCOMPLETE not in store.client.get_run(lost.info.run_id).data.tags


def test_a_store_that_is_back_but_refuses_a_trial_costs_a_warning(store, tmp_path, caplog):
    record = create(tmp_path / "runs", tracking__required=False)
    with opened(record.tracking) as (client, experiment):
        client.delete_experiment(experiment)
    with tracking_run.open_run(replace(record.tracking, uri=DEAD), record) as run:
        assert isinstance(run, tracking_run.DeferredTracker)
        train(record, [[1, 1, 1, 1]])
        run.options = record.tracking
        caplog.clear()
        run.finish(record, "finished")
    (line,) = caplog.records
    assert "MLflow did not take fedavg-digits-dirichlet-0" in line.message
    assert "restore it" in line.message


def test_ui_on_a_port_that_is_taken(store):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} is in use. Choose another, as in --port {port + 1}"):
            ui.main(["--port", str(port)])
    with pytest.raises(UserError, match="--port 99999 cannot be used"):
        ui.main(["--port", "99999"])


@pytest.mark.parametrize("uri", ["sqlite:///diary.db", "foo://x", "http://127.0.0.1:9"])
def test_ui_on_a_store_that_cannot_be_used_names_its_own_flags(uri, store, tmp_path):
    _text(tmp_path / "diary.db")
    with pytest.raises(UserError) as raised:
        ui.main(["--uri", uri])
    assert "--uri" in str(raised.value)
    assert "tracking." not in str(raised.value)
    assert "tracking=" not in str(raised.value)


def test_ui_without_a_store_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="no trial was tracked in this folder"):
        ui.main([])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["q?x", "pc%41t", "br{x}", "ä b#"])
def test_a_sweep_in_a_folder_whose_name_means_something_in_a_uri(name, tmp_path, empty, monkeypatch):
    folder = tmp_path / name
    folder.mkdir()
    shutil.copy(empty, folder / "mlflow.db")
    monkeypatch.chdir(folder)
    assert main(["-m", "train.rounds=1", "partition.clients=4", "model.hidden=[8]", "seed=0,1"]) == 0
    assert list(tmp_path.iterdir()) == [folder]
    with sqlite3.connect("mlflow.db") as tracked, sqlite3.connect("runs/sweeps/optuna.db") as planned:
        assert tracked.execute("select count(*) from runs").fetchone() == (3,)
        assert planned.execute("select count(*) from trials").fetchone() == (2,)
    assert len(list(Path("mlruns").glob("*/*/artifacts/config.yaml"))) == 2


def test_what_a_uri_says_beside_the_file_stays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert uri_of(Tracking.of({"uri": "sqlite:///my.db?timeout=9"})) == f"sqlite:///{tmp_path}/my.db?timeout=9"
    assert uri_of(Tracking.of({"uri": f"sqlite:///{tmp_path}/q%3Fx/my.db"})).endswith("q%3Fx%2Fmy.db")
    assert uri_of(Tracking.of({"uri": "postgresql://lab@host/runs"})) == "postgresql://lab@host/runs"
