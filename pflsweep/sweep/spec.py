"""Read and check sweep files, scales and search spaces: YAML with includes below sweeps/, shipped or the user's."""

import itertools
import re
import shlex
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from pflsweep.config.compose import is_of_sweep
from pflsweep.config.fields import SEEDS
from pflsweep.config.hydra_loader import GROUPS, read_option
from pflsweep.config.keys import key_of
from pflsweep.config.overrides import check_hydra, quoted
from pflsweep.sweep.search_space import Space, parse_axis
from pflsweep.util.errors import UserError, nearest, require_known
from pflsweep.util.resources import own_and_shipped, shipped, sweep_names, yaml_names

EXAMPLE = "`train.lr: {grid: [0.1, 0.01]}`"
UNSEARCHED = ("seed", "device", "paths", "checkpoint", "tracking", "hydra", "sweep", "tune", "workers")
KEYS = ("settings", "methods", "seeds", "search", "space", "scales")
AT_A_SCALE = ("methods", "search", "space")
ROW_KEYS = ("run", "only")
SCALE_KEYS = ("images", "points", "seeds", "set")


class Table(NamedTuple):
    """A sweep file: every method in every setting, or in those that its row is restricted to.

    settings: overrides by column; methods: overrides by row.
    search: overrides of the group `tune`.
    space: changes of the methods' search spaces, by row or `all`.
    file: its name for messages.
    only: the columns of each row that is restricted to some.
    cell_overrides: by column and row, overrides of that cell alone, laid over its row's.
    without_code: rows that a reading leaves out, since their code is not public.
    """

    name: str
    settings: dict[str, list[str]]
    methods: dict[str, list[str]]
    seeds: list[int]
    search: list[str]
    space: dict[str, dict[str, Any] | None]
    file: str
    only: dict[str, list[str]]
    cell_overrides: dict[tuple[str, str], list[str]]
    without_code: tuple[str, ...] = ()

    @property
    def cells(self) -> list[tuple[str, str]]:
        """Return column and row of each cell that is run."""
        pairs = itertools.product(self.settings, self.methods)
        return [(column, row) for column, row in pairs if column in self.only.get(row, self.settings)]

    def words(self, column: str, row: str) -> list[str]:
        """Return the overrides of a cell without its column's: its row's, with the cell's own laid over them."""
        return lay_over(self.methods[row], self.cell_overrides.get((column, row), []))


def lay_over(words: list[str], more: Iterable[str]) -> list[str]:
    """Lay overrides over others of the same key. Another algorithm also replaces the options of the former one."""
    found = list(words)
    for word in more:
        key = key_of(word)
        found = [old for old in found if not _replaces(key_of(old), key)]
        found.append(word)
    return found


def _replaces(old: str, new: str) -> bool:
    return old == new or (new == "algorithm" and old.startswith("algorithm."))


class Scale(NamedTuple):
    """How much of a paper's protocol is run. Each number is a maximum; None: no limit."""

    name: str
    images: int | None  # training images of a trial, to which its rounds are cut
    points: int | None  # points of a search
    seeds: int | None
    set: dict[str, Any]  # values by key, for configs that have the key
    rounds: int | None = None


def read_table(name: str, scale: str = "paper") -> Table:
    """Read a sweep file with its changes at a scale. name: such as `pgfed/table1`, or a path to a YAML file.

    Raises UserError, which says file, key and the nearest valid name.
    """
    content, file = _read(table_file(name))
    # `_read` has taken `include` out; the message names it all the same
    require_known(content, ("include", *KEYS), file)
    content = _merge(content, _at_scale(scale, content.pop("scales", {}), file))
    for key in ("settings", "methods"):
        _check_names(content.get(key), key, file)
    rows = {row: _row(text, f"{file}: methods.{row}") for row, text in content["methods"].items()}
    settings = {
        str(column): trial_overrides(text, f"{file}: settings.{column}") for column, text in content["settings"].items()
    }
    only = {
        str(row): _columns(patterns, list(settings), f"{file}: methods.{row}.only")
        for row, (_, patterns) in rows.items()
        if patterns is not None
    }
    methods = {str(row): words for row, (words, _) in rows.items()}
    search = split_overrides(content.get("search") or "", f"{file}: search")
    for word in search:
        if word.partition("=")[0].partition(".")[0] != "tune":
            raise UserError(f"{file}: search: '{word}' is not of the group tune, such as tune=grid tune.split=test.")
    space = _changes(content.get("space") or {}, [*methods, "all"], file)
    return Table(name, settings, methods, _seeds(content.get("seeds", [0]), file), search, space, file, only, {})


def _at_scale(scale: str, scales: Any, file: str) -> dict[str, Any]:
    """Return the changes of a table at a scale. For a scale of the user's own they are laid over those for `small`.

    Raises UserError if the changes for any scale are not valid.
    """
    if not isinstance(scales, dict):
        raise UserError(f"{file}: 'scales' has to name some, each with its own of {', '.join(AT_A_SCALE)}.")
    for name, changes in scales.items():
        if name not in (known := yaml_names("sweeps/scale")):
            raise UserError(f"{file}: scales.{name} is not a scale.{nearest(str(name), known)}")
        if not isinstance(changes, dict):
            raise UserError(f"{file}: scales.{name} is {changes!r}: it may have {', '.join(AT_A_SCALE)}.")
        require_known(changes, AT_A_SCALE, f"{file}: scales.{name}")
    return _merge(scales.get("small", {}) if _is_own(scale) else {}, scales.get(scale, {}))


def _is_own(scale: str) -> bool:
    """Return whether a scale is a file of the user's own, with a name that no shipped scale has."""
    return not _is_number(scale) and not (shipped("sweeps") / "scale" / f"{scale}.yaml").is_file()


def _is_number(scale: str) -> bool:
    return re.fullmatch(r"[-+]?\d+", scale) is not None


def _check_names(part: Any, key: str, file: str) -> None:
    """Raise UserError if the names of rows or columns are not valid."""
    if not isinstance(part, dict) or not part:
        raise UserError(f"{file}: '{key}' has to name at least one, each as `name: overrides`.")
    for name in part:
        if not isinstance(name, str | int | float) or isinstance(name, bool):
            raise UserError(f"{file}: {key} has the name {name!r}. YAML reads on, off, yes, no and null so: quote it.")
        if not str(name).strip():
            raise UserError(f"{file}: {key} has an empty name. Give it one, as in `name: overrides`.")


def _row(content: Any, where: str) -> tuple[list[str], Any]:
    """Return the overrides of a row, and the patterns of its columns; None for all columns."""
    if not isinstance(content, dict):
        return trial_overrides(content, where), None
    require_known(content, ROW_KEYS, where)
    return trial_overrides(content.get("run"), f"{where}.run"), content.get("only")


def _columns(patterns: Any, settings: list[str], where: str) -> list[str]:
    """Return the columns that a row is restricted to. Raises UserError if a pattern matches none."""
    if not isinstance(patterns, list) or not patterns or not all(isinstance(pattern, str) for pattern in patterns):
        raise UserError(f"{where} is {patterns!r}: it has to be a list of settings, as names or patterns.")
    for pattern in patterns:
        if not any(fnmatchcase(setting, pattern) for setting in settings):
            raise UserError(
                f"{where}: '{pattern}' is not a setting of this file.{nearest(pattern, settings)} "
                f"There are: {', '.join(settings)}."
            )
    return [setting for setting in settings if any(fnmatchcase(setting, pattern) for pattern in patterns)]


def _seeds(seeds: Any, file: str) -> list[int]:
    """Return a table's seeds. Raises UserError if they are not valid."""
    whole = isinstance(seeds, list) and all(type(seed) is int and 0 <= seed <= SEEDS for seed in seeds)
    if not whole or not seeds:
        raise UserError(
            f"{file}: 'seeds' is {seeds!r}: it has to be a list of whole numbers from 0 to {SEEDS}, such as [0, 1, 2]."
        )
    if len(set(seeds)) < len(seeds):
        raise UserError(f"{file}: 'seeds' is {seeds!r}, with one of them twice: name each seed once, as in [0, 1, 2].")
    return seeds


def _changes(space: Any, rows: list[str], file: str) -> dict[str, Any]:
    """Return a table's changes of its methods' search spaces. Raises UserError if they are not valid."""
    if not isinstance(space, dict):
        raise UserError(f"{file}: 'space' has to be `method: axes`, or `all: axes`.")
    for row, axes in space.items():
        if str(row) not in rows:
            raise UserError(
                f"{file}: space.{row} is for no method of this file.{nearest(str(row), rows)} "
                f"There are: {', '.join(rows)}."
            )
        if axes is not None and not isinstance(axes, dict):
            raise UserError(f"{file}: space.{row} is {axes!r}: it has to be `key: axis`, or null to search nothing.")
    return {str(row): axes for row, axes in space.items()}


def read_scale(name: str, key: str = "scale") -> Scale:
    """Return a scale: `smoke`, `small`, `paper`, one of the user's own, or a number of rounds such as `150`.

    key: where the scale was given, for messages. Raises UserError if there is none of that name.
    """
    if _is_number(name):
        if int(name) < 1:
            raise UserError(f"{key}={name}: a number of rounds has to be at least 1, as in {key}=150.")
        return Scale(name, None, None, None, {}, int(name))
    try:
        path = scale_file(name, key)
    except UserError as error:
        raise UserError(f"{error} Or give a number of rounds, as in {key}=150.") from error
    content, file = _read(path)
    require_known(content, SCALE_KEYS, file)
    for part in ("images", "points", "seeds"):
        value = content.get(part)
        if value is not None and (type(value) is not int or value < 1):
            raise UserError(f"{file}: '{part}' is {value!r}: it has to be a whole number at least 1.")
    if not isinstance(content.get("set") or {}, dict):
        raise UserError(f"{file}: 'set' has to be lines of `key: value`.")
    return Scale(name, content.get("images"), content.get("points"), content.get("seeds"), content.get("set") or {})


def read_space(algorithm: str, changes: list[dict[str, Any] | None], where: str) -> Space:
    """Return a method's search space: the axes of its file, with `changes` laid over them.

    A change of None takes away all axes; None for a key takes away that one. where: the file of the changes, for
    messages. A method without a file has the axes of the changes. Raises UserError if an axis is not valid, a key
    cannot be searched, or the method has neither.
    """
    found = _find_named(algorithm, "space")
    # A change of only None takes away what is not there
    any_axis = any(change is None or any(axis is not None for axis in change.values()) for change in changes)
    if found is None and not any_axis:
        raise UserError(
            f"tune: there is no search space for '{algorithm}'. A file sweeps/space/{algorithm}.yaml in the folder "
            f"that you work in gives it one, a line for each key that is searched, such as {EXAMPLE}."
        )
    axes, file = ({}, where) if found is None else _read(found)
    if found is not None and not axes:
        raise UserError(f"{file} is empty: it has a line for each key that is searched, such as {EXAMPLE}.")
    files = dict.fromkeys(axes, file)
    _check_searched(axes, file)
    for change in changes:
        axes = {} if change is None else _merge(axes, change)
        files |= dict.fromkeys(change or {}, where)
        _check_searched(change or {}, where)
    return {key: parse_axis(key, content, files[key]) for key, content in axes.items() if content is not None}


def _check_searched(axes: dict[str, Any], file: str) -> None:
    """Raise UserError if a key that is to be searched is not a hyperparameter of a trial."""
    for key, content in axes.items():
        if content is not None and (key in GROUPS or str(key).partition(".")[0] in UNSEARCHED):
            raise UserError(
                f"{file}: {key} is not a hyperparameter to search. Sweep seeds and options in the command (seed=0,1 "
                f"algorithm=fedavg,fedprox); an axis is of a key such as train.lr, as in {EXAMPLE}."
            )


def _read(path: Path) -> tuple[dict[str, Any], str]:
    """Return a file's content with its includes, and its name for messages. Raises UserError."""
    return _read_with_includes(path, []), _name_for_messages(path)


def _read_with_includes(path: Path, above: list[Path]) -> dict[str, Any]:
    """Return a file's content, laid over its includes. above: the files that include it, to find circles."""
    if path in above:
        circle = " -> ".join(map(_name_for_messages, [*above, path]))
        raise UserError(f"{_name_for_messages(above[0])}: its includes run in a circle: {circle}.")
    content = read_option(path)
    names = content.pop("include", [])
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(
            f"{_name_for_messages(path)}: include is {names!r}: it has to be a sweep file, or a list of some."
        )
    merged: dict[str, Any] = {}
    for name in names:
        found = _find(name, f"{_name_for_messages(path)}: include: No file", yaml_names("sweeps"))
        merged = _merge(merged, _read_with_includes(found, [*above, path]))
    return _merge(merged, content)


def _find(name: str, what: str, known: list[str], folder: str = "") -> Path:
    """Find a file by its name in a folder of sweeps/, or by its path. what: the message's beginning.

    Raises UserError if there is none.
    """
    if Path(name).suffix in (".yaml", ".yml"):
        if Path(name).is_file():
            return Path(name).absolute()
        kind = "a folder, and no file" if Path(name).is_dir() else "not there"
        raise UserError(f"{what} '{name}': the file is {kind}. Names without .yaml are those of sweeps/.")
    if (file := _find_named(name, folder)) is not None:
        return file
    # What is in the name's folder is enough; folders below it are named as a whole
    at = name[: name.rfind("/") + 1]
    below = [each.removeprefix(at).partition("/") for each in known if each.startswith(at)]
    near = list(dict.fromkeys(f"{at}{first}{'/*' if rest else ''}" for first, _, rest in below)) or known
    raise UserError(f"{what} '{name}'.{nearest(name, known)} There are: {', '.join(near) or 'none'}.")


def _find_named(name: str, folder: str) -> Path | None:
    """Return the first file of that name in a folder of sweeps/; a user's own comes before a shipped one."""
    files = (sweeps / folder / f"{name}.yaml" for sweeps in own_and_shipped("sweeps"))
    return next((file for file in files if file.is_file()), None)


def name_of(sweep: str) -> str:
    """Return a sweep's name. A file in a folder sweeps/ that is given by its path has its name there."""
    file = Path(sweep).absolute()
    for sweeps in own_and_shipped("sweeps"):
        if file.suffix in (".yaml", ".yml") and file.is_relative_to(sweeps.absolute()):
            return file.relative_to(sweeps.absolute()).with_suffix("").as_posix()
    return sweep


def table_file(name: str) -> Path:
    """Return the file of a sweep. Raises UserError if there is none."""
    return _find(name, "sweep: No sweep", sweep_names())


def scale_file(name: str, key: str = "scale") -> Path:
    """Return the file of a scale. key: where it was given, for messages. Raises UserError if there is none."""
    return _find(name, f"{key}: No scale", yaml_names("sweeps/scale"), "scale")


def _name_for_messages(path: Path) -> str:
    """Return a path for messages: from sweeps/ on where it is in such a folder."""
    for folder in own_and_shipped("sweeps"):
        if path.is_relative_to(folder):
            return f"sweeps/{path.relative_to(folder).as_posix()}"
    return str(path)


def _merge(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Lay `over` over `under`: nested mappings are merged, all else is replaced."""
    both = {k: _merge(v, over[k]) for k, v in under.items() if isinstance(v, dict) and isinstance(over.get(k), dict)}
    return {**under, **over, **both}


def trial_overrides(text: Any, where: str) -> list[str]:
    """Return a text's overrides, which have to be those of a trial. Raises UserError if one is of the sweep."""
    words = split_overrides(text, where)
    for word in words:
        if is_of_sweep(word):
            raise UserError(
                f"{where}: {word} applies to the whole sweep: give it in the command (tune=... also under `search`)."
            )
        if key_of(word) == "seed":
            raise UserError(f"{where}: {word}: seeds are the whole sweep's. Say `seeds: [...]` at the file's top.")
    return words


def split_overrides(text: Any, where: str) -> list[str]:
    """Divide a text into Hydra overrides, as a shell would. Raises UserError if they are not valid."""
    if not isinstance(text, str):
        raise UserError(f"{where} is {text!r}: it has to be text of overrides, such as `algorithm=pgfed train.lr=0.1`.")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UserError(f"{where}: '{text}' cannot be divided into overrides ({error}).") from error
    for word in words:
        if "=" not in word:
            raise UserError(f"{where}: '{word}' is not an override, which is written key=value.")
    try:
        words = [quoted(word) for word in words]
        check_hydra(words, several=False)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    return words
