"""Tracking under kills, lost, unavailable or full stores, interruptions and bad addresses: real stores, real trials."""

import multiprocessing
import os
import shutil
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy

from pflsweep.commands.main import main
from pflsweep.config.compose import compose
from pflsweep.config.options import Tracking
from pflsweep.records.record import Record
from pflsweep.tracking import lookup, sweep_run
from pflsweep.tracking import run as tracking_run
from pflsweep.tracking import store as stores
from pflsweep.tracking.failures import as_user_error
from pflsweep.tracking.overview import SweepRun
from pflsweep.tracking.store import opened
from pflsweep.trial.run import Stopped, run_trial
from pflsweep.util.errors import UserError
from pflsweep.util.files import DiskFull
from pflsweep.util.retry import StorageUnavailable
from tests.report.records import create, finished, train
from tests.sweep.test_machines import Postgres, postgres  # noqa: F401 (the latter: a fixture)
from tests.tracking.test_run import Store, empty, store  # noqa: F401 (fixtures)

# Warnings of MLflow and SQLAlchemy
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
TRIAL = ["partition.clients=4", "model.hidden=[8]", "train.epochs=1", "train.rounds=6", "tracking.every=0"]


def killed(work: Callable[[], object], monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Run `work` in a process that kills itself right after calling `place`, such as a class's method."""
    module, _, name = place.rpartition(".")
    holder = _resolved(module)
    original = getattr(holder, name)

    def killing(*args: object, **options: object) -> None:
        original(*args, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr(holder, name, killing)
        process = multiprocessing.get_context("fork").Process(target=work)
        process.start()
        process.join(300)
    assert process.exitcode == -signal.SIGKILL


def _resolved(path: str) -> object:
    import importlib

    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        return getattr(_resolved(module), name)


def points(options: dict, run_id: str) -> Counter:
    """Return how often the store has each metric and step of a run."""
    with opened(Tracking.of(options)) as (client, _):
        keys = client.get_run(run_id).data.metrics
        return Counter((key, point.step) for key in keys for point in client.get_metric_history(run_id, key))


# A kill


def test_a_run_whose_process_was_killed_when_it_was_created_is_found_again(store, tmp_path, monkeypatch):  # noqa: F811
    record = create(tmp_path / "runs")
    killed(lambda: tracking_run.open_run(record.tracking, record), monkeypatch, "mlflow.MlflowClient.create_run")
    (orphan,) = store.runs()
    assert (orphan.info.status, orphan.data.params) == ("RUNNING", {}), "it was killed before it was described"
    assert orphan.data.tags["method"] == "fedavg"
    train(record, [[1, 1, 1, 1]])
    with tracking_run.open_run(record.tracking, record) as run:
        run.finish(record, "finished")
    (adopted,) = store.runs()
    assert (adopted.info.run_id, adopted.info.status) == (orphan.info.run_id, "FINISHED")
    assert (adopted.data.params["seed"], adopted.data.params["train.lr"]) == ("0", "0.05")


def test_a_sweeps_run_whose_process_was_killed_when_it_was_created_is_found_again(store, tmp_path, monkeypatch):  # noqa: F811
    cfg = create(tmp_path / "runs").tracking
    killed(
        lambda: sweep_run.open_sweep(cfg, "abc", SweepRun("seed=0,1", {}, {})),
        monkeypatch,
        "mlflow.MlflowClient.create_run",
    )
    (orphan,) = store.runs()
    sweep_run.open_sweep(cfg, "abc", SweepRun("seed=0,1", {}, {}))
    sweep_run.finish_sweep(cfg, "abc", [], [], {}, {})
    (adopted,) = store.runs()
    assert (adopted.info.run_id, adopted.info.status) == (orphan.info.run_id, "FINISHED")


def test_further_runs_of_one_trial_and_one_sweep_are_ended_and_say_why(store, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv(tracking_run.SWEEP, "abc")
    record = train(create(tmp_path / "runs"), [[1, 1, 1, 1]])
    with opened(Tracking.of(store.options)) as (client, experiment):
        pass
    for tags in ({"identity": record.meta["identity"]}, {"pflsweep.sweep": "abc"}):
        later, first = (client.create_run(experiment, moment, tags).info.run_id for moment in (2, 1))
        for _ in range(2):
            with tracking_run.open_run(record.tracking, record) as run:
                run.finish(record, "finished")
        assert client.get_run(later).info.status == "KILLED"
        assert f"of run {first}" in client.get_run(later).data.tags["pflsweep.duplicate"]
        assert "pflsweep.duplicate" not in client.get_run(first).data.tags
        if "identity" in tags:
            assert client.get_run(first).info.status == "FINISHED"


def test_a_store_whose_process_was_killed_when_it_was_made_is_made_anew(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # A store in the user's cache would be copied instead of created

    monkeypatch.setattr(stores, "_empty_store", lambda: tmp_path / "cache" / "empty.db")
    options = {"uri": None, "experiment": "pflsweep"}

    def make() -> None:
        with opened(Tracking.of(options)):
            pass

    killed(make, monkeypatch, "alembic.op.create_table")
    assert list(tmp_path.iterdir()), "it was killed in the middle of making it"
    make()
    assert not list(tmp_path.glob(".*"))
    with closing(sqlite3.connect("mlflow.db")) as made:
        assert made.execute("select name from experiments where name = 'pflsweep'").fetchall() == [("pflsweep",)]


# A store that is lost


def _deleted(folder: Path, empty: Path, run: str) -> None:  # noqa: F811
    (folder / "mlflow.db").unlink()


def _without_folder(folder: Path, empty: Path, run: str) -> None:  # noqa: F811
    shutil.rmtree(folder)


def _replaced(folder: Path, empty: Path, run: str) -> None:  # noqa: F811
    shutil.copy(empty, folder / "new")
    os.replace(folder / "new", folder / "mlflow.db")


def _emptied(folder: Path, empty: Path, run: str) -> None:  # noqa: F811
    (folder / "mlflow.db").write_bytes(b"")


def _older(folder: Path, empty: Path, run: str) -> None:  # noqa: F811
    os.replace(folder / "backup.db", folder / "mlflow.db")


def _without_run(folder: Path, empty: Path, run: str) -> None:  # noqa: F811
    with opened(Tracking.of({"uri": f"sqlite:///{folder}/mlflow.db", "experiment": "pflsweep"})) as (client, _):
        client.delete_run(run)


@pytest.mark.parametrize(
    ("lose", "at"),
    [
        (_deleted, 3),
        (_replaced, 3),
        (_older, 4),
        (_without_run, 3),
        # Creating a store takes seconds
        *(pytest.param(*each, marks=pytest.mark.slow) for each in ((_deleted, 6), (_without_folder, 3), (_emptied, 3))),
    ],
)
def test_a_store_that_is_lost_in_mid_run_is_said_once_and_holds_all_at_the_end(
    lose, at, tmp_path, empty, monkeypatch, caplog  # noqa: F811
):  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(tracking_run.SWEEP, raising=False)
    folder = tmp_path / "store"
    folder.mkdir()
    shutil.copy(empty, folder / "mlflow.db")
    options = {"uri": f"sqlite:///{folder}/mlflow.db", "experiment": "pflsweep"}

    def run_id() -> str:
        with opened(Tracking.of(options)) as (client, experiment):
            (run,) = client.search_runs([experiment])
            return run.info.run_id

    def watch(record: Record) -> None:
        # A backup, with a run of one round
        if record.done == 1:
            with (
                closing(sqlite3.connect(folder / "mlflow.db")) as now,
                closing(sqlite3.connect(folder / "backup.db")) as to,
            ):
                now.backup(to)
        if record.done == at:
            lose(folder, empty, run_id())

    result = run_trial(compose([*TRIAL, f"tracking.uri={options['uri']}"]), after_round=watch)
    assert caplog.text.count("had lost fedavg-digits-dirichlet-0") == 1
    assert "did not take" not in caplog.text
    found, last = points(options, run_id()), run_id()
    assert set(found.values()) == {1}
    assert {step for key, step in found if key == "personal/accuracy"} == set(range(1, 7))
    assert ("summary/accuracy", 6) in found
    with opened(Tracking.of(options)) as (client, _):
        run = client.get_run(last)
        assert run.info.status == "FINISHED"
        assert run.data.params["model.hidden"] == "[8]"
        assert run.data.tags["identity"] == result.record.meta["identity"]
        assert {file.path for file in client.list_artifacts(last)} >= {"clients.json", "config.yaml", "figures"}


def test_a_sweeps_run_that_the_store_has_lost_is_made_anew_and_said(store, tmp_path, empty, monkeypatch):  # noqa: F811
    record = finished(tmp_path / "runs", "local", [1, 1, 1, 1])
    sweep_run.open_sweep(record.tracking, "abc", SweepRun("seed=0,1", {}, {}))
    assert not sweep_run.restore_sweep(record.tracking, "abc", SweepRun("seed=0,1", {}, {}))
    # A trial creates the sweep's run too, but does not know its name
    for trial_first in (False, True):
        _replaced(tmp_path, empty, "")
        with monkeypatch.context() as patch:
            patch.setenv(tracking_run.SWEEP, "abc")
            if trial_first:
                tracking_run.send(record.tracking, record)
        assert sweep_run.restore_sweep(record.tracking, "abc", SweepRun("seed=0,1", {}, {}))
        assert not sweep_run.restore_sweep(record.tracking, "abc", SweepRun("seed=0,1", {}, {}))
        (parent,) = (run for run in store.runs() if "pflsweep.sweep" in run.data.tags)
        assert (parent.info.run_name, parent.info.status) == ("seed=0,1", "RUNNING")


# An interruption


@pytest.mark.parametrize("every", [1, 2])
def test_a_run_that_was_stopped_twice_has_the_points_of_an_undisturbed_one(every, store, tmp_path):  # noqa: F811
    words = [*TRIAL, f"train.eval_every={every}"]
    run_trial(compose([*words, "paths.runs=undisturbed", "tracking.experiment=undisturbed"]))
    for last in (1, 4):
        done: list[int] = []
        with pytest.raises(Stopped, match=f"stopped after round {last}"):
            run_trial(
                compose(words), after_round=lambda r, done=done: done.append(r.done), stop=lambda d=done, n=last: n in d
            )
    run_trial(compose(words))
    (run,) = store.runs()
    store.options["experiment"] = "undisturbed"
    with opened(Tracking.of(store.options)) as (client, experiment):
        (other,) = client.search_runs([experiment])
    found = points(store.options, run.info.run_id)
    assert found == points(store.options, other.info.run_id)
    assert found["summary/accuracy", 6] == 1
    assert set(run.data.params) == set(other.data.params)
    assert set(run.data.tags) == set(other.data.tags)


# A store that is unavailable


@contextmanager
def away(file: Path) -> Iterator[None]:
    """Make the store unusable within the context: something else takes the place of its file."""
    content = file.read_bytes()
    file.write_text("this is a diary\n" * 100)
    try:
        yield
    finally:
        file.write_bytes(content)


def test_an_outage_is_said_once_with_a_count_when_it_is_over(store, tmp_path, monkeypatch, caplog):  # noqa: F811
    monkeypatch.setattr(tracking_run, "BACKOFF", 0.0)
    record = create(tmp_path / "runs", rounds=20)
    with tracking_run.open_run(record.tracking, record) as run:
        for outage in (10, 1):
            began = time.monotonic()
            with away(tmp_path / "mlflow.db"):
                for _ in range(outage):
                    train(record, [[1, 1, 1, 1]])
                    run.log_rounds(record)
                time.sleep(0.6)
            assert [line.message.partition(":")[0] for line in caplog.records] == [
                f"MLflow did not take {record.meta['name']}"
            ]
            caplog.clear()
            train(record, [[1, 1, 1, 1]])
            run.log_rounds(record)
            (line,) = caplog.records
            seconds = time.monotonic() - began
            late = "10 batches were sent late" if outage == 10 else "1 batch was sent late"
            assert line.message.startswith(f"{record.meta['name']}: MLflow was unavailable for ")
            assert line.message.endswith(f" s; {late}.")
            assert 0 < float(line.message.split()[5]) <= seconds + 1
            caplog.clear()
            (shown,) = store.runs()
            assert store.steps(shown, "train/seconds") == list(range(1, record.done + 1))
        run.finish(record, "finished")
    assert not caplog.records


def test_a_store_that_stays_away_is_said_twice(store, tmp_path, monkeypatch, caplog):  # noqa: F811
    monkeypatch.setattr(tracking_run, "BACKOFF", 0.0)
    record = create(tmp_path / "runs", rounds=20)
    with tracking_run.open_run(record.tracking, record) as run, away(tmp_path / "mlflow.db"):
        for _ in range(5):
            train(record, [[1, 1, 1, 1]])
            run.log_rounds(record)
        run.finish(record, "interrupted")
    first, last = caplog.records
    assert "it is sent when MLflow is back" in first.message
    assert "(6 batches)" in last.message
    assert "the same command sends it again" in last.message


def test_an_interrupted_trial_of_a_sweep_does_not_wait_for_a_store_that_is_away(store, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv(tracking_run.SWEEP, "abc")
    record = train(create(tmp_path / "runs"), [[1, 1, 1, 1]])
    run, began = tracking_run.open_run(record.tracking, record), time.monotonic()
    assert isinstance(run, tracking_run.MlflowTracker)
    run.uri = "http://127.0.0.1:9"
    run.options = replace(run.options, uri=run.uri)
    run.finish(record, "interrupted")
    assert time.monotonic() - began < 60


# Two that send one record


def both_send(record: Record, monkeypatch: pytest.MonkeyPatch) -> tracking_run.MlflowTracker:
    """Let two workers that each found nothing in the store send all of a record. Return one of them."""
    both = [tracking_run.MlflowTracker(record.tracking, Record(record.folder), None) for _ in range(2)]
    for tracker in both:
        tracker.log_rounds(Record(record.folder))
    monkeypatch.setattr(
        "pflsweep.tracking.logging.last_step", lambda *_: 0
    )  # neither has sent its summary when the other asks
    for tracker in both:
        tracker.finish(Record(record.folder), "finished")
    monkeypatch.undo()
    return both[0]


@pytest.mark.parametrize("sessions", [False, True])
def test_what_two_workers_send_of_one_record_stands_once(sessions, tmp_path, empty, monkeypatch):  # noqa: F811
    shutil.copy(empty, tmp_path / "mlflow.db")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    record = train(create(tmp_path / "runs", tracking__uri=uri), [[1, 1, 1, 1], [2, 2, 2, 2]])
    if sessions:
        record.add_session(record.config, {"commit": "0", "version": "1", "environment": {}})
        record.begin()
    train(record, [[3, 3, 3, 3]])
    found = points(record.config["tracking"], both_send(record, monkeypatch).run_id)
    assert found["train/seconds", 2] == found["summary/accuracy", 3] == found["personal/accuracy", 1] == 1
    assert set(found.values()) == {1}


@pytest.mark.slow
def test_in_postgresql_it_stands_once_too_and_lost_tables_are_made_anew(
    postgres: Postgres, tmp_path, monkeypatch, caplog  # noqa: F811
):  # fmt: skip
    url = postgres.database("twice")
    record = create(tmp_path / "runs", tracking__uri=url)
    record = train(record, [[1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3]])
    run = both_send(record, monkeypatch)
    found = points(record.config["tracking"], run.run_id)
    assert set(found.values()) == {1}
    with sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool).begin() as connection:
        for words in ("drop schema public cascade", "create schema public"):
            connection.execute(sqlalchemy.text(words))
    run.finish(record, "finished")
    assert caplog.text.count("had lost") == 1
    assert points(record.config["tracking"], run.run_id) == found


def test_the_times_of_rounds_are_the_records(store, tmp_path):  # noqa: F811
    record = train(create(tmp_path / "runs"), [[1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3]])
    record.meta["created"] = "2026-01-01T00:00:10.000+00:00"
    begun = 1767225610000
    assert tracking_run.stamps(record) == [begun + 600, begun + 1200, begun + 1800]
    record.meta["sessions"] = [{"from": 3, "begun": "2026-01-01T00:01:00.000+00:00"}]
    assert tracking_run.stamps(record) == [begun + 600, begun + 1200, begun + 50_600]
    # The other session began at an older checkpoint
    record.meta["sessions"] += [{"from": 2, "begun": "2026-01-01T00:02:00.000+00:00"}]
    assert tracking_run.stamps(record) == [begun + 600, begun + 110_600, begun + 111_200]
    with tracking_run.open_run(record.tracking, record) as run:
        run.finish(record, "finished")
    (shown,) = store.runs()
    assert shown.info.start_time == begun
    (point,) = store.client.get_metric_history(shown.info.run_id, "summary/accuracy")
    assert point.timestamp == begun + 111_200


def test_a_worker_that_slept_asks_how_far_the_run_has_come(store, tmp_path, monkeypatch):  # noqa: F811
    """Another worker has trained the same rounds meanwhile, in another folder, with other times."""
    asleep, awake = (create(tmp_path / name) for name in ("one", "two"))
    with tracking_run.open_run(asleep.tracking, asleep) as first:
        train(asleep, [[1, 1, 1, 1]])
        first.log_rounds(asleep)
        second = tracking_run.open_run(awake.tracking, awake)
        train(awake, [[1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3]])
        for row in awake._rounds:
            row["seconds"] *= 1.5
        second.finish(awake, "finished")
        monkeypatch.setattr(tracking_run, "QUIET", -1.0)
        train(asleep, [[2, 2, 2, 2]])
        first.log_rounds(asleep)
        train(asleep, [[3, 3, 3, 3]])
        first.log_rounds(asleep)
        assert isinstance(first, tracking_run.MlflowTracker)
        first.ended = True
    (run,) = store.runs()
    assert set(points(store.options, run.info.run_id).values()) == {1}


# A full disk


@contextmanager
def limited(pragma: str) -> Iterator[None]:
    """Give every connection that MLflow opens a limit of SQLite, as on a full or read-only disk."""

    def limit(connection: sqlite3.Connection, _: object) -> None:
        connection.execute(pragma)

    sqlalchemy.event.listen(sqlalchemy.Engine, "connect", limit)
    try:
        yield
    finally:
        sqlalchemy.event.remove(sqlalchemy.Engine, "connect", limit)


@pytest.mark.parametrize(
    ("pragma", "said"),
    [("pragma max_page_count=1", "disk is full"), ("pragma query_only=on", "readonly database")],
)
def test_a_full_disk_is_said_at_once_at_the_start_and_costs_a_warning_later(
    pragma, said, store, tmp_path, monkeypatch, caplog  # noqa: F811
):  # fmt: skip
    monkeypatch.setenv(tracking_run.SWEEP, "abc")
    record = create(tmp_path / "runs", rounds=300)
    began = time.monotonic()

    # SQLite first fills the pages that it has
    def open_many() -> None:
        for index in range(300):
            record.meta["identity"] = f"{index:016x}"
            tracking_run.open_run(record.tracking, record)

    with limited(pragma), pytest.raises(DiskFull, match=f"{said}.*MB of space are free") as raised:
        open_many()
    assert str(tmp_path) in str(raised.value)
    assert time.monotonic() - began < 60
    with tracking_run.open_run(record.tracking, record) as run, limited(pragma):
        began = time.monotonic()
        for _ in range(40):
            train(record, [[1, 1, 1, 1]])
            run.log_rounds(record)
        record.set_status(status="finished")
        run.finish(record, "finished")
        assert time.monotonic() - began < 60
    first, last = caplog.records
    assert said in first.message
    assert said in last.message
    tracking_run.send(record.tracking, record)
    with opened(Tracking.of(store.options)) as (client, experiment):
        found = lookup.find(client, experiment, "identity", record.meta["identity"])
    assert found.info.status == "FINISHED"
    assert store.steps(found, "train/seconds") == list(range(1, 41))


# Bad addresses and names


@pytest.mark.parametrize("uri", ["foo://bar", "/dev/null/x", "ünïcode", "sqlite://", "sqlite:///", "http://"])
def test_what_is_no_address_of_a_store(uri, store, tmp_path):  # noqa: F811
    record = create(tmp_path / "runs", tracking__uri=uri)
    with pytest.raises(
        UserError, match=f"'{uri}' .tracking.uri. is not the address of an MLflow store.*postgresql://"
    ) as no:
        tracking_run.open_run(record.tracking, record)
    assert type(no.value) is UserError


@pytest.mark.parametrize("uri", ["sqlite:////dev/null/x", "sqlite:////dev/null/x/y.db"])
def test_a_place_where_no_store_can_be(uri, store, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv(tracking_run.SWEEP, "abc")
    record = create(tmp_path / "runs", tracking__uri=uri)
    with pytest.raises(UserError, match=f"{uri} cannot be used .* in which you may write; .* MB are free") as no:
        tracking_run.open_run(record.tracking, record)
    assert type(no.value) is UserError, "a sweep waits for what is StorageUnavailable"


@pytest.mark.parametrize("name", [f"{'x' * 300}.db", f"{'x' * 300}/a.db"])
def test_a_store_whose_name_is_too_long_is_said_in_one_paragraph(name, store, tmp_path, capsys):  # noqa: F811
    assert main([*TRIAL, f"tracking.uri=sqlite:///{name}"]) == 2
    _, said = capsys.readouterr().err.splitlines()
    assert "File name too long" in said
    assert "Give its file, or its folder, a shorter name." in said


@pytest.mark.parametrize("words", [[], ["-m", "seed=0,1"], ["tracking.required=false"]])
def test_an_experiment_that_mlflow_refuses_is_no_store_that_is_away(words, store, tmp_path, capsys):  # noqa: F811
    assert main([*words, *TRIAL, f"tracking.experiment={'x' * 600}"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "exceeds the maximum length of 500 characters (tracking.experiment). Correct that, or train without" in said
    assert "place" not in said
    assert "later" not in said


@pytest.mark.parametrize(
    ("code", "said", "kind"),
    [
        ("INVALID_PARAMETER_VALUE", "Invalid value of connection", UserError),
        ("BAD_REQUEST", "(psycopg2.DataError) value too long", UserError),
        ("BAD_REQUEST", "(psycopg2.InterfaceError) closed", StorageUnavailable),
        ("BAD_REQUEST", "QueuePool limit of size 5 reached, connection timed out", StorageUnavailable),
        ("TEMPORARILY_UNAVAILABLE", "(psycopg2.OperationalError) away", StorageUnavailable),
    ],
)
def test_what_mlflow_refuses_for_good_is_told_from_what_passes(code, said, kind):
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import ErrorCode

    error = as_user_error("http://host:5000", MlflowException(said, ErrorCode.Value(code)))
    assert type(error) is kind
    assert said in str(error)


@pytest.mark.parametrize("name", ["ünïcode/路径", "路" * 100, "." * 300])
def test_an_experiment_whose_name_is_long_or_not_ascii(name, store, tmp_path):  # noqa: F811
    record = finished(tmp_path / "ünïcode 路径", "local", [1, 1, 1, 1], tracking__experiment=name)
    tracking_run.send(record.tracking, record)
    with opened(Tracking.of({**store.options, "experiment": name})) as (client, experiment):
        (run,) = client.search_runs([experiment])
        assert "clients.json" in {file.path for file in client.list_artifacts(run.info.run_id)}
    (folder,) = (tmp_path / "mlruns").iterdir()
    assert len(folder.name.encode()) <= 255
