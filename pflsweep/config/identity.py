"""The identity of a trial: a hash of everything that its numbers depend on.

It hashes option names and values, as a command gives them (algorithm=fedala partition.alpha=0.1), and no import path of
shipped code: records stay valid when a file is moved or a class renamed. A user's own class is identified by its name
and the hash of its source.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from pflsweep.config import options
from pflsweep.config.keys import PLUGS, under
from pflsweep.util.resources import shipped

# Versions of the numerics. One is raised when a change alters the numbers of all models ("engine") or of one family of
# models, which their module names as FAMILY. "new_clients" is for trials with data.new alone: 2, since they train in
# batches as train.last_batch and train.shuffle say. "stale_rows" is for metrics.personal=stale with methods that keep
# clients' models on the server: 2, since these are scored as trained in a client's last turn, not in the one before.
# A method's `version` is in its class. Version 1 is left out of identities, so that adding a family changes none.
NUMERICS = {"engine": 1, "dense": 2, "convolutional": 1, "text": 1, "recurrent": 1, "new_clients": 2, "stale_rows": 2}
# Keys that determine where and how a trial runs, but not what it computes: they are not part of its identity.
RUNTIME = (
    "device",
    "train.chunk",
    "train.threads",
    "train.workers",
    "data.root",
    "data.download",
    "dataset.path",  # the data's checksum is part of the identity instead
    "paths",
    "tracking",
    "checkpoint",
)
# The values that all records had before these keys were added. A config with such a value has the identity of one
# without the key. Methods, models, datasets and partitions declare the neutral values of their own keys.
NEUTRAL: dict[str, Any] = {
    **{group: {} for group in (*PLUGS, "study")},
    **options.neutral(),
}
# Neutral values of keys that are gone. The configs of older records have them, and keep their identities.
GONE: dict[str, Any] = {"train.compile": False}


class Condition(NamedTuple):
    """When a key has an effect. holds: whether it is met by a flat config, which may lack neutral values."""

    text: str
    holds: Callable[[Mapping[str, Any]], Any]


_PARTIAL = Condition("train.participation below 1", lambda config: config.get("train.participation") != 1.0)
# Keys that have an effect only under a condition
CONDITIONAL_KEYS = {
    "data.shuffle": Condition("data.targets=permuted", lambda config: config.get("data.targets") == "permuted"),
    "data.new_epochs": Condition("data.new above 0", lambda config: config.get("data.new")),
    "train.sampling": _PARTIAL,
    "train.sampling_alpha": Condition(
        f"train.sampling=dirichlet and {_PARTIAL.text}",
        lambda config: config.get("train.sampling") == "dirichlet" and _PARTIAL.holds(config),
    ),
    "train.optimiser_state": Condition("train.momentum above 0", lambda config: config.get("train.momentum")),
    "train.lr_of": Condition(
        f"train.lr_decay other than 1 and {_PARTIAL.text}",
        lambda config: config.get("train.lr_decay") != 1.0 and _PARTIAL.holds(config),
    ),
    "train.first_round": _PARTIAL,
    "train.epochs": Condition("train.steps=null", lambda config: config.get("train.steps") is None),
    "metrics.all_size": Condition("metrics.all=true", lambda config: config.get("metrics.all")),
}


def config_digest(
    config: Mapping[str, Any],
    *,
    versions: Mapping[str, int],
    numerics: Mapping[str, int],
    resumable: bool,
    code: Sequence[str] = (),
) -> str:
    """Return a digest (16 hex digits) of everything that a trial's numbers depend on, except its data.

    config: flat and portable (see `portable` and `without_neutral`). versions: those of the method and of each plug-in,
    by group. numerics: those of the engine and the model, by family. resumable: whether more rounds continue a run;
    train.rounds is then left out, so that a longer run finds the record of a shorter one. code: hashes of source that
    is not pflsweep's.

    eval_batch and eval_every are included: batch norm's calibration depends on the one, the rows of a record's table on
    the other.
    """
    runtime = (*RUNTIME, "train.rounds") if resumable else RUNTIME
    relevant = {key: value for key, value in effective(config).items() if not under(key, runtime)}
    return _digest([relevant, dict(versions), raised(numerics), list(code)])


def has_own_rows(config: Mapping[str, Any]) -> bool:
    """Return whether each seed may have rows of its own: data.limit draws some, and from_file may read a file each.

    config: flat. The checksums of data then differ between seeds of the same setting.
    """
    return config.get("data.limit") is not None or config.get("partition") == "from_file"


def raised(numerics: Mapping[str, int]) -> dict[str, int]:
    """Return the versions of numerics that are part of identities: those above 1."""
    return {family: version for family, version in numerics.items() if version != 1}


def identity(config_digest: str, data_checksum: str) -> str:
    """Return the identity of a trial: 16 hex digits, the name of its record's folder."""
    return _digest([config_digest, data_checksum])


def _digest(content: Any) -> str:
    """Return a hash of JSON content, 16 hex digits."""
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=8).hexdigest()


def portable(values: Any, choices: Mapping[str, str]) -> dict[str, Any]:
    """Return a config in which `_option_`, the name of an option, replaces each import path (`_target_`).

    choices: the chosen option of each group.
    """
    return {group: _portable(node, choices.get(group)) for group, node in values.items()}


def _portable(node: Any, option: str | None = None) -> Any:
    """Return a node, and those inside it, with `_option_` in place of `_target_`. option: the one chosen for it."""
    if not isinstance(node, dict):
        return node
    named = {"_option_": option_of(node["_target_"], option)} if "_target_" in node else {}
    return named | {key: _portable(value) for key, value in node.items() if key != "_target_"}


def option_of(target: str, option: str | None = None) -> str:
    """Return the name that identities use for a `_target_`.

    It is `option` where that is a shipped option with this target, or else the first shipped option with this target.
    For a class or function that no shipped option names, such as a user's own, it is its name without the module, after
    "own." where a shipped option has that name.
    """
    if known := shipped_options().get(target, []):
        return option if option in known else known[0]
    name = target.rpartition(".")[2]
    return f"own.{name}" if is_shipped(name) else name


def is_shipped(option: str) -> bool:
    """Return whether conf/ has an option of this name, in any group."""
    return any(option in options for options in shipped_options().values())


@cache
def shipped_options() -> dict[str, list[str]]:
    """Return the options of conf/ by their `_target_`, each list sorted by name."""
    found: dict[str, list[str]] = {}
    folder = shipped("conf")
    files = {file: file.relative_to(folder).with_suffix("") for file in folder.glob("*/**/*.yaml")}
    for option, file in sorted((path.relative_to(path.parts[0]).as_posix(), file) for file, path in files.items()):
        if named := re.search(r"^_target_: *(\S+)", file.read_text(encoding="utf-8"), re.MULTILINE):
            found.setdefault(named[1], []).append(option)
    return found


def without_neutral(config: Mapping[str, Any], neutral: Mapping[str, Any]) -> dict[str, Any]:
    """Return a flat config without keys that have their neutral value."""
    return {key: value for key, value in config.items() if key not in neutral or value != neutral[key]}


def with_neutral(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a flat config with the trainer's neutral values added, and without keys that have no effect."""
    return effective({**NEUTRAL, **config})


def effective(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a flat config without the keys that have no effect in it."""
    idle = set(without_effect(config, [config]))
    # The checksum of the rows in the file is part of the identity. A user's own partition may use `path` otherwise
    if config.get("partition") == "from_file":
        idle.add("partition.path")
    return {key: value for key, value in config.items() if key not in idle}


def without_effect(keys: Iterable[str], configs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return those of the keys that have no effect in any of the flat configs, each with what it needs to have one."""
    return {
        key: CONDITIONAL_KEYS[key].text
        for key in sorted(CONDITIONAL_KEYS.keys() & set(keys))
        if not any(CONDITIONAL_KEYS[key].holds(config) for config in configs)
    }


def needs(key: str) -> str:
    """Return what a key needs to have an effect, for the end of its meaning; empty if it always has one."""
    return f"; needs {CONDITIONAL_KEYS[key].text}" if key in CONDITIONAL_KEYS else ""


def method_name(chosen: Mapping[str, Any]) -> str:
    """Return the name of a method with its plug-ins, such as fedavg+ala+gaussian. chosen: the option of each group."""
    plugged = [(group, chosen.get(group) or "none") for group in PLUGS]
    names = [group if option == "on" else option for group, option in plugged if option not in ("none", "off")]
    return "+".join([str(chosen.get("algorithm") or chosen["method"]), *names])
