"""Load a trial's saved models as PyTorch modules, from its record or from MLflow."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from pflsweep.config.compose import Config
from pflsweep.records.checkpoint import read_torch
from pflsweep.records.content import MODELS
from pflsweep.trial.build import build_model, config_of_model
from pflsweep.util import files
from pflsweep.util.errors import UserError, one_line


class SavedModels:
    """The global and the personal models after a trial's last round."""

    def __init__(
        self, about: dict[str, Any], states: dict[str, Any], folder: Path, trained: Config | None = None
    ) -> None:
        """about: of `Record.model_facts`. states: of `Record.models()`. folder: of their file, for messages. trained:
        the config that the trial was trained with, where the caller has it.
        """
        self.about, self.states, self.folder, self._trained = about, states, folder, trained

    def load_global(self, config_dir: str | Path | None = None) -> nn.Module:
        """Return the global model. Raises UserError where there is none. config_dir: see `Result.load_global`."""
        state = self.states["global"]
        if state is None:
            raise UserError(f"{self.about['method']} has no global model.")
        return self._load(state, config_dir)

    def load_personal(self, client: int, config_dir: str | Path | None = None) -> nn.Module:
        """Return a client's personalised model. Raises UserError where there is no such client."""
        personal = self.states["personal"]
        if client not in personal:
            raise UserError(f"There is no client {client}: the clients are 0 to {len(personal) - 1}.")
        return self._load(personal[client], config_dir)

    def _load(self, state: dict[str, torch.Tensor], config_dir: str | Path | None) -> nn.Module:
        about, folder = self.about, self.folder
        shape, classes = about["shape"], about["classes"]
        if not isinstance(shape, list) or not all(type(n) is int and n > 0 for n in [*shape, classes]):
            raise UserError(f"{folder / 'meta.json'}: shape {shape!r} and classes {classes!r} are no whole numbers.")
        try:
            said = str(about["model"]), about["options"], about["seed"]
            config = self._trained or config_of_model(*said, config_dir)
            model = build_model(config, tuple(shape), classes)
        except UserError as error:
            raise UserError(f"The model of {folder} cannot be built: {error}") from error
        try:
            model.load_state_dict(state)
        except (RuntimeError, TypeError, AttributeError) as error:
            # PyTorch raises these where weights do not fit
            why = one_line(error)
            raise UserError(f"{folder / MODELS} does not fit the model that its config describes: {why}") from error
        return model


class _Predictor:
    """The object that `mlflow.pyfunc.load_model` wraps."""

    def __init__(self, models: SavedModels, config_dir: str | None) -> None:
        self._models, self._config_dir = models, config_dir
        self._loaded: dict[int, nn.Module] = {}

    def get_raw_model(self) -> SavedModels:
        """Return the models, for MLflow's `unwrap_python_model`."""
        return self._models

    def predict(self, data: Any, params: dict[str, Any] | None = None) -> np.ndarray:
        """Return logits [n, classes] for inputs [n, ...], which have to be normalised as in the trial.

        params: {"client": 3} for a client's personalised model; without it, or with -1, the global model.
        """
        client = int((params or {}).get("client", -1))
        if client not in self._loaded:
            load, where = self._models, self._config_dir
            self._loaded[client] = load.load_global(where) if client == -1 else load.load_personal(client, where)
        with torch.no_grad():
            return np.asarray(self._loaded[client].eval()(torch.as_tensor(np.asarray(data))))


def _load_pyfunc(path: str, config: dict[str, Any]) -> _Predictor:
    """Load models that tracking/models.py has logged. MLflow calls a function of this name."""
    folder = Path(path)
    models = SavedModels(files.read_json(folder / "model.json"), read_torch(folder / MODELS), folder)
    return _Predictor(models, config["config_dir"] or None)
