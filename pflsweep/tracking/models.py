"""Log a trial's models to MLflow: as a logged model of its run, called `model`, for `mlflow.pyfunc.load_model`.

One logged model has the global and all personal models in the record's file, so that 100 clients need no hundred files
and no code is pickled. Where MLflow's files are on this machine, that file is a hard link and takes no more space.
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
LOADER = "pflsweep.trial.saved"  # given by name, since that package may import this one and not the reverse
DATA = "data"  # folder of the files that LOADER reads


def log_models(client: "MlflowClient", run_id: str, record: Record) -> None:
    """Log a record's models, unless those of this round are logged already. Models of earlier rounds are deleted."""
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus

    if not record.path(MODELS).exists() or record.models_round != record.done:
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
    """Return the folder of an artifact location on this machine; None for one on a server."""
    from mlflow.utils.file_utils import local_file_uri_to_path

    return Path(local_file_uri_to_path(location)) if location.startswith("file:") else None


def _write(folder: Path, record: Record, model_id: str, run_id: str) -> None:
    """Write an MLflow model: the file MLmodel, which names LOADER, and the data that it reads."""
    from mlflow import pyfunc
    from mlflow.models import Model
    from mlflow.models.signature import ModelSignature
    from mlflow.types import DataType, ParamSchema, ParamSpec

    (folder / DATA).mkdir(parents=True, exist_ok=True)
    _link(record.path_on_disk(MODELS), folder / DATA / MODELS)
    files.write_json(folder / DATA / "model.json", record.model_facts)
    # Without a signature MLflow drops the params of a prediction; -1 is the global model
    signature = ModelSignature(params=ParamSchema([ParamSpec("client", DataType.long, -1)]))
    model = Model(run_id=run_id, model_id=model_id, signature=signature, metadata={"round": record.done})
    pyfunc.add_to_model(model, LOADER, data=DATA, model_config={"config_dir": ""})
    model.save(folder / "MLmodel")
    (folder / "requirements.txt").write_text(f"pflsweep=={__version__}\n")


def _link(source: Path, target: Path) -> None:
    """Link a file, or copy it where the file system cannot. Linking is safe, since records replace files whole."""
    with suppress(OSError):
        os.link(source, target)
        return
    shutil.copyfile(source, target)
