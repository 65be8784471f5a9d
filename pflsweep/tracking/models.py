"""A trial's models in MLflow: a logged model of its run, called `model`, for `mlflow.pyfunc.load_model`.

One logged model has the global and all personal models, in the record's own file: of 100 clients it is one file, not
hundreds, and no code is pickled. Where MLflow's files lie on this machine it is linked and takes no space of its own.
"""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pflsweep import __version__
from pflsweep.records.content import MODELS
from pflsweep.records.record import Record
from pflsweep.util import files

if TYPE_CHECKING:
    from mlflow import MlflowClient

NAME = "model"
LOADER = "pflsweep.trial.saved"  # by name, since what builds models stands above this package
DATA = "data"  # folder of the files that it loads


def log_models(client: "MlflowClient", run_id: str, record: Record) -> None:
    """Log a record's models, once a round at which the trial has ended; those of an earlier end are deleted."""
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus

    if not (record.folder / MODELS).exists() or record.models_round != record.done:
        return
    run = client.get_run(run_id)
    known = client.search_logged_models([run.info.experiment_id], f"source_run_id = '{run_id}'")
    if any(each.status == LoggedModelStatus.READY and each.tags.get("round") == str(record.done) for each in known):
        return
    tags = {"round": str(record.done), "method": record.meta["method"]}
    made = client.create_logged_model(run.info.experiment_id, NAME, run_id, tags, model_type="personalised")
    if (place := _local(made.artifact_location)) is not None:
        _write(place, record, made.model_id, run_id)
    else:
        with tempfile.TemporaryDirectory() as folder:
            _write(Path(folder), record, made.model_id, run_id)
            client.log_model_artifacts(made.model_id, folder)
    client.finalize_logged_model(made.model_id, LoggedModelStatus.READY)
    client.log_outputs(run_id, [LoggedModelOutput(made.model_id, record.done)])
    for old in known:
        client.delete_logged_model(old.model_id)
        if (place := _local(old.artifact_location)) is not None:
            shutil.rmtree(place, ignore_errors=True)


def _local(location: str) -> Path | None:
    """Return the folder of a location on this machine; None for one of a server's."""
    from mlflow.utils.file_utils import local_file_uri_to_path

    return Path(local_file_uri_to_path(location)) if location.startswith("file:") else None


def _write(folder: Path, record: Record, model_id: str, run_id: str) -> None:
    """Write an MLflow model: MLmodel, which names the loader, and the data that it loads."""
    from mlflow import pyfunc
    from mlflow.models import Model
    from mlflow.models.signature import ModelSignature
    from mlflow.types import DataType, ParamSchema, ParamSpec

    (folder / DATA).mkdir(parents=True, exist_ok=True)
    _link(record.folder / MODELS, folder / DATA / MODELS)
    files.write_json(folder / DATA / "model.json", record.model_facts)
    # without it MLflow drops the params of a prediction; -1 is the global model
    signature = ModelSignature(params=ParamSchema([ParamSpec("client", DataType.long, -1)]))
    model = Model(run_id=run_id, model_id=model_id, signature=signature, metadata={"round": record.done})
    pyfunc.add_to_model(model, LOADER, data=DATA, model_config={"config_dir": ""})
    model.save(folder / "MLmodel")
    (folder / "requirements.txt").write_text(f"pflsweep=={__version__}\n")


def _link(source: Path, target: Path) -> None:
    """Link a file, or copy it where the file system cannot. A record replaces its files and never changes them."""
    with suppress(OSError):
        os.link(source, target)
        return
    shutil.copyfile(source, target)
