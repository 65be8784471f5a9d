"""`pflsweep list algorithms|datasets|...|sweeps|scales|spaces`: print what can be chosen, one a line."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pflsweep.commands.parser import Parser
from pflsweep.config.compose import compose
from pflsweep.config.hydra_loader import option_files, read_option, sweep_defaults
from pflsweep.config.identity import needs, shipped_options
from pflsweep.config.keys import as_override
from pflsweep.config.options import rules, sweep_rules
from pflsweep.util.errors import UserError, counted, nearest
from pflsweep.util.resources import sweep_names, yaml_names

GROUP_OF = {
    "algorithms": "algorithm",
    "datasets": "dataset",
    "partitions": "partition",
    "models": "model",
    "metrics": "metrics",
    "attacks": "attack",
    "privacy": "privacy",
    "studies": "study",
    "settings": "setting",
}
KNOWN = (*GROUP_OF, "sweeps", "scales", "readings", "spaces", "keys")


def main(argv: list[str]) -> int:
    """Print one list. Raises UserError if there is none of that name."""
    parser = Parser(prog="pflsweep list", description="What can be chosen, a line each.")
    parser.add_argument("what", nargs="?", help=" | ".join(KNOWN))
    parser.add_argument("--config-dir", "-cd", default=None, help="a folder with options of your own")
    asked = parser.parse_args(argv)
    if asked.what is None:
        raise UserError(f"list: name what to list, as in `pflsweep list algorithms`. Known are: {', '.join(KNOWN)}.")
    if asked.what not in KNOWN:
        guess = nearest(asked.what, list(KNOWN))
        raise UserError(f"list {asked.what}: there is no such list.{guess} Known are: {', '.join(KNOWN)}.")
    if asked.what in ("readings", "spaces"):
        print("\n\n".join(_readings() if asked.what == "readings" else _spaces(asked.config_dir)))
        return 0
    if asked.what == "keys":
        lines = _keys(asked.config_dir)
    else:
        tables = {"sweeps": _sweeps, "scales": _scales}
        lines = tables[asked.what]() if asked.what in tables else _options(GROUP_OF[asked.what], asked.config_dir)
    width = max(map(len, lines), default=0)
    for name, line in lines.items():
        print(f"{name.ljust(width)}  {line}")
    return 0


def _options(group: str, config_dir: str | None) -> dict[str, str]:
    """Return a line for each option of a config group."""
    return {name: _or_why(_line, group, file) for name, file in option_files(group, config_dir).items()}


def _keys(config_dir: str | None) -> dict[str, str]:
    """Return a line for each key of a trial or sweep and its default: its meaning and allowed values."""
    defaults = {**compose([], config_dir).flat, **sweep_defaults()}
    return {
        f"{key}={as_override(defaults[key])}": f"{rule.meaning}{needs(key)} ({rule})"
        for key, rule in {**rules(), **sweep_rules()}.items()
    }


def _sweeps() -> dict[str, str]:
    """Return a line for each sweep in the working directory and the package."""
    return {name: _or_why(_line_of_sweep, name) for name in sweep_names()}


def _scales() -> dict[str, str]:
    """Return a line for each scale in the working directory and the package, and one for a number of rounds."""
    from pflsweep.sweep.spec import scale_file

    named = {name: _comment(scale_file(name).read_text("utf-8")) for name in yaml_names("sweeps/scale")}
    return {**named, "150": "so many rounds (any number)"}


def _readings() -> Iterator[str]:
    """Yield a paragraph for each paper on what its authors' code does differently, and by which keys that is set."""
    from pflsweep.config import reading

    for paper in reading.names():
        yield f"{paper}: {_or_why(_lines_of_reading, paper)}"


def _lines_of_reading(paper: str) -> str:
    """Return the code of a paper's authors and its differences from the paper."""
    from pflsweep.config import reading

    found = reading.read(paper)
    assert found is not None, "it has just been listed"
    lines = [found.code]
    for change in found.changes.values():
        keys = list(change.overrides)
        keys += [f"{row} is scored by its {view} models" for row, view in change.views.items()]
        keys += [f"{row} in the {round} round" for row, round in change.rounds.items()]
        lines += [
            f"  {change.name} ({change.where})",
            f"    paper  {change.paper}",
            f"    code   {change.code}",
            f"    keys   {'; '.join(keys)}",
        ]
    lines += [f"  no public code: {', '.join(found.unknown)}"] if found.unknown else []
    lines += [f"  not modelled: {text}" for text in found.not_modelled]
    return "\n".join(lines)


def _spaces(config_dir: str | None) -> Iterator[str]:
    """Yield a paragraph for each method on its search space: a line for each hyperparameter, with its source."""
    names = yaml_names("sweeps/space")
    yield "Hyperparameters, values that tune=grid tries, range of the other searches, source:"
    for name in names:
        yield f"{name}\n{_or_why(_lines_of_space, name)}"
    if without := sorted(option_files("algorithm", config_dir).keys() - {*names}):
        yield f"no search space (sweeps/space/NAME.yaml): {', '.join(without)}"


def _lines_of_space(name: str) -> str:
    """Return the search space of a method, one line a hyperparameter."""
    from pflsweep.sweep.spec import read_space

    rows = []
    for key, axis in read_space(name, [], "").items():
        grid = ", ".join(map(as_override, axis.grid))
        span = "" if axis.range is None else f"{axis.range[0]:g} to {axis.range[1]:g}{', log' * axis.log}"
        rows.append((key, grid, span, axis.source))
    if not rows:
        return "  nothing is searched"
    widths = [max(len(row[k]) for row in rows) for k in range(3)]
    return "\n".join("  " + "  ".join([*map(str.ljust, row[:3], widths), row[3]]) for row in rows)


def _or_why(line: Callable[..., str], *args: Any) -> str:
    """Return a line, or the error about a broken file, which thus does not hide the others."""
    try:
        return line(*args)
    except UserError as error:
        return f"cannot be read: {error}"


def _line_of_sweep(name: str) -> str:
    """Return a sweep file's leading comment and how large the sweep is."""
    from pflsweep.sweep.spec import read_table, table_file

    table = read_table(name)
    cells, whole = len(table.cells), len(table.methods) * len(table.settings)
    size = [counted(len(table.methods), "method"), counted(len(table.settings), "setting")]
    fewer = f" ({cells} of {whole} cells)" if cells < whole else ""
    searched = f"searched: {' '.join(table.search)}" if table.search else "not searched"
    about = _comment(table_file(name).read_text("utf-8"))
    return f"{about}  [{' x '.join([*size, counted(len(table.seeds), 'seed')])}{fewer}, {searched}]"


def _line(group: str, file: Path) -> str:
    """Return an option's description and its keys with their values.

    The description is the leading comment of its file; for an algorithm the paper comes first, and a class of the
    user's own describes itself where its file does not.
    """
    node = read_option(file)
    about = _comment(file.read_text("utf-8"))
    if group == "algorithm":
        from pflsweep.config.node import Node

        cls = Node.of(group, file.stem, node).load()
        rebuilt = f" (reconstruction: {cls.reconstruction})" if getattr(cls, "reconstruction", "") else ""
        first = (cls.__doc__ or "").partition("\n")[0].rstrip(".")
        # A dataclass without a docstring has its signature
        if not about and node["_target_"] not in shipped_options() and not first.startswith(f"{cls.__name__}("):
            about = first
        about = f"{getattr(cls, 'paper', 'no paper named')}{f': {about}' if about else ''}{rebuilt}"
    # A setting sets keys of many groups, which would make its line too long
    if group == "setting":
        return about
    # A dataset's name is its option's, and cannot be set
    hidden = ("_target_", "defaults", *(["name"] if group == "dataset" else []))
    values = {k: v for k, v in node.items() if k not in hidden}
    keys = ", ".join(f"{key}={as_override(value)}" for key, value in values.items())
    return f"{about}  [{keys}]" if keys else about


def _comment(text: str) -> str:
    """Return the first comment line of a YAML file."""
    comments = [line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#")]
    return next((line.rstrip(",:") for line in comments if not line.startswith("@package")), "")
