"""Hashes of source code.

`own_modules` hashes modules of the user's own: another source is another method, model or dataset, so these hashes are
part of a trial's identity. `code_digests` hashes the shipped modules that a trial's numbers depend on. These are no
part of the identity; a record keeps them, so that training it on with edited code is noticed.
"""

import ast
import hashlib
import importlib
import inspect
import json
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.util import resolve_name
from pathlib import Path
from typing import Any, NamedTuple

from pflsweep.util.errors import UserError

ROOT = Path(__file__).parents[1]  # of the package
# The packages that numbers depend on. The others store, show, schedule and check: none of their modules is hashed.
NUMERIC = ("algorithms", "data", "engine", "methods", "models", "ops", "plugins", "studies")
# every trial depends on each module that lies directly in one of these
SHARED = ("data", "engine", "methods", "ops")
NO_EFFECT = {"returns", "ctx", "kind", "simple", "type_comment", "type_ignores"}  # fields of syntax trees
EQUIVALENT = "util/equivalent.json"  # written by the command that runs the golden tests
# CPython 3.11's parser keeps its depth in the interpreter: in two threads at once it raises SystemError
_PARSING = threading.Lock()


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


def _parsed(source: str) -> ast.Module:
    """Return the syntax tree of a module's source. Trials that train as one cohort ask for it in threads."""
    with _PARSING:
        return ast.parse(source)


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
    for node in ast.walk(_parsed(_source(module))):
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


class _Module(NamedTuple):
    digest: str  # "" where it does nothing
    imports: frozenset[str]  # of pflsweep; some of these names are of functions, not of modules


def code_digests(options: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Return a digest of the shipped code that all trials share, `engine`, and one of what each option adds to it.

    options: for each name, the modules that its classes or functions are written in. Of the user's own modules only
    what they import from pflsweep is hashed here.
    """
    shared = _shared()
    own = {name: _reached(frozenset(modules)) - shared for name, modules in options.items()}
    return {name: _joint(modules) for name, modules in {"engine": shared, **own}.items()}


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the components of two results of `code_digests` whose code is not equivalent. One that only one of the
    two names is not known to have changed.
    """
    first = {digest: same[0] for classes in equivalent().values() for same in classes for digest in same}
    pairs = {name: (before[name], now[name]) for name in before if name in now}
    return [name for name, (one, other) in pairs.items() if first.get(one, one) != first.get(other, other)]


@cache
def equivalent() -> dict[str, list[list[str]]]:
    """Return by component the classes of digests under which all golden trajectories are bitwise the same."""
    found: dict[str, list[list[str]]] = json.loads((ROOT / EQUIVALENT).read_text())
    return found


def _joint(modules: Iterable[str]) -> str:
    """Return a digest of some modules' content, not of their names: a file that is only moved changes nothing."""
    return _hash("".join(sorted({module.digest for name in modules if (module := _shipped(name)) is not None})))


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@cache
def _shared() -> frozenset[str]:
    """Return the modules that every trial depends on."""
    files = (file for package in SHARED for file in (ROOT / package).glob("*.py"))
    return _reached(frozenset(f"pflsweep.{file.parent.name}.{file.stem}" for file in files))


@cache  # a sweep asks for thousands of trials, with few different options
def _reached(modules: frozenset[str]) -> frozenset[str]:
    """Return those of some modules, and of all that they import directly or not, that are shipped and numeric."""
    found: set[str] = set()
    further = set(modules)
    while further:
        found |= further
        further = {each for name in further for each in _followed(name)} - found
    return frozenset(name for name in found if _shipped(name) is not None)


def _followed(name: str) -> Iterable[str]:
    """Return what a module imports if it is shipped and numeric, or the user's own."""
    module = _shipped(name)
    if module is None:
        return _imports(name) if _is_own(name) else ()
    return module.imports


@cache
def _shipped(name: str) -> _Module | None:
    """Return a shipped module of a numeric package; None for any other name. The file is read, nothing is imported."""
    head, *parts = name.split(".")
    if head != "pflsweep" or not parts or parts[0] not in NUMERIC:
        return None
    folder = ROOT.joinpath(*parts)
    file = folder / "__init__.py" if folder.is_dir() else folder.with_name(f"{folder.name}.py")
    if not file.exists():
        return None
    code = _Code(_parsed(file.read_text(encoding="utf-8")))
    return _Module(code.digest(), frozenset(code.imports))


class _Code:
    """The part of a module's syntax tree that can change a number, written down alike by every version of Python.

    ast.dump is not used: from 3.13 on it leaves out empty fields. Here None and empty lists are left out, so that a
    field that a later version adds (type_params, in 3.12) changes nothing while it is not used.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.imports: set[str] = set()
        self._aliases: list[tuple[str, str, str]] = []  # module, name in it, name here
        self._used: set[str] = set()
        self._text: list[str] = []
        self._write(tree)

    def digest(self) -> str:
        """Return the hash of the tree and of the imports that it uses: others serve annotations or pass names on.

        A module of pflsweep is imported from anywhere: its content is hashed by itself, so that moving it is no edit.
        """
        used = {alias for alias in self._aliases if alias[2].partition(".")[0] in (*self._used, "*")}
        if not self._text and not used:
            return ""
        return _hash("\0".join([*self._text, *(word for alias in sorted(used) for word in alias)]))

    def _write(self, node: ast.AST) -> None:
        for name in node._fields:
            value = getattr(node, name, None)
            if value is None or name in NO_EFFECT or (name == "annotation" and isinstance(node, ast.arg)):
                continue
            values = value if isinstance(value, list) else [value]
            if values and isinstance(values[0], ast.stmt):
                values = list(self._statements(values, node))
            elif isinstance(node, ast.JoinedStr):  # Python 3.12.1 writes an empty text after {a:>{b}}
                values = [each for each in values if getattr(each, "value", None) != ""]
            if values:
                self._text += (name, str(len(values)))
            for each in values:
                if isinstance(each, ast.AST):
                    self._text.append(type(each).__name__)
                    self._write(each)
                else:
                    self._text.append(repr(each))
        if isinstance(node, ast.Name):
            self._used.add(node.id)

    def _statements(self, body: list[ast.stmt], parent: ast.AST) -> Iterator[ast.stmt]:
        """Yield what is left of a block without docstrings, annotations, imports and what only type checkers read.

        The annotations of a class stay: they declare its fields, and communication.py counts messages by their types.
        """
        for statement in body:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                self._note(statement)
            elif isinstance(statement, ast.If) and getattr(statement.test, "id", "") == "TYPE_CHECKING":
                yield from self._statements(statement.orelse, parent)
            elif isinstance(statement, ast.AnnAssign) and not isinstance(parent, ast.ClassDef):
                if statement.value is not None:
                    yield ast.Assign(targets=[statement.target], value=statement.value)
            elif not (isinstance(statement, ast.Pass) or _is_constant(statement)):
                yield statement

    def _note(self, node: ast.Import | ast.ImportFrom) -> None:
        """Keep what is imported: the names for the digest, and which modules of pflsweep they may come from."""
        for alias in node.names:
            source, name = (node.module or "", alias.name) if isinstance(node, ast.ImportFrom) else ("", alias.name)
            full = f"{source}.{name}".strip(".")
            if full.startswith("pflsweep."):
                self.imports |= {source, full} - {""}
                source, name = "pflsweep", name.rpartition(".")[2]
            self._aliases.append((source, name, alias.asname or alias.name))


def _is_constant(statement: ast.stmt) -> bool:
    """Return whether a statement is a value alone: a docstring, or `...`."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
