"""Compose configs: from overrides to a Config."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pflsweep.config import options
from pflsweep.config.hydra_errors import SweepOnly, hydra_errors
from pflsweep.config.hydra_loader import GROUPS, SWEEP_KEYS, load, search_path, sweep_values_of, trial_part
from pflsweep.config.identity import portable, without_effect
from pflsweep.config.keys import flat, key_of
from pflsweep.config.node import Node
from pflsweep.config.overrides import ADD_M, WITH_M, check_hydra, quoted
from pflsweep.util.errors import UserError
from pflsweep.util.once import warn_once

# Interpolations that are the same in all trials of a sweep (environment, Hydra), and those of the trial's own keys
_CONSTANT = re.compile(r"\$\{(oc\.env:|hydra[:.])[^{}]*\}")
_INTERPOLATION = re.compile(r"\$\{([^:{}]*\}|oc\.select:)")
K = TypeVar("K", bound=options.Keys)


class _Group(Generic[K]):
    """An attribute of a Config: the keys of one group as an object, made of the values at each access."""

    def __init__(self, name: str, keys: type[K]) -> None:
        self.name, self.keys = name, keys

    def __get__(self, config: "Config", owner: type) -> K:
        return self.keys.of(config.values[self.name])


@dataclass(frozen=True)
class Config:
    """One resolved config of a trial, and what it is checked against (schema.py)."""

    values: dict[str, Any]
    choices: dict[str, str]  # config group -> chosen option
    defaults: dict[str, Any]  # the same options without the user's values; its keys and their types are allowed
    interpolations: dict[str, Any]  # full key -> its value before it was resolved, such as ${train.lr}

    data = _Group("data", options.Data)
    train = _Group("train", options.Train)
    metrics = _Group("metrics", options.Metrics)
    checkpoint = _Group("checkpoint", options.Checkpoint)
    tracking = _Group("tracking", options.Tracking)
    paths = _Group("paths", options.Paths)

    @property
    def seed(self) -> int:
        """The seed of all draws."""
        return options.TopLevel.of(self.values).seed

    @property
    def device(self) -> str:
        """The requested device: auto, cpu or cuda."""
        return options.TopLevel.of(self.values).device

    @property
    def data_seed(self) -> int:
        """The seed of the partition: partition.seed, or the trial's where that is null."""
        own = options.Partition.of(self.values["partition"]).seed
        return self.seed if own is None else own

    def chooses(self, group: str) -> bool:
        """Return whether an option other than `none` is chosen in a group: ala, privacy, attack or study."""
        return bool(self.values.get(group))

    def node(self, group: str) -> Node:
        """Return the node of a group: its option, import path and arguments.

        Raises UserError if `_target_` is no import path.
        """
        return Node.of(group, self.choices[group], self.values.get(group))

    @property
    def portable(self) -> dict[str, Any]:
        """The values as records have them: with the option's name in place of each import path."""
        return portable(self.values, self.choices)

    @property
    def flat(self) -> dict[str, Any]:
        """The values by full key, such as train.lr."""
        return flat(self.values)


def compose(overrides: list[str], config_dir: str | Path | None = None) -> Config:
    """Return a trial's Config as the command line would make it, from any working directory. Raises UserError."""
    overrides = [quoted(word) for word in overrides]
    check_single(overrides)
    return compose_both(overrides, config_dir)[0]


def compose_both(overrides: list[str], config_dir: str | Path | None = None) -> tuple[Config, dict[str, Any]]:
    """Return a trial's Config and the keys of a sweep, from overrides that may set both. Raises UserError."""
    overrides = [quoted(word) for word in overrides]
    check_hydra(overrides, several=False)
    sources = search_path(config_dir)
    with hydra_errors(overrides, config_dir):
        composed = load(overrides, sources)
        return config_of(composed, composed.hydra), sweep_values_of(composed)


def config_of(composed: DictConfig, hydra: DictConfig) -> Config:
    """Return what Hydra composed as a Config. hydra: its `hydra` node. Raises UserError."""
    sources = tuple(f"{source.schema}://{source.path}" for source in hydra.runtime.config_sources)
    choices = {group: str(hydra.runtime.choices.get(group)) for group in GROUPS}
    for group, option in choices.items():
        if option == "None":
            raise UserError(
                f"{group} has to be one option's name, and cannot be left out: {group}=NAME, or {WITH_M} "
                f"{group}=ONE,OTHER."
            )
        # Hydra would accept such a name for the same file, but identities would take it for another option.
        if ".." in option or option.endswith((".yaml", ".yml")):
            raise UserError(f"{group}={option}: an option is named without its folder and .yaml: {Path(option).stem}.")
    try:
        values = trial_part(composed, resolve=True)
    except OmegaConfBaseException as error:
        raise UserError(f"{error.full_key} cannot be resolved: {str(error).splitlines()[0]}.") from error
    # A config without values of the user's is its own default
    if all(key_of(word) in GROUPS for word in hydra.overrides.task):
        unresolved = trial_part(composed)
        return Config(values, choices, unresolved, _interpolations(unresolved, composed))
    chosen = [quoted(f"{group}={option}") for group, option in choices.items()]
    chosen += [
        quoted(f"{at}={option}") for at, option in hydra.runtime.choices.items() if "@" in at and "hydra" not in at
    ]
    defaults = _defaults(tuple(chosen), sources, _edited(sources))
    return Config(values, choices, defaults, _interpolations(trial_part(composed), composed))


# Cached, since composing the defaults takes as long as the config itself, and most configs of a sweep share it.
@lru_cache(maxsize=256)
def _defaults(options: tuple[str, ...], sources: tuple[str, ...], edited: Any) -> dict[str, Any]:
    """Return the config of some options without the user's values. edited: makes the cache miss after an edit."""
    return trial_part(load(list(options), list(sources)))


def _edited(sources: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    """Return the options' files with their modification times: a user may edit them while a notebook is open."""
    folders = [Path(source.removeprefix("file://")) for source in sources if source.startswith("file://")]
    return tuple((str(file), file.stat().st_mtime_ns) for folder in folders for file in folder.glob("**/*.yaml"))


def _interpolations(unresolved: dict[str, Any], composed: DictConfig) -> dict[str, Any]:
    """Return the values that refer to other keys of the trial, by full key.

    What the environment (oc.env) and Hydra gave is kept, alone or inside such a value: ${oc.env:DATA}/${seed}.json
    becomes /data/${seed}.json. A value of other resolvers alone is kept, too.
    """
    found = {
        key: value for key, value in flat(unresolved).items() if _INTERPOLATION.search(_CONSTANT.sub("", str(value)))
    }
    return {
        key: _CONSTANT.sub(lambda each: str(_resolved(each[0], composed)), value) if isinstance(value, str) else value
        for key, value in found.items()
    }


def _resolved(expression: str, composed: DictConfig) -> Any:
    """Return the value of a ${...} among what Hydra composed."""
    copy = composed.copy()
    OmegaConf.set_struct(copy, False)
    copy["expression"] = expression
    return copy["expression"]


def warn_without_effect(keys: Iterable[str], configs: Sequence[Config]) -> None:
    """Warn about keys that a command sets to other values than their defaults, but that change none of its trials."""
    for key, condition in without_effect(keys, [config.flat for config in configs]).items():
        if any(config.flat.get(key) != flat(config.defaults).get(key) for config in configs):
            warn_once(__name__, f"{key} has no effect here: it needs {condition}")


def is_of_sweep(override: str) -> bool:
    """Return whether an override sets a key of a sweep."""
    return key_of(override).partition(".")[0].partition("@")[0] in SWEEP_KEYS


def check_single(overrides: list[str]) -> None:
    """Raise SweepOnly if overrides of a single trial set a key of a sweep."""
    asked = [override for override in overrides if is_of_sweep(override)]
    if asked:
        raise SweepOnly(
            f"{asked[0]} is a key of a sweep, not of a single trial",
            f"{ADD_M}, as in `pflsweep -m {' '.join(asked)}`.",
            several=False,
        )
