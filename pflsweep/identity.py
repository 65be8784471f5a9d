"""What of a config the numbers of a trial depend on: its identity, and the method's name."""

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from pflsweep.keys import PLUGS, flat, under

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
YOUNG: dict[str, Any] = {
    **{group: {} for group in (*PLUGS, "study") if group != "ala"},
    "algorithm.idle": 0.0,
    "ala.idle": 0.0,
    "dataset.augment": "none",
    "data.limit": None,
    "data.targets": "own",
    "data.shuffle": 0,
    "data.new": 0,
    "data.new_epochs": 20,
    "train.sampling": "uniform",
    "train.sampling_alpha": 1.0,
    "train.optimiser_state": "fresh",
    "train.precision": "fp32",
    "train.compile": False,
}
# keys that act on something only under this condition on the flat config
ACTING: dict[str, Callable[[dict[str, Any]], Any]] = {
    "data.shuffle": lambda config: config.get("data.targets") == "permuted",
    "data.new_epochs": lambda config: config.get("data.new"),
    "train.sampling_alpha": lambda config: config.get("train.sampling") == "dirichlet",
    "train.optimiser_state": lambda config: config.get("train.momentum"),
}


def identity(
    config: dict[str, Any],
    *,
    data_checksum: str,
    version: int,
    extends: bool,
    plugins: dict[str, int] | None = None,
    code: Sequence[str] = (),
) -> str:
    """16 hex digits of what the numbers of a trial depend on. plugins: the version of each by its group.
    code: hashes of source that is not pflsweep's.

    eval_batch and eval_every stay in: the one changes batch norm's recalibration, the other the rows.
    Where more rounds just continue a run (`extends`), train.rounds is left out, so that they find it. So are the
    groups and keys younger than the first records where nothing is chosen of them.
    """
    runtime = (*RUNTIME, "train.rounds") if extends else RUNTIME
    relevant = {key: value for key, value in without_young(acting(flat(config))).items() if not under(key, runtime)}
    text = json.dumps([relevant, data_checksum, version, *([plugins] if plugins else []), *code], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def without_young(config: dict[str, Any]) -> dict[str, Any]:
    """A flat config without the keys that are younger than the first records, where nothing is chosen of them."""
    return {key: value for key, value in config.items() if key not in YOUNG or value != YOUNG[key]}


def whole(config: dict[str, Any]) -> dict[str, Any]:
    """A config as flat keys that act on something; those younger than it have the values that it was trained with."""
    return acting({**YOUNG, **flat(config)})


def acting(config: dict[str, Any]) -> dict[str, Any]:
    """A flat config without the keys that act on nothing."""
    return {key: value for key, value in config.items() if key not in ACTING or ACTING[key](config)}


def method_name(chosen: dict[str, Any]) -> str:
    """The method with what is plugged into it, by the options chosen of each group: fedavg, fedavg+ala+gaussian."""
    plugged = [(group, chosen.get(group) or "none") for group in PLUGS]
    names = [group if option == "on" else option for group, option in plugged if option not in ("none", "off")]
    return "+".join([str(chosen.get("algorithm") or chosen["method"]), *names])
