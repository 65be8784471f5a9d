"""Which keys a config may have and what their values may be, checked before anything is built."""

import importlib
import traceback
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import is_dataclass
from typing import Any, get_type_hints

from pflsweep.config.compose import Config, unknown_key
from pflsweep.config.fields import RULES, Rule, field_rule, hyperparameters, kinds_of, require
from pflsweep.config.keys import PLUGS, flat, put, under
from pflsweep.util.errors import UserError, nearest, one_line

PLUGGED = ("algorithm", *PLUGS, "study")  # groups whose node is described by a class rather than by its own file


def check(config: Config) -> None:
    """Raises UserError on the first value that is unknown, missing, of a wrong type or out of range."""
    given, allowed = flat(config.values), flat(config.reference)
    for key in given:
        if key not in allowed and not under(key, PLUGGED):
            raise UserError(unknown_key(key, list(allowed)))
        if given[key] == "???":
            raise UserError(f"{key} is '???', which says that a value is missing: set it, as in {key}=VALUE.")
    for key in RULES:
        if key not in given and key not in allowed and under(key, ("train", "metrics")):  # an option of the user's own
            group, _, name = key.partition(".")
            raise UserError(
                f"{key} is missing: {group}={config.choices.get(group)} has no '{name}'. Add it to its file."
            )
    for key, rule in _rules(config):
        if key not in given:
            raise UserError(f"{key} is missing. Its default is {allowed[key]!r}.")
        require(key, given[key], rule)
    if given.get("dataset.name") != allowed.get("dataset.name"):
        option = config.choices["dataset"]
        raise UserError(f"dataset.name is a part of dataset={option}: set dataset to choose another.")
    if given["paths.runs"].startswith("~"):
        raise UserError(
            f"paths.runs is {given['paths.runs']!r}: '~' is the shell's. Write the folder out, or $HOME/..."
        )
    for group in PLUGGED:
        node = config.values.get(group) or {}
        if group == "algorithm" or node:
            _check_fields(group, config.choices[group], node)


def typed(config: Config) -> Config:
    """A checked config with floats where keys are of floats: mu=1 and mu=1.0 are one trial."""
    given, values = flat(config.values), deepcopy(config.values)
    rules = [*_rules(config), *(pair for group in PLUGGED for pair in _field_rules(group, config))]
    for key, rule in rules:
        if type(given[key]) is int and float in rule.kinds and int not in rule.kinds:
            put(values, key, float(given[key]))
    return config._replace(values=values)


def _rules(config: Config) -> Iterator[tuple[str, Rule]]:
    """Of each key that is not described by a class."""
    for key, example in flat(config.reference).items():
        if not under(key, PLUGGED) and not key.endswith("._target_"):
            yield key, RULES.get(key) or _rule_like(example, key, config)


def _field_rules(group: str, config: Config) -> Iterator[tuple[str, Rule]]:
    """Of each key that a class describes."""
    node = config.values.get(group) or {}
    if "_target_" in node:
        rules = _rules_of(target(group, config.choices[group], node))
        yield from ((f"{group}.{name}", rule) for name, rule in rules.items())


def _rule_like(example: Any, key: str, config: Config) -> Rule:
    """The rule of a key of which only its default is known: its type, or where that says nothing, the function's."""
    if example is None or example == {}:
        group, _, name = key.partition(".")
        node = config.reference[group] if name else {}
        hints = get_type_hints(target(group, config.choices[group], node)) if "_target_" in node else {}
        return Rule(kinds_of(hints.get(name, object)), null=True)
    if isinstance(example, list) and example:
        return Rule((list,), items=type(example[0]))
    return Rule((type(example),))


def _check_fields(group: str, option: str, node: dict[str, Any]) -> None:
    """A method's, plug-in's or study's node against the fields of its class."""
    cls = target(group, option, node)
    kind = {"algorithm": "method", "study": "study"}.get(group, "plug-in")
    if not (isinstance(cls, type) and getattr(cls, "kind", "") == kind and is_dataclass(cls)):
        name = "study (studies.Study)" if kind == "study" else "method or plug-in (protocol.Method)"
        raise UserError(f"{group}={option}: {node['_target_']} is no {name}.")
    values = {key: value for key, value in node.items() if key != "_target_"}
    check_fields(cls, values, group, f"add it to {group}/{option}.yaml")


def check_fields(cls: type, values: dict[str, Any], head: str, remedy: str) -> None:
    """Values against a class's fields. Raises UserError, with `head` before names and `remedy` for a missing one."""
    fields, rules = hyperparameters(cls), _rules_of(cls)
    for key in values:
        if key in fields:
            continue
        if key in cls.__dataclass_fields__:  # type: ignore[attr-defined]
            raise UserError(f"{head}.{key} is a field of {cls.__name__}, no hyperparameter: declare it with hyper().")
        raise UserError(unknown_key(f"{head}.{key}", [f"{head}.{name}" for name in fields]))
    for name, field in fields.items():
        if name not in values:
            raise UserError(f"{head}.{name} is missing ({field.metadata.get('meaning', '')}): {remedy}.")
        require(f"{head}.{name}", values[name], rules[name])


def _rules_of(cls: type) -> dict[str, Rule]:
    """Of a class's fields, by name."""
    hints = get_type_hints(cls)
    return {name: field_rule(hints[name], field) for name, field in hyperparameters(cls).items()}


def target(group: str, option: str, node: dict[str, Any]) -> Any:
    """The object that a node's `_target_` names. Raises UserError where there is none."""
    return imported(target_path(group, option, node), f"{group}={option}")


def target_path(group: str, option: str, node: Any) -> str:
    """A node's `_target_`. Raises UserError where it cannot name anything."""
    path = node.get("_target_") if isinstance(node, dict) else None
    if not isinstance(path, str) or "." not in path:
        said = "is missing" if path is None else f"is {path!r}"
        raise UserError(f"{group}={option}: `_target_` {said}: it has to name a class, as my_package.MyClass.")
    return path


def imported(path: str, what: str) -> Any:
    """The object that a dotted path names. Raises UserError, which begins with `what`, where there is none."""
    module, _, name = path.rpartition(".")
    try:
        found = importlib.import_module(module)
    except Exception as error:  # a module of the user's own may fail in any way
        lost = isinstance(error, ModuleNotFoundError) and module.startswith(str(error.name))
        raise UserError(
            f"{what}: the module '{module}' cannot be imported: {type(error).__name__}: {one_line(error)}"
            f"{'' if lost else _line_of(error)}."
            + (" Is the package installed, or its folder in PYTHONPATH?" if lost else "")
        ) from error
    if name not in dir(found):
        raise UserError(f"{what}: the module '{module}' has no '{name}'.{nearest(name, dir(found))}")
    return getattr(found, name)


def _line_of(error: Exception) -> str:
    """Where a module failed: the innermost line that is in a file."""
    frames = traceback.extract_tb(error.__traceback__)
    frame = next(frame for frame in reversed(frames) if not frame.filename.startswith("<"))
    return "" if isinstance(error, SyntaxError) else f" ({frame.filename}, line {frame.lineno})"
