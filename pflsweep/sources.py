"""The source of code that is not pflsweep's: another one is another method, model or dataset."""

import ast
import hashlib
import importlib
import inspect
import sys
import sysconfig
from collections.abc import Iterable
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

from pflsweep.errors import UserError


def own_modules(objects: Iterable[Any]) -> list[str]:
    """A hash of each module outside pflsweep that some classes or functions are written in, with those of one's own
    that it imports. Raises UserError on one without a file.
    """
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
