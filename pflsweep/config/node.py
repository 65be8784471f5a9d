"""Nodes: options of config groups that build something, a class or a function that they name in `_target_`."""

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Self

from pflsweep.config.options import KEY_GROUPS
from pflsweep.util import trace
from pflsweep.util.errors import UserError, nearest, one_line


@dataclass(frozen=True)
class Node:
    """A chosen option that builds something. Groups: algorithm, model, dataset, partition, study, plug-ins."""

    group: str
    option: str
    path: str  # import path of what it builds, such as my_package.my_function
    options: dict[str, Any]  # its arguments; the trainer's keys of the group are left out

    @classmethod
    def of(cls, group: str, option: str, values: Any) -> Self:
        """Return the node of a group's option. values: the group's. Raises UserError if `_target_` is not a path."""
        path = values.get("_target_") if isinstance(values, dict) else None
        if not isinstance(path, str) or "." not in path:
            said = "is missing" if path is None else f"is {path!r}"
            raise UserError(f"{group}={option}: `_target_` {said}: it has to name a class, as my_package.MyClass.")
        declared = [field.name for field in fields(KEY_GROUPS[group])] if group in KEY_GROUPS else []
        apart = {"_target_", *declared}
        return cls(group, option, path, {key: value for key, value in values.items() if key not in apart})

    def __str__(self) -> str:
        return f"{self.group}={self.option}"

    @property
    def module(self) -> str:
        """The import path of the module of the node's class or function."""
        return self.path.rpartition(".")[0]

    def load(self) -> Any:
        """Import and return the class or function. Raises UserError if there is none."""
        return import_object(self.path, str(self))

    def load_all(self) -> dict[str, Any]:
        """Import and return what the node and the nodes inside it name, by path. Raises UserError if there is none."""
        return {path: import_object(path, str(self)) for path in self.paths()}

    def paths(self) -> list[str]:
        """Return the import paths that the node and the nodes inside it name."""
        return [self.path, *_paths(self.options)]

    def call(self, *args: Any, **offered: Any) -> Any:
        """Call what the node names, with its options and those of `offered` that it has parameters for.

        Raises UserError if they do not fit.
        """
        function: Callable = self.load()
        if not callable(function):
            raise UserError(f"{self}: {self.path} is not a function or class, but {_kind(function)}.")
        try:
            takes = inspect.signature(function).parameters
        except ValueError as error:
            # Some built-in functions have no signature
            raise UserError(f"{self}: {self.path} cannot be used: {one_line(error)}.") from error
        if taken := self.options.keys() & offered.keys():
            key = min(taken)
            raise UserError(
                f"{self.group}.{key}: '{key}' is an argument that pflsweep passes to {self.path} itself "
                f"({offered[key]!r} here). Give the option of {self} another name."
            )
        given = {key: value for key, value in offered.items() if key in takes}
        try:
            inspect.signature(function).bind(*args, **self.options, **given)
        except TypeError as error:
            unknown = next((key for key in self.options if key not in takes), None)
            hint = "" if unknown is None else f" It takes no '{unknown}'.{nearest(unknown, [*takes])}"
            raise UserError(f"{self}: its keys do not fit {self.path} ({error}).{hint}") from error
        try:
            return self._maker()(*args, **given)
        except UserError:
            raise
        except Exception as error:  # a user's own code may fail in any way
            error.add_note(f"This is the code of {self}.")
            raise

    def construct(self, shared: dict[str, Any]) -> Any:
        """Make the dataclass that the node names, with its options and those of `shared` that it has fields for."""
        known = {field.name for field in fields(self.load())}
        return self._maker()(**{name: value for name, value in shared.items() if name in known})

    def _maker(self) -> Callable:
        """Return the function or class with the node's options filled in, not yet called.

        The caller calls it, since Hydra would wrap its exceptions, UserError among them. A node inside the node, such
        as the embedder of partition=latent, becomes a function with its options filled in as well.
        """
        # Imported here, since it takes long and commands such as `list` make nothing
        from hydra.utils import instantiate

        # Loaded first for the sake of its errors: Hydra's name neither option nor remedy
        self.load_all()
        return instantiate(_as_partial({"_target_": self.path, **self.options}), _convert_="all")


def _as_partial(value: Any) -> Any:
    """Return options for Hydra in which each node is marked to be filled in and not called."""
    if not isinstance(value, dict):
        return value
    inner = {key: _as_partial(each) for key, each in value.items()}
    return {**inner, "_partial_": True} if "_target_" in value else inner


def _kind(found: Any) -> str:
    """Say what an object that cannot be called is."""
    return "a module: name a function in it" if inspect.ismodule(found) else f"a value of type {type(found).__name__}"


def _paths(values: Any) -> list[str]:
    """Return the import paths that nodes inside some values name."""
    if not isinstance(values, dict):
        return []
    own = [str(values["_target_"])] if "_target_" in values else []
    return [*own, *(path for value in values.values() for path in _paths(value))]


def import_object(path: str, what: str) -> Any:
    """Import and return the object of a dotted path. Raises UserError, beginning with `what`, where there is none."""
    if "/" in path or path.endswith(".py"):
        stem = path.rpartition("/")[2].removesuffix(".py")
        raise UserError(
            f"{what}: '{path}' is a file: name what is in it, as in {stem}.Name, with its folder in PYTHONPATH."
        )
    module, _, name = path.rpartition(".")
    try:
        found = importlib.import_module(module)
    except Exception as error:  # a module of the user's own may fail in any way
        lost = isinstance(error, ModuleNotFoundError) and module.startswith(str(error.name))
        raise UserError(
            f"{what}: the module '{module}' cannot be imported: {type(error).__name__}: {one_line(error)}"
            f"{'' if lost else trace.line(error)}."
            + (" Is the package installed, or its folder in PYTHONPATH?" if lost else "")
        ) from error
    if name not in dir(found):
        raise UserError(f"{what}: the module '{module}' has no '{name}'.{nearest(name, dir(found))}")
    return getattr(found, name)
