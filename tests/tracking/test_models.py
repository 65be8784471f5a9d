"""A trial's models, loaded from a real store and from a real MLflow server."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pflsweep.config.compose import compose
from pflsweep.config.options import Tracking
from pflsweep.tracking import run as tracking_run
from pflsweep.tracking.store import opened
from pflsweep.trial.result import Result
from pflsweep.trial.run import run_trial
from pflsweep.util.errors import UserError
from tests.tracking.test_overview import POINT, WINNER
from tests.tracking.test_run import SMALL, Store, empty, store  # noqa: F401 (fixtures)

# Warnings of MLflow and SQLAlchemy
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def inputs() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(5, 1, 8, 8)).astype(np.float32)


def models_of(options: dict):
    with opened(Tracking.of(options)) as (client, experiment):
        (run,) = client.search_runs([experiment])
        return run, client.search_logged_models([experiment])


def load(tracking_uri: str, model_uri: str, **options: Any):
    """Load a model as a user would, without the environment variable that `mlflow.set_tracking_uri` leaves behind."""
    import mlflow

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", tracking_uri)
        return mlflow.pyfunc.load_model(model_uri, **options)


def require_same(result: Result, loaded, inputs: np.ndarray) -> None:
    """Assert that a model loaded by MLflow predicts the same as the record's models."""
    x = torch.from_numpy(inputs)
    with torch.no_grad():
        assert (loaded.predict(inputs) == result.load_global()(x).numpy()).all()
        for same in (inputs.astype(np.float64), inputs.tolist()):
            assert (loaded.predict(same) == loaded.predict(inputs)).all()
        for client in (0, 3):
            own = result.load_personal(client)(x).numpy()
            assert (loaded.predict(inputs, params={"client": client}) == own).all()
    assert (loaded.predict(inputs, params={"client": 0}) != loaded.predict(inputs)).any()


def test_personal_and_global_models_are_loaded_by_their_run(store: Store, inputs: np.ndarray) -> None:  # noqa: F811
    result = run_trial(compose([*SMALL, "algorithm=fedala"]))
    run, (model,) = models_of(store.options)
    assert [each.model_id for each in run.outputs.model_outputs] == [model.model_id]
    for uri in (f"runs:/{run.info.run_id}/model", f"models:/{model.model_id}"):
        loaded = load(store.client.tracking_uri, uri)
        require_same(result, loaded, inputs)
    assert isinstance(loaded.get_raw_model().load_personal(3), torch.nn.Module)
    with pytest.raises(UserError, match="no client 4: the clients are 0 to 3"):
        loaded.predict(inputs, params={"client": 4})
    (file,) = Path("mlruns").rglob("models.pt")
    assert file.samefile(result.record.folder / "models.pt"), "of many clients it is large: it takes no second place"


def test_a_method_without_a_global_model_has_those_of_its_clients(store: Store, inputs: np.ndarray) -> None:  # noqa: F811
    run_trial(compose([*SMALL, "algorithm=local"]))
    run, _ = models_of(store.options)
    loaded = load(store.client.tracking_uri, f"runs:/{run.info.run_id}/model")
    assert loaded.predict(inputs, params={"client": 1}).shape == (5, 10)
    with pytest.raises(UserError, match="local has no global model"):
        loaded.predict(inputs)


@pytest.mark.slow
def test_a_model_of_ones_own_is_loaded_with_its_folder(store: Store, inputs: np.ndarray, monkeypatch) -> None:  # noqa: F811
    Path("own_model.py").write_text("from pflsweep.models.mlp import build\n")
    monkeypatch.syspath_prepend(os.getcwd())
    Path("my_conf/model").mkdir(parents=True)
    Path("my_conf/model/own.yaml").write_text("_target_: own_model.build\nhidden: [8]\n")
    result = run_trial(compose(["partition.clients=4", "train.rounds=2", "model=own", "model.hidden=[8]"], "my_conf"))
    run, _ = models_of(store.options)
    uri = f"runs:/{run.info.run_id}/model"
    with pytest.raises(UserError, match="model=own is none of pflsweep's options"):
        load(store.client.tracking_uri, uri).predict(inputs)
    loaded = load(store.client.tracking_uri, uri, model_config={"config_dir": "my_conf"})
    x = torch.from_numpy(inputs)
    with torch.no_grad():
        assert (loaded.predict(inputs) == result.load_global(config_dir="my_conf")(x).numpy()).all()
        own = result.load_personal(3, config_dir="my_conf")(x).numpy()
    assert (loaded.predict(inputs, params={"client": 3}) == own).all()


@pytest.mark.slow
def test_more_rounds_replace_the_model_and_the_same_command_adds_none(store: Store, inputs: np.ndarray) -> None:  # noqa: F811
    for rounds in (2, 2, 3):
        result = run_trial(compose([*SMALL, "algorithm=fedala", f"train.rounds={rounds}"]))
        run, (model,) = models_of(store.options)
        assert model.tags["round"] == str(rounds)
    assert len(list(Path("mlruns").rglob("models.pt"))) == 1
    require_same(result, load(store.client.tracking_uri, f"runs:/{run.info.run_id}/model"), inputs)


@pytest.mark.slow
def test_models_that_are_made_later_are_sent_and_those_of_points_are_not(store: Store) -> None:  # noqa: F811
    run_trial(compose([*SMALL, "checkpoint.models=false"]), labels=WINNER)
    assert not models_of(store.options)[1]
    result = run_trial(compose(SMALL), labels=POINT)
    assert result.record.models_round == 2
    assert not models_of(store.options)[1]
    run_trial(compose(SMALL), labels=WINNER)
    assert len(models_of(store.options)[1]) == 1


@pytest.mark.slow
def test_a_server_gets_the_file_and_gives_it_back(tmp_path: Path, monkeypatch, inputs: np.ndarray, empty: Path) -> None:  # noqa: F811
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(tracking_run.SWEEP, raising=False)
    shutil.copy(empty, tmp_path / "server.db")
    with socket.create_server(("127.0.0.1", 0)) as free:
        uri = f"http://127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", "sqlite:///server.db", "--workers", "1"]
    command += ["--port", uri.rpartition(":")[2], "--artifacts-destination", str(tmp_path / "kept")]
    named = {**os.environ, "MLFLOW_SERVER_ALLOWED_HOSTS": uri.removeprefix("http://")}
    quiet = subprocess.DEVNULL
    server = subprocess.Popen(command, env=named, start_new_session=True, stdout=quiet, stderr=quiet)
    try:
        _wait(uri)
        with pytest.raises(UserError, match=r"answers to names that it was started with.*MLFLOW_SERVER_ALLOWED_HOSTS"):
            run_trial(compose([*SMALL, f"tracking.uri={uri.replace('127.0.0.1', 'localhost')}"]))
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        result = run_trial(compose([*SMALL, "algorithm=fedala"]))
        run, (model,) = models_of({"uri": uri, "experiment": "pflsweep"})
        assert model.artifact_location.startswith("mlflow-artifacts:")
        require_same(result, load(uri, f"runs:/{run.info.run_id}/model"), inputs)
        assert list((tmp_path / "kept").rglob("models.pt"))
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)


def _wait(uri: str) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(uri).close()
            return
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.2)
