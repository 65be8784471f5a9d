"""The identity of a trial: a hash of everything that its numbers depend on.

It hashes option names and values, as a command gives them (algorithm=fedala partition.alpha=0.1), never import paths
of shipped code, so that a file that is moved and a class that is renamed orphan no record. A class of the user's own is
known by its name and by the hash of its source.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from pflsweep.config import options
from pflsweep.config.keys import PLUGS, under
from pflsweep.util.resources import shipped

# Raised when a change moves the numbers of all models ("engine") or of those of one family, which a model's module
# names as FAMILY. A method's own `version` stands in its class. 1 is left out of identities, so that a new family
# changes none.
NUMERICS = {"engine": 1, "dense": 2, "convolutional": 1, "text": 1, "recurrent": 1}
# Keys that say where and how a trial runs, but not what it computes
RUNTIME = (
    "device",
    "train.chunk",
    "train.threads",
    "train.workers",
    "data.root",
    "data.download",
    "dataset.path",  # what lies there is known by its checksum
    "paths",
    "tracking",
    "checkpoint",
)
# The values that every record had before their keys were there: a config that has one is the same config as one
# without the key. Methods, models, datasets and partitions declare those of their own keys.
NEUTRAL: dict[str, Any] = {
    **{group: {} for group in (*PLUGS, "study")},
    **options.neutral(),
}
# Keys that act on something only under this condition on the flat config, which may lack neutral values
CONDITIONAL_KEYS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "data.shuffle": lambda config: config.get("data.targets") == "permuted",
    "data.new_epochs": lambda config: config.get("data.new"),
    "train.sampling_alpha": lambda config: config.get("train.sampling") == "dirichlet",
    "train.optimiser_state": lambda config: config.get("train.momentum"),
    "train.lr_of": lambda config: config.get("train.lr_decay") != 1.0 and config.get("train.participation") != 1.0,
    "train.first_round": lambda config: config.get("train.participation") != 1.0,
    "train.epochs": lambda config: config.get("train.steps") is None,
    "metrics.all_size": lambda config: config.get("metrics.all"),
    # the rows in the file are known by their checksum; a partition of the user's own may mean something else by `path`
    "partition.path": lambda config: config.get("partition") != "from_file",
}


def config_digest(
    config: Mapping[str, Any],
    *,
    versions: Mapping[str, int],
    numerics: Mapping[str, int],
    resumable: bool,
    code: Sequence[str] = (),
) -> str:
    """Return 16 hex digits of what a trial's numbers depend on, but for its data.

    config: flat and portable (see `portable` and `without_neutral`). versions: of the method and of each plug-in, by
    group. numerics: of the engine and the model, by family. extends: whether more rounds just continue a run, so that
    train.rounds is left out and they find it. code: hashes of source that is not pflsweep's.

    eval_batch and eval_every are part of it: the one changes batch norm's recalibration, the other the rows.
    """
    runtime = (*RUNTIME, "train.rounds") if resumable else RUNTIME
    relevant = {key: value for key, value in conditional(config).items() if not under(key, runtime)}
    return _digest([relevant, dict(versions), raised(numerics), list(code)])


def raised(numerics: Mapping[str, int]) -> dict[str, int]:
    """Return the numerics versions that tell trials apart: those above 1, which a record need not name."""
    return {family: version for family, version in numerics.items() if version != 1}


def identity(config_digest: str, data_checksum: str) -> str:
    """Return the identity of a trial: 16 hex digits, the name of its record's folder."""
    return _digest([config_digest, data_checksum])


def _digest(content: Any) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=8).hexdigest()


def portable(values: Any, choices: Mapping[str, str]) -> dict[str, Any]:
    """Return a config whose nodes say the option that built them, `_option_`, in the place of an import path.

    choices: the chosen option of each group.
    """
    return {group: _portable(node, choices.get(group)) for group, node in values.items()}


def _portable(node: Any, option: str | None = None) -> Any:
    if not isinstance(node, dict):
        return node
    named = {"_option_": option_of(node["_target_"], option)} if "_target_" in node else {}
    return named | {key: _portable(value) for key, value in node.items() if key != "_target_"}


def option_of(target: str, option: str | None = None) -> str:
    """Return the name by which identities know what a `_target_` names.

    It is `option` where that is the shipped option of this target; else the first shipped one that has this target. A
    class or function that no shipped option names, as a user's own, is known by its own name without its module.
    """
    known = shipped_options().get(target, [])
    return option if option in known else known[0] if known else target.rpartition(".")[2]


@cache
def shipped_options() -> dict[str, list[str]]:
    """Return the options of conf/ by the import path that they build, sorted by name."""
    found: dict[str, list[str]] = {}
    folder = shipped("conf")
    files = {file: file.relative_to(folder).with_suffix("") for file in folder.glob("*/**/*.yaml")}
    for option, file in sorted((path.relative_to(path.parts[0]).as_posix(), file) for file, path in files.items()):
        if named := re.search(r"^_target_: *(\S+)", file.read_text(encoding="utf-8"), re.MULTILINE):
            found.setdefault(named[1], []).append(option)
    return found


def without_neutral(config: Mapping[str, Any], neutral: Mapping[str, Any]) -> dict[str, Any]:
    """Return a flat config without the keys that have their neutral value."""
    return {key: value for key, value in config.items() if key not in neutral or value != neutral[key]}


def whole(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a flat config with the trainer's neutral values where they are left out, without what acts on nothing."""
    return conditional({**NEUTRAL, **config})


def conditional(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a flat config without the keys that act on nothing."""
    return {key: value for key, value in config.items() if key not in CONDITIONAL_KEYS or CONDITIONAL_KEYS[key](config)}


def method_name(chosen: Mapping[str, Any]) -> str:
    """Return the method with what is plugged into it, by the options chosen of each group: fedavg+ala+gaussian."""
    plugged = [(group, chosen.get(group) or "none") for group in PLUGS]
    names = [group if option == "on" else option for group, option in plugged if option not in ("none", "off")]
    return "+".join([str(chosen.get("algorithm") or chosen["method"]), *names])
