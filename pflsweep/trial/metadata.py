"""Describe a trial for its record's meta.json: identity, name, versions, environment."""

import importlib
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import torch

from pflsweep import __version__
from pflsweep.config.compose import Config
from pflsweep.config.identity import NUMERICS, config_digest, identity, method_name, without_neutral
from pflsweep.config.keys import PLUGS, flat
from pflsweep.config.node import Node
from pflsweep.config.schema import CLASS_GROUPS, FUNCTION_GROUPS, neutral_values
from pflsweep.methods.protocol import Plugin
from pflsweep.ops import products
from pflsweep.records.content import FORMAT
from pflsweep.studies.study import Study
from pflsweep.trial.build import Parts
from pflsweep.util import processor
from pflsweep.util.source_hash import code_digests, own_source_hashes


def describe(config: Config, parts: Parts) -> dict[str, Any]:
    """Return the content of a trial's meta.json."""
    chosen, dataset = config.choices, parts.federation.dataset
    code, bad = own_code_hashes(config), parts.verbs.malicious
    beside: dict[str, Plugin | Study] = {**parts.plugins, **({} if parts.study is None else {"study": parts.study})}
    versions = {group: part.version for group, part in beside.items()}
    digest = digest_of(config, all(part.resumable for part in (parts.method, *beside.values())), code)
    partition = chosen["partition"] + "-prescribed" * (config.data.prescribed is not None)
    return {
        "format": FORMAT,
        "identity": identity(digest, parts.federation.checksum),
        "config_digest": digest,
        "name": f"{method_name(chosen)}-{chosen['dataset']}-{partition}-{config.seed}",
        "method": chosen["algorithm"],
        **{group: chosen[group] for group in ("dataset", "partition", *PLUGS, "study")},
        "model": model_name(config),
        "seed": config.seed,
        "method_version": parts.method.version,
        "reconstruction": parts.method.reconstruction,
        "plugin_versions": versions,
        "numerics": numerics(config),
        "neutral": sorted(flat_values(config).keys() - canonical(config).keys()),
        "malicious": [] if bad is None else bad.nonzero()[:, 0].tolist(),
        "code": code,
        "digests": shipped_code(config),
        "data_checksum": parts.federation.checksum,
        "shape": list(dataset.shape),
        "classes": dataset.classes,
        "statistics": parts.federation.statistics(),
        "commit": commit(),
        "version": __version__,
        "environment": _environment(parts),
    }


def digest_of(config: Config, resumable: bool, code: list[str]) -> str:
    """Return the hash of all that a trial's numbers depend on, apart from its data. See `config_digest`."""
    versions = {node.group: node.load().version for node in class_nodes(config)}
    return config_digest(
        canonical(config), versions=versions, numerics=numerics(config), resumable=resumable, code=code
    )


def flat_values(config: Config) -> dict[str, Any]:
    """Return a config as flat keys, with option names in place of import paths."""
    return flat(config.portable)


def canonical(config: Config) -> dict[str, Any]:
    """Return a config as flat keys without neutral values, so that keys added later change nothing."""
    return without_neutral(flat_values(config), neutral_values(config))


def numerics(config: Config) -> dict[str, int]:
    """Return the numerics versions that a trial depends on: of the engine, of its model's family, and of two options.

    A user's own model without a FAMILY depends on all, since it may use layers of any.
    """
    family = getattr(importlib.import_module(config.node("model").module), "FAMILY", None)
    acting = {
        "new_clients": config.data.new,
        "stale_rows": config.metrics.personal == "stale" and config.node("algorithm").load().rows_on_server,
    }
    there = {name: version for name, version in NUMERICS.items() if acting.get(name, True)}
    used = there if family is None else ("engine", family, *acting)
    return {name: version for name, version in there.items() if name in used}


def model_name(config: Config) -> str:
    """Return the model's option, with the model's own name where the option has many, as in `torchvision.vgg11`."""
    option, own = config.choices["model"], config.node("model").options.get("name")
    return option if own in (None, option) else f"{option}.{own}"


def class_nodes(config: Config) -> list[Node]:
    """Return the nodes of the method and of the plug-ins and study that are chosen beside it."""
    return [config.node(group) for group in CLASS_GROUPS if config.chooses(group)]


def own_code_hashes(config: Config) -> list[str]:
    """Return hashes of the user's own modules in which method, plug-ins, model, dataset or partition are written."""
    return own_source_hashes({path: each for node in _code_nodes(config) for path, each in node.load_all().items()})


def shipped_code(config: Config) -> dict[str, str]:
    """Return digests of the engine's code and of what each chosen option adds to it, by group. See `code_digests`."""
    return code_digests(
        {node.group: [path.rpartition(".")[0] for path in node.paths()] for node in _code_nodes(config)}
    )


def _code_nodes(config: Config) -> list[Node]:
    """Return the nodes whose classes and functions a trial's numbers depend on."""
    return [*class_nodes(config), *(config.node(group) for group in FUNCTION_GROUPS)]


def _environment(parts: Parts) -> dict[str, Any]:
    """Return versions and hardware on which the trial runs."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "processor": processor.name(),
        "products": products.provider(),
        "threads": torch.get_num_threads(),
        "device": str(parts.federation.device),
    }


# Cached, since the code that runs is the one that was imported at the start
@cache
def commit() -> str | None:
    """Return the commit of pflsweep's own checkout, with `-dirty` where files were changed; None in a wheel."""
    package = Path(__file__).parents[1]
    root = package.parent
    if not (root / ".git").exists():
        return None
    try:
        head = _git(root, "rev-parse", "HEAD")
        changes = _git(root, "status", "--porcelain", "--", package.name, "conf")
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{head}-dirty" if changes else head


def _git(root: Path, *words: str) -> str:
    """Return the output of a git command, which takes no lock: a commit may be in progress."""
    command = ["git", "--no-optional-locks", *words]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.strip()
