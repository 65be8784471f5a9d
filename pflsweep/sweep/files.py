"""Sweep files: YAML below sweeps/, the package's own or the user's, with includes, checked before planning."""

import shlex
from pathlib import Path
from typing import Any, NamedTuple

from pflsweep.compose import read_option
from pflsweep.errors import UserError, nearest
from pflsweep.sweep.space import Axis, Space, axis

KEYS = ("settings", "methods", "seeds", "search", "space")
SCALE_KEYS = ("images", "points", "seeds", "set")


class Table(NamedTuple):
    """A sweep file: every method in every setting."""

    name: str
    settings: dict[str, list[str]]  # column -> overrides
    methods: dict[str, list[str]]  # row -> overrides
    seeds: list[int]
    search: list[str]  # overrides of the group `tune`
    space: dict[str, dict[str, Any] | None]  # what it changes in the methods' spaces, by row or `all`
    file: str  # for messages


class Scale(NamedTuple):
    """How much of a paper's protocol is run."""

    name: str
    images: int | None  # at most so many training images a trial: rounds are cut
    points: int | None  # at most so many points of a search
    seeds: int | None  # at most so many seeds
    set: dict[str, Any]  # key -> value, where a config has the key


def folders() -> list[Path]:
    """Where sweep files are looked for: the user's sweeps/, then the package's (a wheel's, or beside it)."""
    package = Path(__file__).parent.parent
    inside = package / "sweeps"
    return [Path.cwd() / "sweeps", inside if inside.is_dir() else package.parent / "sweeps"]


def read_table(name: str) -> Table:
    """`pgfed/table1`, or a path to a YAML file. Raises UserError, with file, key and the nearest valid name."""
    content, file = _read(name, "sweep")
    _known(content, KEYS, file)
    for key in ("settings", "methods"):
        if not isinstance(content.get(key), dict) or not content[key]:
            raise UserError(f"{file}: '{key}' has to name at least one, each as `name: overrides`.")
    seeds = content.get("seeds", [0])
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int and seed >= 0 for seed in seeds):
        raise UserError(f"{file}: 'seeds' is {seeds!r}: it has to be a list of whole numbers, such as [0, 1, 2].")
    space = content.get("space") or {}
    if not isinstance(space, dict):
        raise UserError(f"{file}: 'space' has to be `method: axes`, or `all: axes`.")
    for row in space:
        if row not in (*content["methods"], "all"):
            rows = [*content["methods"], "all"]
            raise UserError(f"{file}: space.{row} is for no method of this file.{nearest(str(row), rows)}")
    words = {
        key: {str(name): _overrides(text, f"{file}: {key}.{name}") for name, text in content[key].items()}
        for key in ("settings", "methods")
    }
    search = _overrides(content.get("search") or "", f"{file}: search")
    return Table(name, words["settings"], words["methods"], seeds, search, space, file)


def read_scale(name: str) -> Scale:
    """`smoke`, `small`, `paper`, or one of the user's own. Raises UserError."""
    content, file = _read(f"scale/{name}", "scale")
    _known(content, SCALE_KEYS, file)
    for key in ("images", "points", "seeds"):
        value = content.get(key)
        if value is not None and (type(value) is not int or value < 1):
            raise UserError(f"{file}: '{key}' is {value!r}: it has to be a whole number at least 1.")
    if not isinstance(content.get("set") or {}, dict):
        raise UserError(f"{file}: 'set' has to be lines of `key: value`.")
    return Scale(name, content.get("images"), content.get("points"), content.get("seeds"), content.get("set") or {})


def read_space(algorithm: str, changes: list[dict[str, Any] | None], where: str) -> Space:
    """What is searched for a method: its file's axes with `changes` laid over, None for one that is not.

    A change of None takes away all axes. Raises UserError on an empty grid.
    """
    axes, file = _read(f"space/{algorithm}", "search space")
    for change in changes:
        axes = {} if change is None else _merged(axes, change)
        file = where
    return {key: axis(key, content, file) for key, content in axes.items() if content is not None}


def _read(name: str, what: str) -> tuple[dict[str, Any], str]:
    """A file with what it includes."""
    path = _find(name, what)
    return _included(path, [], what), _shown(path)


def _included(path: Path, above: list[Path], what: str) -> dict[str, Any]:
    if path in above:
        circle = " -> ".join(map(_shown, [*above, path]))
        raise UserError(f"{_shown(above[0])}: its includes run in a circle: {circle}.")
    content = read_option(path)
    names = content.pop("include", [])
    merged: dict[str, Any] = {}
    for name in [names] if isinstance(names, str) else names:
        try:
            merged = _merged(merged, _included(_find(str(name), what), [*above, path], what))
        except UserError as error:
            if str(error).startswith("No "):
                raise UserError(f"{_shown(path)}: include: {error}") from error
            raise
    return _merged(merged, content)


def _find(name: str, what: str) -> Path:
    given = Path(name)
    if given.suffix in (".yaml", ".yml"):
        if given.is_file():
            return given.absolute()
    else:
        for folder in folders():
            if (folder / f"{name}.yaml").is_file():
                return folder / f"{name}.yaml"
    head = name.partition("/")[0] if what in ("scale", "search space") else ""
    known = [n for n in _names() if not head or n.startswith(f"{head}/")]
    if not head:
        known = [n for n in known if n.partition("/")[0] not in ("scale", "space") and "common" not in n.split("/")]
    short = [n.removeprefix(f"{head}/") if head else n for n in known]
    wanted = name.removeprefix(f"{head}/") if head else name
    raise UserError(f"No {what} '{wanted}'.{nearest(wanted, short)} There are: {', '.join(short) or 'none'}.")


def _names() -> list[str]:
    found = {
        file.relative_to(folder).with_suffix("").as_posix(): None
        for folder in folders()
        for file in sorted(folder.rglob("*.yaml"))
    }
    return list(found)


def table_names() -> list[str]:
    """The sweeps that can be run by name."""
    return [name for name in _names() if not name.startswith(("scale/", "space/")) and "common" not in name.split("/")]


def _shown(path: Path) -> str:
    """A path as a person would name it."""
    for folder in folders():
        if path.is_relative_to(folder):
            return f"sweeps/{path.relative_to(folder).as_posix()}"
    return str(path)


def _merged(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over` laid over `under`; nested mappings are merged, all else is replaced."""
    both = {k: _merged(v, over[k]) for k, v in under.items() if isinstance(v, dict) and isinstance(over.get(k), dict)}
    return {**under, **over, **both}


def _known(content: dict[str, Any], keys: tuple[str, ...], file: str) -> None:
    for key in content:
        if key not in keys:
            raise UserError(
                f"{file}: unknown key '{key}'.{nearest(str(key), list(keys))} It may have: {', '.join(keys)}."
            )


def _overrides(text: Any, where: str) -> list[str]:
    """Hydra overrides, divided as a shell would."""
    if not isinstance(text, str):
        raise UserError(f"{where} is {text!r}: it has to be text of overrides, such as `algorithm=pgfed train.lr=0.1`.")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UserError(f"{where}: '{text}' cannot be divided into overrides ({error}).") from error
    for word in words:
        if "=" not in word:
            raise UserError(f"{where}: '{word}' is no override, which is written key=value.")
    return words


__all__ = ["Axis", "Scale", "Space", "Table", "folders", "read_scale", "read_space", "read_table", "table_names"]
