"""What a record says about its trial before training: identity, name, environment."""

import ast
import hashlib
import importlib
import inspect
import platform
import subprocess
import sys
import sysconfig
from functools import cache
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

import torch

from pflsweep import __version__
from pflsweep.compose import Config
from pflsweep.config import PLUGGED, Parts, imported, target
from pflsweep.errors import UserError
from pflsweep.identity import identity, method_name
from pflsweep.keys import PLUGS, flat

BUILT = ("model", "dataset", "partition")  # config groups of functions


def describe(config: Config, parts: Parts) -> dict[str, Any]:
    """meta.json of a trial."""
    chosen, dataset = config.choices, parts.federation.dataset
    code, bad = own_code(config), parts.verbs.malicious
    beside = {**parts.plugins, **({} if parts.study is None else {"study": parts.study})}
    versions = {group: part.version for group, part in beside.items()}
    return {
        "identity": identity(
            config.values,
            data_checksum=parts.federation.checksum,
            version=parts.method.version,
            extends=all(part.extends for part in (parts.method, *beside.values())),
            plugins=versions,
            code=code,
        ),
        "name": f"{method_name(chosen)}-{chosen['dataset']}-{chosen['partition']}-{config.values['seed']}",
        "method": chosen["algorithm"],
        **{group: chosen[group] for group in ("dataset", "partition", *PLUGS, "study")},
        "model": model_name(config),
        "seed": config.values["seed"],
        "method_version": parts.method.version,
        "reconstruction": parts.method.reconstruction,
        "plugin_versions": versions,
        "malicious": [] if bad is None else bad.nonzero()[:, 0].tolist(),
        "code": code,
        "data_checksum": parts.federation.checksum,
        "shape": list(dataset.shape),
        "classes": dataset.classes,
        "statistics": parts.federation.statistics(),
        "commit": _commit(),
        "version": __version__,
        "environment": _environment(parts),
    }


def model_name(config: Config) -> str:
    """The option, and the model's own name where the option has many: torchvision.vgg11, which is not model=vgg11."""
    option, own = config.choices["model"], config.values["model"].get("name")
    return option if own in (None, option) else f"{option}.{own}"


def plugged(config: Config) -> list[tuple[str, str, dict[str, Any]]]:
    """Group, option and node of what a class describes: the method and what is chosen beside it."""
    return [(group, config.choices[group], config.values[group]) for group in PLUGGED if config.values[group]]


def own_code(config: Config) -> list[str]:
    """A hash of each module outside pflsweep that method, plug-ins, model, dataset or partition are written in, with
    those of one's own that it imports.
    """
    objects = [target(*node) for node in plugged(config)]
    for group in BUILT:
        nodes = flat(config.values[group])
        options = (str(path) for key, path in nodes.items() if key.rpartition(".")[2] == "_target_")
        objects += [imported(path, f"{group}={config.choices[group]}") for path in options]
    names = {cls.__module__ for each in objects for cls in getattr(each, "__mro__", (each,))}
    own = {name for name in names if name.partition(".")[0] not in ("pflsweep", *sys.stdlib_module_names)}
    further = set(own)
    while further := {name for each in further if _is_own(each) for name in _imports(each) if _is_own(name)} - own:
        own |= further
    return [hashlib.blake2b(_source(name).encode(), digest_size=4).hexdigest() for name in sorted(own)]


def _is_own(module: str) -> bool:
    """Whether it is a file of Python that is neither installed, here or elsewhere, nor Python's nor pflsweep's."""
    file = Path(getattr(sys.modules.get(module), "__file__", None) or "")
    if file.suffix != ".py" or module.partition(".")[0] in ("pflsweep", "__main__", *sys.stdlib_module_names):
        return False
    if {"site-packages", "dist-packages"} & set(file.parts):  # of another environment, by PYTHONPATH, or the user's
        return False
    return not any(file.is_relative_to(sysconfig.get_path(each)) for each in ("purelib", "platlib", "stdlib"))


def _imports(module: str) -> set[str]:
    """What its source imports; `from a import b` may mean a module a.b."""
    found, package = set(), sys.modules[module].__package__
    for node in ast.walk(ast.parse(_source(module))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            source = resolve_name("." * node.level + (node.module or ""), package)
            found |= {source, *(f"{source}.{alias.name}" for alias in node.names)}
    return found


def _source(module: str) -> str:
    try:
        return inspect.getsource(importlib.import_module(module))
    except (OSError, TypeError) as error:
        raise UserError(f"The source of '{module}' cannot be read: write the method into a file, a module.") from error


def _environment(parts: Parts) -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "device": str(parts.federation.device),
    }


@cache
def processor() -> str:
    """The processor's name: platform.processor() is empty on many Linux systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


@cache  # the code that runs is the one that was there at the start
def _commit() -> str | None:
    """The commit of pflsweep's own checkout, None where it is installed from a wheel; -dirty with other changes."""
    package = Path(__file__).parent
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
