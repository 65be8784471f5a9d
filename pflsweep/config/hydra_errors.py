"""Say Hydra's errors in words for users: which key or option is wrong, and what would be right."""

import glob
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import extract_tb

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from pflsweep.config.hydra_loader import (
    GROUPS,
    load,
    option_files,
    read_option,
    search_path,
    sweep_values_of,
    trial_part,
    yaml_errors,
)
from pflsweep.config.keys import flat
from pflsweep.config.overrides import ADD_M, no_interval, unreadable
from pflsweep.util.errors import UserError, nearest, one_line

# Beginnings of the messages of Hydra's ValueErrors that the user's overrides or flags cause
HYDRA_SAYS = (
    "Invalid defaults list",
    "The --resolve flag",
    "Only one of --run",
)
# Names that other libraries have for a key
SYNONYMS = {
    **dict.fromkeys(("learning_rate", "local_learning_rate", "client_lr", "local_lr"), "train.lr"),
    **dict.fromkeys(("batch_size", "local_batch_size", "bs"), "train.batch"),
    **dict.fromkeys(("local_epochs", "num_epochs", "client_epochs"), "train.epochs"),
    **dict.fromkeys(("local_steps", "num_steps"), "train.steps"),
    **dict.fromkeys(("global_rounds", "num_rounds", "n_rounds", "comm_rounds", "global_epochs"), "train.rounds"),
    **dict.fromkeys(("join_ratio", "client_fraction", "fraction", "fraction_fit", "frac"), "train.participation"),
    **dict.fromkeys(("num_clients", "n_clients", "client_num"), "partition.clients"),
    **dict.fromkeys(("lr_schedule_gamma", "learning_rate_decay", "lr_decay_gamma"), "train.lr_decay"),
    **dict.fromkeys(("random_seed", "manual_seed"), "seed"),
}
# Names that are typed in search of another optimiser or schedule, of which the nearest keys mean something else
_OF_OPTIMISERS = re.compile(
    r"optim|(lr_|train_)?(optimi[sz]er|scheduler?|warm_?up|cosine|annealing)(_(type|name|rounds|steps|epochs|lr))?|"
    r"adamw?|sgd|rmsprop|adagrad|nesterov"
)


class SweepOnly(UserError):  # noqa: N818 (a state)
    """An override of a single trial that only a sweep takes: several values, or a key of a sweep.

    what: what is wrong, without what to do. several: whether it is several values.
    """

    def __init__(self, what: str, mend: str, several: bool) -> None:
        super().__init__(f"{what}: {mend}")
        self.what, self.several = what, several


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


def _rephrased(error: Exception, overrides: list[str], config_dir: str | Path | None) -> str:
    """Return the message for the user of an error that Hydra or OmegaConf has raised."""
    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, option = str(error.missing_cfg_file).rpartition("/")
        known = sorted(error.options)
        # as_run/pgfed_pfedme is an option in a folder of its group, which Hydra takes for a group of its own.
        if (whole := group.partition("/")[0]) in GROUPS and whole != group:
            option, group = f"{group.partition('/')[2]}/{option}", whole
            known = list(option_files(group, config_dir))
        guess = _own_file(group, option, config_dir) or nearest(option, known)
        return f"{group}={option}: there is no {group} '{option}'.{guess} Known are: {', '.join(known)}."
    if isinstance(error, OverrideParseException):
        return unreadable(str(error.override), one_line(error))
    cause = str(error.__cause__ or error)
    missing = re.search(r"Could not override '([^']*)'", str(error)) or re.search(r"full_key: (\S+)", cause)
    if missing and ("Could not override" in str(error) or "is not in struct" in cause):
        return unknown_key(missing[1], known_keys(overrides, config_dir))
    if missing := re.search(r"Could not append to config. An item is already at '([^']*)'", str(error)):
        return f"+{missing[1]}=...: the key is there already. Write {missing[1]}=..., without the +."
    if missing := re.search(r"Multiple values for ([\w/]+)\..*: ([^']*)'", str(error), re.DOTALL):
        choice = f"{missing[1]}={missing[2]}"
        return f"+{choice}: {missing[1]} is chosen already. Write {choice}, without the +."
    if missing := re.search(r"Could not delete from config. '([^']*)' does not exist", str(error)):
        return f"~{missing[1]} takes a key away, but: {unknown_key(missing[1], known_keys(overrides, config_dir))}"
    if (missing := re.search(r"Error merging override (\S+)", str(error))) and "with ListConfig" in cause:
        return f"{missing[1]}: this key is a list, such as {missing[1].partition('=')[0]}=[1,2], not a mapping."
    detail = f" ({one_line(error.__cause__)})" if error.__cause__ and str(error.__cause__) not in str(error) else ""
    said = one_line(error).partition(" Config search path:")[0]  # the search path is long and does not help
    return f"The config cannot be composed: {said}{detail}"


def _no_name(overrides: list[str]) -> str:
    """Return the message for a config group that is set to what cannot be an option's name."""
    option = re.compile(r"\+*([\w/@.]+)=(null|true|false|[-+.\d].*)", re.IGNORECASE)
    groups = [match for match in map(option.fullmatch, overrides) if match and _is_group(match[1])]
    at = f"{groups[0][0]}: '{groups[0][1]}' has" if groups else "A config group has"
    return f"{at} to be set to an option's name, as in dataset=digits (see `pflsweep --help`), not to a number or null."


def _several(overrides: list[str], said: str) -> UserError:
    """Return the error for an override with several values in a single run. said: Hydra's message."""
    override = next((word for word in overrides if f"'{word}'" in said or f" {word}" in said), "An override")
    if "=interval(" in override:
        return UserError(no_interval(override))
    return SweepOnly(f"{override} has several values", f"{ADD_M} to train each of them.", several=True)


def _own_file(group: str, option: str, config_dir: str | Path | None) -> str:
    """Return a hint at an option's file with another ending, or in a folder of the working directory; "" if none."""
    if config_dir and (other := Path(config_dir) / group / f"{option}.yml").exists():
        return f" {other} is there: let its name end in .yaml."
    found = sorted(Path().glob(f"*/{group}/{glob.escape(option)}.yaml"))
    return f" {found[0]} is there: add --config-dir {found[0].parts[0]} (in Python: config_dir)." if found else ""


def unknown_key(key: str, known: list[str]) -> str:
    """Return the message for a config key that does not exist. known: all full keys."""
    if any(other.startswith(f"{key}.") for other in known):
        return f"'{key}' is a group of keys, not a value: set one of them, as in {key}.<key>=<value>."
    if key == "setting":
        return "A setting is added to the defaults: +setting=NAME (see `pflsweep list settings`)."
    if key.startswith("setting."):
        return (
            f"Unknown config key '{key}': a setting has no keys. In a setting's file the first line has to be "
            f"`# @package _global_`. Its keys are then those of the config, as {key.removeprefix('setting.')} is."
        )
    if key in known:  # an option has the key that is not chosen, or is one of several of a sweep
        return f"{key} is not a key of every option that is chosen: set it beside options that have it only."
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
    names = ", ".join(other.rpartition(".")[2] for other in siblings)
    if key == "partition.clients":
        return (
            "Unknown config key 'partition.clients': the chosen partition says itself how many clients there are. "
            f"It has: {names}."
        )
    inside = [other for other in known if not head and other.endswith(f".{key}")]
    meant = [*inside, *(other for other in known if other == SYNONYMS.get(name))]
    guess = nearest(key, siblings if head else [*known, *GROUPS]) or nearest(key, known)
    guess = f" Did you mean '{meant[0]}'?" if meant else guess
    has = f" '{head}' has: {names}." if names else f" '{head}' has no keys to set."
    return f"Unknown config key '{key}'.{guess}{has if head else ''} See `pflsweep --help`."


def _is_group(key: str) -> bool:
    """Return whether a key without a dot is a config group rather than a value."""
    return key in GROUPS or key in ("setting", "tune", "hydra") or "/" in key or "@" in key


def known_keys(overrides: list[str], config_dir: str | Path | None = None) -> list[str]:
    """Return the keys that a command with these overrides may set, of trials and of sweeps.

    They are those of the options that the overrides choose, and of the defaults in other groups. Where an override
    chooses several options, the keys of each are among them.
    """
    sources = search_path(config_dir)
    named = [override.partition("=") for override in overrides]
    chosen = {group: option.split(",") for group, _, option in named if group in GROUPS}
    known: dict[str, None] = {}
    for k in range(max(map(len, chosen.values()), default=1)):
        try:
            composed = load([f"{group}={options[k % len(options)]}" for group, options in chosen.items()], sources)
        except HydraException:
            composed = load([], sources)
        known |= dict.fromkeys(flat(trial_part(composed)) | flat(sweep_values_of(composed)))
    return [key for key in known if not key.endswith("._target_")]
