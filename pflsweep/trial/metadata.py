"""What a record says about its trial before training: identity, name, environment."""

import importlib
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import torch

from pflsweep import __version__
from pflsweep.config.compose import Config
from pflsweep.config.identity import NUMERICS, config_digest, identity, method_name, portable, without_neutral
from pflsweep.config.keys import PLUGS, flat
from pflsweep.config.schema import PLUGGED, imported, target, target_path
from pflsweep.ops import products
from pflsweep.records.content import FORMAT
from pflsweep.trial.build import BUILT, Parts, neutral_values
from pflsweep.util import processor
from pflsweep.util.source_hash import code_digests, own_modules


def describe(config: Config, parts: Parts) -> dict[str, Any]:
    """meta.json of a trial."""
    chosen, dataset = config.choices, parts.federation.dataset
    code, bad = own_code(config), parts.verbs.malicious
    beside = {**parts.plugins, **({} if parts.study is None else {"study": parts.study})}
    versions = {group: part.version for group, part in beside.items()}
    digest = digest_of(config, all(part.resumable for part in (parts.method, *beside.values())), code)
    partition = chosen["partition"] + "-prescribed" * (config.values["data"]["prescribed"] is not None)
    return {
        "format": FORMAT,
        "identity": identity(digest, parts.federation.checksum),
        "config_digest": digest,
        "name": f"{method_name(chosen)}-{chosen['dataset']}-{partition}-{config.values['seed']}",
        "method": chosen["algorithm"],
        **{group: chosen[group] for group in ("dataset", "partition", *PLUGS, "study")},
        "model": model_name(config),
        "seed": config.values["seed"],
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
        "commit": _commit(),
        "version": __version__,
        "environment": _environment(parts),
    }


def digest_of(config: Config, resumable: bool, code: list[str]) -> str:
    """Return the hash of what a trial's numbers depend on but for its data. See `config_digest`."""
    versions = {group: target(group, option, node).version for group, option, node in plugged(config)}
    return config_digest(
        canonical(config), versions=versions, numerics=numerics(config), resumable=resumable, code=code
    )


def flat_values(config: Config) -> dict[str, Any]:
    """Return a config as flat keys with options in the place of import paths."""
    return flat(portable(config.values, config.choices))


def canonical(config: Config) -> dict[str, Any]:
    """Return a config as flat keys without neutral values: equal for all configs that compute the same."""
    return without_neutral(flat_values(config), neutral_values(config))


def numerics(config: Config) -> dict[str, int]:
    """Return the numerics versions that a trial depends on: of the engine, and of its model's family. A model of the
    user's own that names no FAMILY may use layers of any.
    """
    module = target_path("model", config.choices["model"], config.values["model"]).rpartition(".")[0]
    family = getattr(importlib.import_module(module), "FAMILY", None)
    return {name: version for name, version in NUMERICS.items() if name in ("engine", family) or family is None}


def model_name(config: Config) -> str:
    """The option, and the model's own name where the option has many: torchvision.vgg11, which is not model=vgg11."""
    option, own = config.choices["model"], config.values["model"].get("name")
    return option if own in (None, option) else f"{option}.{own}"


def plugged(config: Config) -> list[tuple[str, str, dict[str, Any]]]:
    """Group, option and node of what a class describes: the method and what is chosen beside it."""
    return [(group, config.choices[group], config.values[group]) for group in PLUGGED if config.values[group]]


def own_code(config: Config) -> list[str]:
    """Hashes of what method, plug-ins, model, dataset or partition are written in outside pflsweep."""
    objects = [target(*node) for node in plugged(config)]
    for group in BUILT:
        objects += [imported(path, f"{group}={config.choices[group]}") for path in _targets(config, group)]
    return own_modules(objects)


def shipped_code(config: Config) -> dict[str, str]:
    """Return a digest of the engine's code and of what each chosen option adds to it, by group. See `code_digests`."""
    chosen = {group: _targets(config, group) for group in (*PLUGGED, *BUILT)}
    modules = {group: [path.rpartition(".")[0] for path in paths] for group, paths in chosen.items() if paths}
    return code_digests(modules)


def _targets(config: Config, group: str) -> list[str]:
    """Return what the chosen option of a group names in `_target_`, also in nodes inside its node."""
    nodes = flat(config.values.get(group) or {})
    return [str(path) for key, path in nodes.items() if key.rpartition(".")[2] == "_target_"]


def _environment(parts: Parts) -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "processor": processor.name(),
        "products": products.provider(),
        "threads": torch.get_num_threads(),
        "device": str(parts.federation.device),
    }


@cache  # the code that runs is the one that was there at the start
def _commit() -> str | None:
    """The commit of pflsweep's own checkout, None where it is installed from a wheel; -dirty with other changes."""
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
    command = ["git", "--no-optional-locks", *words]  # somebody may be committing
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.strip()
