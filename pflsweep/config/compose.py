"""Compose configs with Hydra: from overrides to a Config, with Hydra's errors as UserErrors."""

import glob
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from traceback import extract_tb
from typing import IO, Any, Generic, TypeVar

import yaml
from hydra import version
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pflsweep.config import options
from pflsweep.config.hydra_private import ConfigLoaderImpl, ConfigSearchPathImpl, get_yaml_loader
from pflsweep.config.identity import portable
from pflsweep.config.keys import PLUGS, flat, key_of
from pflsweep.config.node import Node
from pflsweep.config.overrides import ADD_M, WITH_M, check_hydra, no_interval, quoted, unreadable
from pflsweep.util.errors import UserError, nearest, one_line
from pflsweep.util.files import require_readable
from pflsweep.util.resources import shipped

GROUPS = ("algorithm", *PLUGS, "model", "dataset", "partition", "train", "metrics", "study", "tracking")
# Beginnings of the messages of Hydra's ValueErrors that the user's overrides or flags cause
HYDRA_SAYS = (
    "Invalid defaults list",
    "The --resolve flag",
    "Only one of --run",
)
# Keys of a sweep, not of its trials
COMMAND = ("sweep", "only", "scale", "reading", "plan", "retry", "workers", "tune")

# Names that are typed in search of another optimiser or schedule, of which the nearest keys mean something else
_OF_OPTIMISERS = re.compile(
    r"optim|(lr_|train_)?(optimi[sz]er|scheduler?|warm_?up|cosine|annealing)(_(type|name|rounds|steps|epochs|lr))?|"
    r"adamw?|sgd|rmsprop|adagrad|nesterov"
)

# In values that refer to others: what does not change between the trials of a sweep, and what does
_CONSTANT = re.compile(r"\$\{(oc\.env:|hydra[:.])[^{}]*\}")
_REFERENCE = re.compile(r"\$\{([^:{}]*\}|oc\.select:)")


class OfSweep(UserError):  # noqa: N818 (a state)
    """An override of a single trial that only a sweep takes: several values, or a key of a sweep.

    what: what is wrong, without what to do. several: whether it is several values.
    """

    def __init__(self, what: str, mend: str, several: bool) -> None:
        super().__init__(f"{what}: {mend}")
        self.what, self.several = what, several


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
    reference: dict[str, Any]  # the same options without the user's values; its keys and their types are allowed
    links: dict[str, Any]  # full key -> its value before it was resolved, such as ${train.lr}

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
        """Return what a group's option builds. Raises UserError if its `_target_` names nothing."""
        return Node.of(group, self.choices[group], self.values.get(group))

    @property
    def portable(self) -> dict[str, Any]:
        """The values as records have them: with the option's name in place of each import path."""
        return portable(self.values, self.choices)

    @property
    def flat(self) -> dict[str, Any]:
        """The values by full key, such as train.lr."""
        return flat(self.values)


def conf_dir() -> Path:
    """Return the folder of the config groups that come with pflsweep."""
    return shipped("conf")


def compose(overrides: list[str], config_dir: str | Path | None = None) -> Config:
    """Return a trial's Config as the command line would make it, from any working directory. Raises UserError."""
    overrides = [quoted(word) for word in overrides]
    check_single(overrides)
    return compose_both(overrides, config_dir)[0]


def compose_both(overrides: list[str], config_dir: str | Path | None = None) -> tuple[Config, dict[str, Any]]:
    """Return a trial's Config and the keys of a sweep, from overrides that may set both. Raises UserError."""
    overrides = [quoted(word) for word in overrides]
    check_hydra(overrides, several=False)
    sources = _sources(config_dir)
    with hydra_errors(overrides, config_dir):
        composed = _compose(overrides, sources)
        return config_of(composed, composed.hydra), command_of(composed)


def config_of(composed: DictConfig, hydra: DictConfig) -> Config:
    """Return what Hydra composed as a Config. hydra: its `hydra` node. Raises UserError."""
    sources = tuple(f"{source.schema}://{source.path}" for source in hydra.runtime.config_sources)
    choices = {group: str(hydra.runtime.choices.get(group)) for group in GROUPS}
    for group, option in choices.items():
        if option == "None":
            raise UserError(f"{group} has to be one option's name: {group}=NAME, or {WITH_M} {group}=ONE,OTHER.")
        # Hydra would accept such a name for the same file, but identities would take it for another option.
        if ".." in option or option.endswith((".yaml", ".yml")):
            raise UserError(f"{group}={option}: an option is named without its folder and .yaml: {Path(option).stem}.")
    try:
        values = _plain(composed, resolve=True)
    except OmegaConfBaseException as error:
        raise UserError(f"{error.full_key} cannot be resolved: {str(error).splitlines()[0]}.") from error
    # A config without values of the user's is its own reference.
    if all(key_of(word) in GROUPS for word in hydra.overrides.task):
        unresolved = _plain(composed)
        return Config(values, choices, unresolved, _links(unresolved, composed))
    chosen = [quoted(f"{group}={option}") for group, option in choices.items()]
    chosen += [
        quoted(f"{at}={option}") for at, option in hydra.runtime.choices.items() if "@" in at and "hydra" not in at
    ]
    return Config(
        values, choices, _reference(tuple(chosen), sources, _edited(sources)), _links(_plain(composed), composed)
    )


# Cached, since composing a reference takes as long as the config itself, and most configs of a sweep share it.
@lru_cache(maxsize=256)
def _reference(options: tuple[str, ...], sources: tuple[str, ...], edited: Any) -> dict[str, Any]:
    """Return the config of some options without the user's values. edited: makes the cache miss after an edit."""
    return _plain(_compose(list(options), list(sources)))


def _edited(sources: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    """Return the options' files with their modification times: a user may edit them while a notebook is open."""
    folders = [Path(source.removeprefix("file://")) for source in sources if source.startswith("file://")]
    return tuple((str(file), file.stat().st_mtime_ns) for folder in folders for file in folder.glob("**/*.yaml"))


def _links(unresolved: dict[str, Any], composed: DictConfig) -> dict[str, Any]:
    """Return the values that refer to other keys of the trial, by full key.

    What the environment (oc.env) and Hydra gave is kept, alone or inside such a value: ${oc.env:DATA}/${seed}.json
    becomes /data/${seed}.json. A value of other resolvers alone is kept, too.
    """
    found = {key: value for key, value in flat(unresolved).items() if _REFERENCE.search(_CONSTANT.sub("", str(value)))}
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


def command_of(composed: DictConfig) -> dict[str, Any]:
    """Return the keys of a sweep from what Hydra composed."""
    return OmegaConf.to_container(OmegaConf.masked_copy(composed, list(COMMAND)), resolve=True)  # type: ignore[return-value]


def sweep_defaults() -> dict[str, Any]:
    """Return the default of each key of a sweep, by full key."""
    return flat(command_of(_compose([], _sources(None))))


def is_of_sweep(override: str) -> bool:
    """Return whether an override sets a key of a sweep."""
    return key_of(override).partition(".")[0].partition("@")[0] in COMMAND


def check_single(overrides: list[str]) -> None:
    """Raise OfSweep if overrides of a single trial set a key of a sweep."""
    asked = [override for override in overrides if is_of_sweep(override)]
    if asked:
        raise OfSweep(f"{asked[0]} is of a sweep", f"{ADD_M}, as in `pflsweep -m {' '.join(asked)}`.", several=False)


def _plain(composed: DictConfig, resolve: bool = False) -> dict[str, Any]:
    """Return the trial's config: what Hydra composed, without the nodes of Hydra and of a sweep."""
    copy = OmegaConf.masked_copy(composed, [str(key) for key in composed if key not in ("hydra", *COMMAND)])
    return OmegaConf.to_container(copy, resolve=resolve)  # type: ignore[return-value]


def folders(config_dir: str | Path | None) -> list[Path]:
    """Return the folders of config groups: pflsweep's, and the user's.

    Raises UserError if that does not exist, cannot be read, or has an option with a shipped one's name.
    """
    if not config_dir:
        return [conf_dir()]
    own = Path(config_dir)
    if not own.is_dir():
        raise UserError(
            f"There is no folder '{config_dir}' of config groups: name one that is there by --config-dir (in Python: "
            "config_dir)."
        )
    require_readable(own)
    for group in conf_dir().iterdir():
        for file in (own / group.name).rglob("*.yaml") if group.is_dir() else ():
            if (conf_dir() / file.relative_to(own)).exists():
                raise UserError(f"{file} has the name of a shipped option, which would be used instead: rename it.")
    return [conf_dir(), own.absolute()]


def option_files(group: str, config_dir: str | Path | None = None) -> dict[str, Path]:
    """Return the files of a group's options, pflsweep's and the user's, by name, such as as_run/pgfed_pfedme.

    Files in a folder `common` are parts of other options and are left out. Raises UserError.
    """
    found = {
        file.relative_to(folder / group).with_suffix("").as_posix(): file
        for folder in folders(config_dir)
        for file in (folder / group).rglob("*.yaml")
    }
    return {name: found[name] for name in sorted(found) if not name.startswith("common/")}


def _sources(config_dir: str | Path | None) -> list[str]:
    """Return Hydra's search path. config_dir: the user's folder of config groups."""
    return ["pkg://hydra.conf", *(f"file://{folder}" for folder in folders(config_dir)), "structured://"]


def _compose(overrides: list[str], sources: list[str]) -> DictConfig:
    return _loader(sources).load_configuration("config", overrides=list(overrides), run_mode=RunMode.RUN)


def loader_of(config_dir: str | Path | None) -> ConfigLoaderImpl:
    """Return Hydra's config loader for pflsweep's groups and the user's."""
    return _loader(_sources(config_dir))


def _loader(sources: list[str]) -> ConfigLoaderImpl:
    """Return Hydra's config loader. Unlike its compose API it has no global state, so a notebook can use Hydra too."""
    Plugins.instance()  # registers the kinds of sources
    version.setbase("1.3")
    path = ConfigSearchPathImpl()
    providers = {"pkg://hydra.conf": "hydra", f"file://{conf_dir()}": "main", "structured://": "schema"}
    for source in sources:
        path.append(providers.get(source, "command-line"), source)
    return ConfigLoaderImpl(path)


@contextmanager
def hydra_errors(overrides: list[str], config_dir: str | Path | None = None) -> Iterator[None]:
    """Turn Hydra's errors into UserErrors of one paragraph."""
    try:
        with yaml_errors():
            yield
    except (HydraException, OmegaConfBaseException) as error:
        if "Ambiguous value" in str(error) or "requires --multirun" in str(error):
            raise _several(overrides, str(error)) from error
        raise UserError(_rephrased(error, overrides, config_dir)) from error
    except (UnicodeDecodeError, OSError) as error:
        # OmegaConf raises OSError for a file that is not a mapping. Neither error names the file, so look for it.
        if isinstance(error, OSError) and not str(error).startswith("Invalid loaded object type"):
            raise
        for file in sorted(Path(config_dir).rglob("*.yaml")) if config_dir else []:
            read_option(file)
        raise UserError(f"An option's YAML file cannot be read: {one_line(error)}.") from error
    except ValueError as error:
        if str(error).startswith("Config group override"):
            raise UserError(_no_name(overrides)) from error
        if not str(error).startswith(HYDRA_SAYS):
            raise
        raise UserError(f"{one_line(error)}.") from error
    except TypeError as error:
        if Path(extract_tb(error.__traceback__)[-1].filename).name != "defaults_list.py":  # Hydra's
            raise
        raise UserError(_no_name(overrides)) from error


def _no_name(overrides: list[str]) -> str:
    """Return the message for a config group that is set to what cannot be an option's name."""
    option = re.compile(r"\+*([\w/@.]+)=(null|true|false|[-+.\d].*)", re.IGNORECASE)
    groups = [match for match in map(option.fullmatch, overrides) if match and _is_group(match[1])]
    at = f"{groups[0][0]}: '{groups[0][1]}' has" if groups else "A config group has"
    return f"{at} to be set to an option's name, as in dataset=digits (see `pflsweep --help`), not to a number or null."


def _is_group(key: str) -> bool:
    """Return whether a key without a dot is a config group rather than a value."""
    return key in GROUPS or key in ("setting", "tune", "hydra") or "/" in key or "@" in key


@contextmanager
def yaml_errors() -> Iterator[None]:
    """Turn the errors of the YAML parser into UserErrors with file and line."""
    try:
        yield
    except yaml.MarkedYAMLError as error:
        mark, said = error.problem_mark, " ".join(filter(None, [error.context, error.problem]))
        file = f"{mark.name}, line {mark.line + 1}" if mark and mark.name[:1] != "<" else ""
        where = f"{file}, column {mark.column + 1}: this" if mark and file else "This"
        tab = " YAML is indented by spaces, not by tabs." if "'\\t'" in said else ""
        raise UserError(f"{where} cannot be read as YAML ({' '.join(said.split())}).{tab}") from error
    except yaml.YAMLError as error:
        raise UserError(f"This cannot be read as YAML: {one_line(error)}") from error


def yaml_of(text: str | IO[str]) -> Any:
    """Parse YAML as Hydra does: 1e-3 is a number, and a duplicate key is an error. Raises yaml.YAMLError."""
    return yaml.load(text, Loader=get_yaml_loader())


def read_option(file: Path) -> dict[str, Any]:
    """Return the content of an option's YAML file, without composing it. Raises UserError."""
    try:
        with yaml_errors(), open(file, encoding="utf-8") as text:
            content = yaml_of(text) or {}
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read ({one_line(error)}).") from error
    if not isinstance(content, dict):
        raise UserError(f"{file} has to be lines of `key: value`.")
    return content


def _own_folder(group: str, option: str) -> str:
    """Return a hint at a folder in the working directory that has an option's file; "" without one."""
    found = sorted(Path().glob(f"*/{group}/{glob.escape(option)}.yaml"))
    return f" {found[0]} is there: add --config-dir {found[0].parts[0]} (in Python: config_dir)." if found else ""


def _rephrased(error: Exception, overrides: list[str], config_dir: str | Path | None) -> str:
    """Return the message for the user of an error that Hydra or OmegaConf has raised."""
    sources = _sources(config_dir)
    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, option = str(error.missing_cfg_file).rpartition("/")
        known = sorted(error.options)
        # as_run/pgfed_pfedme is an option in a folder of its group, which Hydra takes for a group of its own.
        if (whole := group.partition("/")[0]) in GROUPS and whole != group:
            option, group = f"{group.partition('/')[2]}/{option}", whole
            known = list(option_files(group, config_dir))
        guess = _own_folder(group, option) or nearest(option, known)
        return f"{group}={option}: there is no {group} '{option}'.{guess} Known are: {', '.join(known)}."
    if isinstance(error, OverrideParseException):
        return unreadable(str(error.override), one_line(error))
    cause = str(error.__cause__ or error)
    missing = re.search(r"Could not override '([^']*)'", str(error)) or re.search(r"full_key: (\S+)", cause)
    if missing and ("Could not override" in str(error) or "is not in struct" in cause):
        return unknown_key(missing[1], _known_keys(overrides, sources))
    if missing := re.search(r"Could not append to config. An item is already at '([^']*)'", str(error)):
        return f"+{missing[1]}=...: the key is there already. Write {missing[1]}=..., without the +."
    if missing := re.search(r"Multiple values for ([\w/]+)\..*: ([^']*)'", str(error), re.DOTALL):
        choice = f"{missing[1]}={missing[2]}"
        return f"+{choice}: {missing[1]} is chosen already. Write {choice}, without the +."
    if missing := re.search(r"Could not delete from config. '([^']*)' does not exist", str(error)):
        return f"~{missing[1]} takes a key away, but: {unknown_key(missing[1], _known_keys(overrides, sources))}"
    if (missing := re.search(r"Error merging override (\S+)", str(error))) and "with ListConfig" in cause:
        return f"{missing[1]}: this key is a list, such as {missing[1].partition('=')[0]}=[1,2], not a mapping."
    detail = f" ({one_line(error.__cause__)})" if error.__cause__ and str(error.__cause__) not in str(error) else ""
    said = one_line(error).partition(" Config search path:")[0]  # the search path is long and does not help
    return f"The config cannot be composed: {said}{detail}"


def _several(overrides: list[str], said: str) -> UserError:
    """Return the error for an override with several values in a single run. said: Hydra's message."""
    override = next((word for word in overrides if f"'{word}'" in said or f" {word}" in said), "An override")
    if "=interval(" in override:
        return UserError(no_interval(override))
    return OfSweep(f"{override} has several values", f"{ADD_M} to train each of them.", several=True)


def unknown_key(key: str, known: list[str]) -> str:
    """Return the message for a config key that does not exist. known: all full keys."""
    if any(other.startswith(f"{key}.") for other in known):
        return f"'{key}' is a group of keys, not a value: set one of them, as in {key}.<key>=<value>."
    if key == "setting":
        return "A setting is added to the defaults: +setting=NAME (see `pflsweep list settings`)."
    if key in known:  # another option of the sweep has the key
        return f"{key} is not a key of every option in this sweep: sweep those that have it by themselves."
    if _is_group(key) and any(other.startswith(f"{key}.") or other == key for other in [*known, *GROUPS]):
        return f"'{key}' is a config group: choose an option, {key}=NAME, or set one of its keys."
    head, _, name = key.rpartition(".")
    if head in ("", "train", "algorithm") and _OF_OPTIMISERS.fullmatch(name):
        return (
            f"Unknown config key '{key}'. Clients train with SGD, whose keys are train.lr, train.momentum and "
            "train.weight_decay, and the learning rate of round t is train.lr * train.lr_decay ** (t - 1). There is no "
            "other optimiser and no other schedule. Adam and momentum on the server are methods: algorithm=fedadam, "
            "fedyogi, fedadagrad, fedavgm."
        )
    siblings = [other for other in known if other.rpartition(".")[0] == head]
    guess = nearest(key, siblings if head else [*known, *GROUPS]) or nearest(key, known)
    inside = [other for other in known if not head and other.endswith(f".{key}")]
    guess = f" Did you mean '{inside[0]}'?" if inside else guess
    names = ", ".join(other.rpartition(".")[2] for other in siblings)
    has = f" '{head}' has: {names}." if names else f" '{head}' has no keys to set."
    return f"Unknown config key '{key}'.{guess}{has if head else ''} See `pflsweep --help`."


def known_keys(overrides: list[str], config_dir: str | Path | None = None) -> list[str]:
    """Return the keys that a command with these overrides may set, of trials and of sweeps."""
    return _known_keys(overrides, _sources(config_dir))


def _known_keys(overrides: list[str], sources: list[str]) -> list[str]:
    """Return all full keys of the options that the overrides choose, and of the defaults in other groups.

    Where an override chooses several options, the keys of each are among them.
    """
    named = [override.partition("=") for override in overrides]
    chosen = {group: option.split(",") for group, _, option in named if group in GROUPS}
    known: dict[str, None] = {}
    for k in range(max(map(len, chosen.values()), default=1)):
        try:
            composed = _compose([f"{group}={options[k % len(options)]}" for group, options in chosen.items()], sources)
        except HydraException:
            composed = _compose([], sources)
        known |= dict.fromkeys(flat(_plain(composed)) | flat(command_of(composed)))
    return [key for key in known if not key.endswith("._target_")]
