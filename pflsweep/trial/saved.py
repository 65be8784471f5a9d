"""Load a trial's saved models as PyTorch modules, from its record or from MLflow."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from pflsweep.config.compose import Config, compose
from pflsweep.config.hydra_errors import unknown_key
from pflsweep.config.hydra_loader import folders
from pflsweep.config.identity import portable
from pflsweep.config.keys import flat, put
from pflsweep.config.schema import check
from pflsweep.records.checkpoint import read_torch
from pflsweep.records.content import MODELS
from pflsweep.trial.build import build_model
from pflsweep.util import files
from pflsweep.util.errors import UserError, one_line

log = logging.getLogger(__name__)


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
        """Return the global model. Raises UserError if there is none. config_dir: see `Result.load_global`."""
        state = self.states["global"]
        if state is None:
            raise UserError(f"{self.about['method']} has no global model.")
        return self._load(state, config_dir)

    def load_personal(self, client: int, config_dir: str | Path | None = None) -> nn.Module:
        """Return a client's personalised model. Raises UserError if there is no such client."""
        personal = self.states["personal"]
        if client not in personal:
            raise UserError(f"There is no client {client}: the clients are 0 to {len(personal) - 1}.")
        if self.states.get("part"):  # absent from files of earlier versions
            log.warning(
                "%s predicts with more than a network: what is loaded is the network alone, whose accuracy is not the "
                "record's",
                self.about["method"],
            )
        return self._load(personal[client], config_dir)

    def _load(self, state: dict[str, torch.Tensor], config_dir: str | Path | None) -> nn.Module:
        about, folder = self.about, self.folder
        shape, classes = about["shape"], about["classes"]
        if not isinstance(shape, list) or not all(type(n) is int and n > 0 for n in [*shape, classes]):
            raise UserError(f"{folder / 'meta.json'}: shape {shape!r} and classes {classes!r} are no whole numbers.")
        try:
            said = str(about["model"]), about["options"], about["seed"]
            config = self._trained or _config_of_model(*said, config_dir)
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

        data: an array, a DataFrame or lists, of numbers of any type, or of token ids where the model reads texts.
        params: {"client": 3} for a client's personalised model; without it, or with -1, the global model.
        """
        client = int((params or {}).get("client", -1))
        if client not in self._loaded:
            load, where = self._models, self._config_dir
            self._loaded[client] = load.load_global(where) if client == -1 else load.load_personal(client, where)
        model = self._loaded[client].eval()
        x = torch.tensor(np.asarray(data))
        if x.is_floating_point():
            x = x.to(next(model.parameters()).dtype)
        with torch.no_grad():
            return np.asarray(model(x))


def _load_pyfunc(path: str, config: dict[str, Any]) -> _Predictor:
    """Load models that tracking/models.py has logged. MLflow calls a function of this name."""
    folder = Path(path)
    models = SavedModels(files.read_json(folder / "model.json"), read_torch(folder / MODELS), folder)
    return _Predictor(models, config["config_dir"] or None)


def _config_of_model(name: str, node: Any, seed: int, config_dir: str | Path | None = None) -> Config:
    """Return a config with the model of a record. name: the record's meta["model"]. node: `model` in its config.

    A record may come from somebody else. So code is imported by the option's file alone, in conf/model or config_dir;
    it has to be the code that the record names, and the record's other values have to pass the option's rules.

    Raises UserError if they do not.
    """
    if not isinstance(node, dict):
        raise UserError(f"its config says model: {node!r}, and not a model's options.")
    option = name.removesuffix(f".{node.get('name')}")
    places = [folder / "model" for folder in folders(config_dir)]
    # Looked up in a list and not joined to a path, since a record's option name may contain ".."
    known = {str(file.relative_to(place).with_suffix("")) for place in places for file in place.rglob("*.yaml")}
    if option not in known:
        where = f"there is none in '{config_dir}' either" if config_dir else "name the folder that has it: config_dir"
        raise UserError(
            f"model={option} is none of pflsweep's options, and code is never taken from a record: {where} "
            '(as with --config-dir). For example: result.load_global(config_dir="my_conf").'
        )
    config = compose([f"model={option}", "tracking=none"], config_dir)
    allowed, given = flat(portable({"model": config.defaults["model"]}, config.choices)), flat({"model": node})
    for key, value in given.items():
        if key not in allowed:
            raise UserError(unknown_key(key, list(allowed)))
        if key == "model" and value != allowed[key]:
            path = config.defaults["model"]["_target_"]
            raise UserError(
                f"the record's model was built by {value!r}, but model={option} is {allowed[key]!r} ({path}). What a "
                "record names is not run: if that code is yours, build the model with it and load "
                "`result.record.models()` into it."
            )
        if key != "model":
            put(config.values, key, value)
    config.values["seed"] = seed
    check(config)
    return config
