"""Hashes of source code.

`own_source_hashes` hashes the user's own modules. These hashes are part of a trial's identity, since edited source is
another method, model or dataset. `code_digests` hashes the shipped modules that a trial's numbers depend on. They are
not part of the identity, but a record stores them, so that continuing its training with edited code is noticed.
"""

import ast
import hashlib
import importlib
import inspect
import json
import linecache
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, partial
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, resolve_name
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

from pflsweep.util.errors import UserError

ROOT = Path(__file__).parents[1]  # the folder of the package
# The packages that numbers depend on. The others store, show, schedule and check: none of their modules is hashed.
NUMERIC = ("algorithms", "data", "engine", "methods", "models", "ops", "plugins", "studies")
# Every trial depends on each module that is directly in one of these packages.
SHARED = ("data", "engine", "methods", "ops")
# Fields of a syntax tree that cannot change what a program computes.
NO_EFFECT = {"returns", "ctx", "kind", "simple", "type_comment", "type_ignores"}
# Written by the command that runs the golden tests.
EQUIVALENT = "util/equivalent.json"
# CPython 3.11's parser keeps its recursion depth in the interpreter: two threads that parse at once raise SystemError.
_PARSING = threading.Lock()
# By module of the user: its spec, which a reload replaces, and its source as first read after the import.
_imported: dict[str, tuple[Any, str]] = {}


def own_source_hashes(objects: Mapping[str, Any]) -> list[str]:
    """Return a hash of each of the user's modules in which some classes or functions are written.

    objects: by import path. Modules of the user that these import, directly or not, are included. Raises UserError if a
    module has no file.
    """
    names = {name for path, each in objects.items() for name in _written_in(path, each)}
    own = {name for name in names if name.partition(".")[0] not in ("pflsweep", *sys.stdlib_module_names)}
    further = set(own)
    while further := {name for each in further if _is_own(each) for name in _imports(each) if _is_own(name)} - own:
        own |= further
    return [hashlib.blake2b(_source(name).encode(), digest_size=4).hexdigest() for name in sorted(own)]


def _written_in(path: str, each: Any) -> set[str]:
    """Return the modules in which the class or function of an import path is written.

    Base classes count if they are the user's own, so that another release of PyTorch is not an edit. What a call has
    made, such as functools.partial(build, 8) or the result of a decorator, is also written where the path says.
    """
    made = not isinstance(each, type) and "." in getattr(each, "__qualname__", ".")
    while isinstance(each, partial):
        each = each.func
    if not isinstance(each, type | FunctionType):
        return {path.rpartition(".")[0], *filter(_is_own, (base.__module__ for base in type(each).__mro__))}
    bases = {base.__module__ for base in getattr(each, "__mro__", ())}
    # Of an installed package all its classes count
    package = each.__module__.partition(".")[0]
    found = {name for name in bases if _is_own(name) or name.partition(".")[0] == package}
    return found | {each.__module__} | ({path.rpartition(".")[0]} if made else set())


def _parsed(source: str) -> ast.Module:
    """Return the syntax tree of a module's source. Safe to call from the threads of stacked trials."""
    with _PARSING:
        return ast.parse(source)


def _is_own(module: str) -> bool:
    """Return True if a module is the user's own: a .py file that is not installed, nor part of Python or pflsweep."""
    if module.partition(".")[0] in ("pflsweep", "__main__", *sys.stdlib_module_names):
        return False
    loaded = sys.modules.get(module)
    file = Path((getattr(loaded, "__file__", None) if loaded else getattr(_spec(module), "origin", None)) or "")
    return file.suffix == ".py" and is_own_file(file)


def _spec(module: str) -> ModuleSpec | None:
    """Return where a module would be imported from, without importing its packages; None if there is none."""
    top, *below = module.split(".")
    try:
        spec = find_spec(top)
    except ValueError:  # of a module that was made by hand
        return None
    name = top
    for part in below:
        if spec is None or spec.submodule_search_locations is None:
            return None
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations))
    return spec


def is_own_file(file: Path) -> bool:
    """Return True if a file is the user's own: not installed, nor part of Python or pflsweep."""
    # also those of another environment, on PYTHONPATH, and of the user's site folder
    if {"site-packages", "dist-packages"} & set(file.parts):
        return False
    if file.is_relative_to(ROOT):
        return False
    return not any(file.is_relative_to(sysconfig.get_path(each)) for each in ("purelib", "platlib", "stdlib"))


def _imports(module: str) -> set[str]:
    """Return the names that a module's source imports. `from a import b` gives a and a.b, since b may be a module."""
    found = set()
    package = sys.modules[module].__package__ if module in sys.modules else getattr(_spec(module), "parent", None)
    for node in ast.walk(_parsed(_source(module))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            source = resolve_name("." * node.level + (node.module or ""), package)
            found |= {source, *(f"{source}.{alias.name}" for alias in node.names)}
    return found


def _source(module: str) -> str:
    """Return the source of a user's module. Raises UserError if it has no file, or is not what was imported."""
    if module not in sys.modules and (spec := _spec(module)) and spec.origin:
        # Imported inside a function that has not run yet: read as inspect would
        linecache.checkcache(spec.origin)
        return "".join(linecache.getlines(spec.origin))
    loaded = importlib.import_module(module)
    try:
        text = inspect.getsource(loaded)
    except (OSError, TypeError) as error:
        raise UserError(f"The source of '{module}' cannot be read: write the method into a file, a module.") from error
    spec, before = _imported.setdefault(module, (loaded.__spec__, text))
    if spec is not loaded.__spec__:  # imported again, or reloaded
        _imported[module] = (loaded.__spec__, text)
    elif before != text:
        raise UserError(
            f"{loaded.__file__} was edited after this process had imported it. The old code would be trained under the "
            f"new code's identity: give the command again, or in Python call importlib.reload({module}) or restart."
        )
    return text


class _Module(NamedTuple):
    digest: str  # "" for a module without code
    imports: frozenset[str]  # names in pflsweep that it imports, of modules or of functions in them


def code_digests(options: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Return a digest of the shipped code that all trials share ("engine"), and one of what each option adds to it.

    options: by name, the modules in which its classes or functions are written. A module of the user is not hashed
    here, but what it imports from pflsweep is.
    """
    shared = _shared()
    own = {name: _reached(frozenset(modules)) - shared for name, modules in options.items()}
    return {name: _joint(modules) for name, modules in {"engine": shared, **own}.items()}


def edited_components(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the components whose code is not equivalent in two results of `code_digests`.

    A component that only one of them has is not returned.
    """
    first = {digest: same[0] for classes in equivalent().values() for same in classes for digest in same}
    pairs = {name: (before[name], now[name]) for name in before if name in now}
    return [name for name, (one, other) in pairs.items() if first.get(one, one) != first.get(other, other)]


@cache
def equivalent() -> dict[str, list[list[str]]]:
    """Return, by component, the groups of digests whose golden trajectories are bitwise the same."""
    found: dict[str, list[list[str]]] = json.loads((ROOT / EQUIVALENT).read_text())
    return found


def _joint(modules: Iterable[str]) -> str:
    """Return a digest of the content of some modules. Their names do not count, so moving a file changes nothing."""
    return _hash("".join(sorted({module.digest for name in modules if (module := _shipped(name)) is not None})))


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@cache
def _shared() -> frozenset[str]:
    """Return the modules that every trial depends on."""
    files = (file for package in SHARED for file in (ROOT / package).glob("*.py"))
    return _reached(frozenset(f"pflsweep.{file.parent.name}.{file.stem}" for file in files))


# cached: a sweep asks for thousands of trials, with few different options
@cache
def _reached(modules: frozenset[str]) -> frozenset[str]:
    """Return the shipped numeric modules among some modules and all that these import, directly or not."""
    found: set[str] = set()
    further = set(modules)
    while further:
        found |= further
        further = {each for name in further for each in _followed(name)} - found
    return frozenset(name for name in found if _shipped(name) is not None)


def _followed(name: str) -> Iterable[str]:
    """Return the imports of a module that is shipped and numeric, or the user's own; none for any other module."""
    module = _shipped(name)
    if module is None:
        return _imports(name) if _is_own(name) else ()
    return module.imports


@cache
def _shipped(name: str) -> _Module | None:
    """Return a shipped module of a numeric package, or None for any other name. The file is read, not imported."""
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
    """The part of a module's syntax tree that can change a number, as text that is the same in every Python version.

    ast.dump is not used: from 3.13 on it leaves out empty fields. Here None and empty lists are left out, so a field
    that a later version adds (type_params, in 3.12) changes nothing until it is used.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.imports: set[str] = set()
        self._aliases: list[tuple[str, str, str]] = []  # module, name in it, name here
        self._used: set[str] = set()
        self._text: list[str] = []
        self._write(tree)

    def digest(self) -> str:
        """Return a hash of the tree and of the imports that it uses, or "" if there is no code.

        Other imports serve annotations only, or re-export names. For an import from pflsweep the module's name does not
        count, so that moving a module is not an edit.
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
            elif isinstance(node, ast.JoinedStr):  # Python 3.12.1 adds an empty text after {a:>{b}}
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
        """Yield the statements of a block without docstrings, annotations, imports and blocks for type checkers.

        Annotations in a class body stay: they declare its fields, and communication.py counts messages by their types.
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
        """Note the names that an import binds, for the digest, and the modules of pflsweep that they may come from."""
        for alias in node.names:
            source, name = (node.module or "", alias.name) if isinstance(node, ast.ImportFrom) else ("", alias.name)
            full = f"{source}.{name}".strip(".")
            if full.startswith("pflsweep."):
                self.imports |= {source, full} - {""}
                source, name = "pflsweep", name.rpartition(".")[2]
            self._aliases.append((source, name, alias.asname or alias.name))


def _is_constant(statement: ast.stmt) -> bool:
    """Return True if a statement is only a constant, such as a docstring or `...`."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
