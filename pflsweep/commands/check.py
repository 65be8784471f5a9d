"""`pflsweep check my_package.MyMethod [key=value ...] [--config-dir DIR]`: run the conformance suite on one method."""

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import pflsweep
from pflsweep.commands.parser import Parser
from pflsweep.config.hydra_loader import option_files, read_option, yaml_errors, yaml_of
from pflsweep.config.node import Node, import_object
from pflsweep.config.schema import check_fields
from pflsweep.conformance import fake_device
from pflsweep.conformance.case import Case, Sizes, advance, sizes
from pflsweep.conformance.fixtures import fixture
from pflsweep.conformance.properties import PROPERTIES, WARM_UP, Property
from pflsweep.methods.optimizer import Sgd
from pflsweep.methods.protocol import Method, Verbs
from pflsweep.methods.task import Task
from pflsweep.util.errors import BadReturn, UserError, nearest

# Files that are left out when a message says where an error was raised: they only do what the method asks for
NOT_TO_BLAME = (os.path.dirname(torch.__file__), fake_device.__file__)
# Where frames are that lie in no file of the user's
NOT_THE_USERS = (os.path.dirname(pflsweep.__file__), sys.prefix, sys.base_prefix, "<")


def main(argv: list[str]) -> int:
    """Print a line for each property. Return 0 if all hold, else 1. Raises UserError on bad input."""
    options = _parser().parse_args(argv)
    # With models this small, threads only wait for each other
    torch.set_num_threads(1)
    cls, defaults = method_and_defaults(options.method, options.config_dir)
    values = {**defaults, **_overrides(options.overrides)}
    check_fields(cls, values, cls.__name__, "add key=VALUE, or name its folder of YAML files with --config-dir")
    case = case_of(cls, values)
    print(f"{cls.__name__}: {getattr(cls, 'paper', 'no paper named')}")
    said: set[str] = set()
    failures = sum(_report(property_, case, said) for property_ in PROPERTIES)
    if failures:
        print(f"{failures} of {len(PROPERTIES)} properties failed.")
    else:
        print(f"All {len(PROPERTIES)} properties hold. {_traffic(case)}")
    return 1 if failures else 0


def _parser() -> Parser:
    parser = Parser(prog="pflsweep check", description="Run the conformance suite on one method.")
    parser.add_argument("method", help="my_package.MyMethod, or the name of an algorithm")
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help="hyperparameters")
    parser.add_argument("--config-dir", "-cd", type=Path, help="folder that has algorithm/NAME.yaml files of your own")
    return parser


def case_of(
    cls: type[Method],
    values: dict[str, Any],
    tolerance: float = 1e-10,
    traffic: Callable[[Sizes], float] | None = None,
) -> Case:
    """Return the test case of a method's class. A method that refuses momentum is tested without.

    values: hyperparameters. tolerance, traffic: see `Case`. Raises UserError if the method refuses both.
    """

    def make(task: Any, opt: Sgd, epochs: int) -> Method:
        return cls(task=task, opt=opt, epochs=epochs, **values)

    task = Task(fixture().model)
    try:
        Verbs.of(make(task, Sgd(momentum=0.9, weight_decay=1e-3), 1))
    except UserError:
        # An error without momentum is the user's to mend
        Verbs.of(make(task, Sgd(0.0, 0.0), 1))
        return Case(make, True, tolerance, traffic)
    return Case(make, False, tolerance, traffic)


def verdict(property_: Property, case: Case) -> str:
    """Return why a property does not hold for a case; "" if it holds."""
    try:
        property_(case)
    except AssertionError as error:
        return str(error)
    except Exception as error:
        # A user's method may raise anything
        frames = traceback.extract_tb(error.__traceback__)
        where = next((frame for frame in reversed(frames) if not frame.filename.startswith(NOT_TO_BLAME)), frames[-1])
        own = next((frame for frame in reversed(frames) if not frame.filename.startswith(NOT_THE_USERS)), where)
        # The message of a UserError says by itself what to do, and our own lines would not help
        if isinstance(error, BadReturn) or (isinstance(error, UserError) and own is where):
            return str(error)
        lines = dict.fromkeys(f"{os.path.basename(frame.filename)}, line {frame.lineno}" for frame in (where, own))
        return f"{type(error).__name__}: {error} ({', called from '.join(lines)})"
    return ""


def statement(property_: Property) -> str:
    """Return the first line of a property's docstring, which states it."""
    return (property_.__doc__ or property_.__name__).partition("\n")[0]


def _report(property_: Property, case: Case, said: set[str]) -> bool:
    """Print a property's line, with the reason where it failed, and return whether it failed.

    said: reasons that were printed before, which are not repeated.
    """
    why = verdict(property_, case)
    says = statement(property_)
    reason = "for the same reason as above" if why in said else why
    print(f"FAILED  {says}\n        {reason}" if why else f"ok      {says}", flush=True)
    said.add(why)
    return bool(why)


def _traffic(case: Case) -> str:
    """Return a sentence on the traffic of a client in a round."""
    sim = advance(case.simulation(), WARM_UP)
    traffic, model = next(sim.run()).traffic, sizes(sim)
    floats = traffic.floats_down + traffic.floats_up
    return f"A client exchanges {floats / model.P:.4g} models ({floats:g} floats of {model.P}) a round."


def method_at(path: str) -> type[Method]:
    """Import the method that a dotted path names. Raises UserError, which names the module and what is wrong."""
    found = import_object(path, "check")
    if not isinstance(found, type) or not issubclass(found, Method):
        raise UserError(f"check: '{path}' is not a method (protocol.Method).")
    return found


def _overrides(pairs: list[str]) -> dict[str, Any]:
    """Parse words of the form key=value. Raises UserError."""
    values = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise UserError(f"check: '{pair}' is not a hyperparameter of the form key=value.")
        try:
            with yaml_errors():
                values[name] = yaml_of(text)
        except UserError as error:
            raise UserError(f"check: '{pair}': {error}") from error
    return values


def method_and_defaults(method: str, config_dir: Path | None) -> tuple[type[Method], dict[str, Any]]:
    """Return a method's class and the hyperparameters in its YAML file.

    method: an option's name, or a class, whose file is the one that names it. Raises UserError, which names the file or
    module and what is wrong.
    """
    if config_dir is not None and not (config_dir / "algorithm").is_dir():
        raise UserError(f"check: --config-dir is '{config_dir}', which has no folder 'algorithm'.")
    known = option_files("algorithm", config_dir)
    if "." in method:
        node = next((node for node in map(read_option, known.values()) if node.get("_target_") == method), {})
        cls = method_at(method)
    else:
        node = read_option(_file(method, known))
        cls = method_at(Node.of("algorithm", method, node).path)
    return cls, {key: value for key, value in node.items() if key not in ("_target_", "defaults")}


def _file(option: str, known: dict[str, Path]) -> Path:
    """Return the file of an option. Raises UserError if there is none."""
    if option not in known:
        guess = nearest(option, sorted(known))
        raise UserError(f"check: there is no algorithm '{option}'.{guess} A class is written my_package.MyMethod.")
    return known[option]
