"""`pflsweep check my_package.MyMethod [key=value ...] [--config-dir DIR]`: the suite on one method."""

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import torch
import yaml

from pflsweep.check.case import Case, Sizes, advance, sizes
from pflsweep.check.properties import PROPERTIES, WARM_UP, Property
from pflsweep.check.world import task_of, world
from pflsweep.compose import conf_dir
from pflsweep.config import field_rule
from pflsweep.engine.optimiser import Sgd
from pflsweep.engine.protocol import Method, Verbs, hyperparameters
from pflsweep.errors import UserError, nearest


def main(argv: list[str]) -> int:
    """Prints a line for each property; 0 where all hold, 1 where not. Raises UserError on bad input."""
    options = _parser().parse_args(argv)
    torch.set_num_threads(1)  # models this small only wait for each other's threads
    node = _node(options.method, options.config_dir)
    cls = imported(node.pop("_target_", options.method))
    case = case_of(cls, checked(cls, {**node, **_overrides(options.overrides)}))
    print(f"{cls.__name__}: {getattr(cls, 'paper', 'no paper named')}")
    failures = sum(_report(property_, case) for property_ in PROPERTIES)
    if failures:
        print(f"{failures} of {len(PROPERTIES)} properties failed.")
    else:
        print(f"All {len(PROPERTIES)} properties hold. {_wire(case)}")
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("pflsweep check", description="The conformance suite on one method.")
    parser.add_argument("method", help="my_package.MyMethod, or the name of an algorithm")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="hyperparameters")
    parser.add_argument("--config-dir", type=Path, help="folder that has algorithm/NAME.yaml files of your own")
    return parser


def case_of(
    cls: type[Method],
    values: dict[str, Any],
    tolerance: float = 1e-10,
    wire: Callable[[Sizes], float] | None = None,
) -> Case:
    """The case of a class. A method that refuses momentum is tried without."""

    def make(task: Any, opt: Sgd, epochs: int) -> Verbs:
        return Verbs.of(cls(task=task, opt=opt, epochs=epochs, **values))

    task = task_of(world().model)
    try:
        make(task, Sgd(momentum=0.9, weight_decay=1e-3), 1)
    except UserError:
        make(task, Sgd(0.0, 0.0), 1)  # what is still wrong is the user's
        return Case(make, True, tolerance, wire)
    return Case(make, False, tolerance, wire)


def verdict(property_: Property, case: Case) -> str:
    """Why a case lacks a property; empty where it has it."""
    try:
        property_(case)
    except AssertionError as error:
        return str(error)
    except Exception as error:  # whatever a method of somebody else's may raise
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} ({os.path.basename(where.filename)}, line {where.lineno})"
    return ""


def _report(property_: Property, case: Case) -> bool:
    """Prints a property's line; whether it failed."""
    why = verdict(property_, case)
    says = (property_.__doc__ or property_.__name__).partition("\n")[0]
    print(f"FAILED  {says}\n        {why}" if why else f"ok      {says}", flush=True)
    return bool(why)


def _wire(case: Case) -> str:
    sim = advance(case.simulation(), WARM_UP)
    traffic, model = next(sim.run()).traffic, sizes(sim)
    floats = traffic.floats_down + traffic.floats_up
    return f"A client exchanges {floats / model.P:.4g} models ({floats:g} floats of {model.P}) a round."


def imported(path: str) -> type[Method]:
    """The method that a dotted path names. Raises UserError with the module and what is wrong with it."""
    module, _, name = path.rpartition(".")
    if not module:
        known = sorted(file.stem for file in (conf_dir() / "algorithm").glob("*.yaml"))
        guess = nearest(path, known)
        raise UserError(f"check: there is no algorithm '{path}'.{guess} A class is written my_package.MyMethod.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does: a method is written in the folder one works in
    try:
        found = getattr(importlib.import_module(module), name, None)
    except Exception as error:  # a module of the user's own may fail in any way
        raise UserError(
            f"check: the module '{module}' cannot be imported: {type(error).__name__}: {error}. "
            "Is its folder in PYTHONPATH?"
        ) from error
    if not isinstance(found, type) or not issubclass(found, Method):
        what = "has no" if found is None else "has something that is no method (protocol.Method) as"
        guess = nearest(name, [word for word in dir(sys.modules[module]) if word != name])
        raise UserError(f"check: the module '{module}' {what} '{name}'.{guess}")
    return found


def checked(cls: type[Method], values: dict[str, Any]) -> dict[str, Any]:
    """Hyperparameters as the class wants them. Raises UserError on unknown, missing and impossible ones."""
    known, hints = hyperparameters(cls), get_type_hints(cls)
    for name in values:
        if name not in known:
            has, guess = ", ".join(known) or "none", nearest(name, list(known))
            raise UserError(f"check: {cls.__name__} has no hyperparameter '{name}'; it has {has}.{guess}")
    for name, field in known.items():
        rule = field_rule(hints[name], field)
        if name not in values:
            meaning = field.metadata.get("meaning", "")
            raise UserError(
                f"check: {cls.__name__} needs {name} ({meaning}): add {name}=VALUE, or name the folder "
                "that has its algorithm/NAME.yaml with --config-dir."
            )
        if not rule.allows(values[name]):
            raise UserError(f"check: {name} is {values[name]!r}: it must be {rule}.")
    return values


def _overrides(pairs: list[str]) -> dict[str, Any]:
    values = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise UserError(f"check: '{pair}' is not a hyperparameter of the form key=value.")
        values[name] = yaml.safe_load(text)
    return values


def _node(method: str, config_dir: Path | None) -> dict[str, Any]:
    """The YAML file of this name, or the one that names this class; {} where there is none."""
    if config_dir is not None and not (config_dir / "algorithm").is_dir():
        raise UserError(f"check: --config-dir is '{config_dir}', which has no folder 'algorithm'.")
    for folder in filter(None, (config_dir, conf_dir())):
        for file in sorted((folder / "algorithm").glob("*.yaml")):
            node = yaml.safe_load(file.read_text()) or {}
            if method in (file.stem, node.get("_target_")):
                return {key: value for key, value in node.items() if key != "defaults"}
    return {}
