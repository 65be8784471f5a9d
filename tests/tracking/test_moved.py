"""Artifacts of a store whose folder was moved or copied."""

import logging
import shutil
from pathlib import Path

import pytest

from pflsweep.commands.main import main
from pflsweep.config.options import Tracking
from pflsweep.records.record import Record
from pflsweep.tracking import moved
from pflsweep.tracking import run as tracking_run
from pflsweep.tracking.store import opened, runs_address
from pflsweep.util.once import warn_once
from tests.report.records import finished
from tests.tracking.test_run import Store, empty, store  # noqa: F401 (fixtures)

# Warnings of MLflow and SQLAlchemy
pytestmark = pytest.mark.filterwarnings("ignore")
SMALL = ["partition.clients=4", "model.hidden=[8]", "train.epochs=1", "train.rounds=1"]


@pytest.fixture
def project(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: F811
    """Return a project folder whose store has one tracked trial. The working directory is in it."""
    folder = tmp_path / "a project"
    folder.mkdir()
    shutil.move(tmp_path / "mlflow.db", folder / "mlflow.db")
    monkeypatch.chdir(folder)
    record = finished(folder / "runs", "local", [1, 1])
    tracking_run.send(record.tracking, record)
    assert (_place(store, record) / "config.yaml").exists()
    return folder


def _place(store: Store, record: Record) -> Path:  # noqa: F811
    """Return the folder of a run's artifacts, without MLflow's client, which keeps it for a process."""
    from mlflow.utils.file_utils import local_file_uri_to_path

    (run,) = [run for run in store.runs() if run.data.tags["identity"] == record.meta["identity"]]
    return Path(local_file_uri_to_path(run.info.artifact_uri))


@pytest.mark.parametrize("copied", [False, True])
def test_artifacts_follow_a_store_whose_folder_was_moved_or_copied(
    copied: bool,
    project: Path,
    store: Store,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    other = project.with_name("other")
    (shutil.copytree if copied else shutil.move)(project, other)
    before = sorted(project.rglob("*"))
    monkeypatch.chdir(other)
    second = finished(other / "runs", "fedavg", [2, 2])
    with caplog.at_level(logging.WARNING):
        tracking_run.send(second.tracking, second)
        tracking_run.send(second.tracking, second)
    (line,) = [each.getMessage() for each in caplog.records if each.name == moved.__name__]
    assert f"{other / 'mlflow.db'} was moved or copied" in line
    assert f"no longer in {project / 'mlruns'}" in line
    assert (_place(store, second) / "figures/accuracy.png").exists()
    # Those of before are found again
    first = Record(next(path for path in (other / "runs").iterdir() if path.name != second.folder.name))
    assert _place(store, first).is_relative_to(other / "mlruns")
    assert (_place(store, first) / "config.yaml").exists()
    assert sorted(project.rglob("*")) == before


def test_the_pages_of_a_moved_store_find_its_artifacts(
    project: Path,
    store: Store,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = project.with_name("other")
    shutil.move(project, other)
    monkeypatch.chdir(other)
    runs_address(Tracking.of(store.options))
    assert all(run.info.artifact_uri.startswith(other.as_uri()) for run in store.runs())


def test_models_follow_too(project: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    assert main([*SMALL, "algorithm=local", "checkpoint.models=true"]) == 0
    other = project.with_name("other")
    shutil.move(project, other)
    monkeypatch.chdir(other)
    with opened(Tracking.of(store.options)) as (client, experiment):
        (model,) = client.search_logged_models([experiment])
    assert model.artifact_location.startswith(f"{other.as_uri()}/mlruns/pflsweep/models/")


@pytest.mark.parametrize("folder", ["elsewhere", "disk/mlruns/pflsweep"])
def test_a_place_that_the_user_has_chosen_stays(
    folder: str,
    store: Store,  # noqa: F811
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    place = tmp_path / folder
    place.mkdir(parents=True)
    number = store.client.create_experiment("pflsweep", place.as_uri())
    warn_once.cache_clear()
    for several in (False, True):
        with caplog.at_level(logging.WARNING), opened(Tracking.of(store.options)) as (client, _):
            assert client.get_experiment(number).artifact_location == place.as_uri()
        # Said only where it is open which of two folders is meant
        said = "move what is in" in caplog.text
        assert said is (several and folder != "elsewhere")
        (tmp_path / "mlruns/pflsweep").mkdir(parents=True, exist_ok=True)


def test_a_store_that_is_reached_by_a_link_stays(project: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    link = project.with_name("link")
    link.symlink_to(project)
    monkeypatch.setenv("PWD", str(link))
    options = Tracking.of({**store.options, "uri": f"sqlite:///{link}/mlflow.db"})
    with opened(options) as (client, experiment):
        assert client.get_experiment(experiment).artifact_location == (project / "mlruns/pflsweep").as_uri()
