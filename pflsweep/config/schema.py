"""Check the keys and values of a config before anything is built."""

import inspect
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import Field, is_dataclass, replace
from typing import Any, get_args, get_type_hints

from pflsweep.config import options
from pflsweep.config.compose import Config
from pflsweep.config.fields import Rule, hyperparameters, kinds_of, require, rules_of
from pflsweep.config.hydra_errors import unknown_key
from pflsweep.config.identity import GONE, NEUTRAL
from pflsweep.config.keys import PLUGS, flat, put, under
from pflsweep.config.node import Node
from pflsweep.util.errors import UserError

CLASS_GROUPS = ("algorithm", *PLUGS, "study")  # their options are fields of a class
FUNCTION_GROUPS = ("model", "dataset", "partition")  # their options are parameters of a function


def check(config: Config) -> None:
    """Raise UserError on the first key that is unknown, missing, of a wrong type or out of range."""
    given, allowed = flat(config.values), flat(config.defaults)
    known = {**allowed, **options.rules()}
    stray = [key for key in given if key not in known and not under(key, CLASS_GROUPS)]
    if stray:
        raise UserError(_stray(config, stray, [key for key in allowed if not key.endswith("._target_")]))
    for key in given:
        if given[key] == "???":
            raise UserError(f"{key} is '???', which says that a value is missing: set it, as in {key}=VALUE.")
    for key, rule in _rules(config):
        if key in given:
            require(key, given[key], rule)
        elif key in allowed:
            raise UserError(f"{key} is missing. Its default is {allowed[key]!r}.")
        elif rule.neutral is ...:  # in a user's own option; shipped ones have all keys
            group, _, name = key.partition(".")
            option = config.choices.get(group)
            raise UserError(f"{key} is missing ({rule.meaning}): {group}={option} has no '{name}'. Add it to its file.")
    if given.get("dataset.name") != allowed.get("dataset.name"):
        option = config.choices["dataset"]
        raise UserError(f"dataset.name is a part of dataset={option}: set dataset to choose another.")
    if config.paths.runs.startswith("~"):
        raise UserError(f"paths.runs is {config.paths.runs!r}: '~' is the shell's. Write the folder out, or $HOME/...")
    for group in CLASS_GROUPS:
        if group == "algorithm" or config.chooses(group):
            _check_described(config.node(group))


def _stray(config: Config, stray: list[str], allowed: list[str]) -> str:
    """Return the message for keys that no chosen option has. allowed: those that there are.

    Hydra refuses such a key unless it is added by `+`, or by a setting that is for another option.
    """
    said = unknown_key(stray[0], allowed)
    if (group := stray[0].partition(".")[0]) not in FUNCTION_GROUPS:
        return said
    away = " ".join(f"~{key}" for key in stray if under(key, (group,)))
    return (
        f"{said} Where +setting=NAME has it for another {group} than {config.choices[group]}, take away what is not "
        f"for this one: {away}."
    )


def typed(config: Config) -> Config:
    """Return a checked config with whole numbers converted to floats where keys are floats: mu=1 is mu=1.0.

    The same holds for the items of lists.
    """
    given, values = flat(config.values), deepcopy(config.values)
    rules = [*_rules(config), *(pair for group in CLASS_GROUPS for pair in _class_rules(config, group))]
    for key, rule in rules:
        if type(given.get(key)) is int and float in rule.kinds and int not in rule.kinds:
            put(values, key, float(given[key]))
        if rule.items is float and isinstance(given.get(key), list):
            put(values, key, [float(item) for item in given[key]])
    return replace(config, values=values)


def neutral_values(config: Config) -> dict[str, Any]:
    """Return the neutral values of a config's keys, by full key; not all keys have one.

    The trainer's keys and those of methods, plug-ins and studies declare it. For a key of a model, a dataset or a
    partition it is the default of the function's parameter, since passing the default is the same call.
    """
    found = {**NEUTRAL, **GONE}
    for group in CLASS_GROUPS:
        rules = _class_rules(config, group)
        found |= {key: rule.neutral for key, rule in rules if rule.neutral is not ...}
    for group in FUNCTION_GROUPS:
        for name, parameter in inspect.signature(config.node(group).load()).parameters.items():
            if parameter.default is not parameter.empty:
                default = parameter.default
                found[f"{group}.{name}"] = list(default) if isinstance(default, tuple) else default
    return found


def _rules(config: Config) -> Iterator[tuple[str, Rule]]:
    """Yield the rules of the trainer's keys, and of the parameters of models, datasets and partitions."""
    yield from options.rules().items()
    for key, example in flat(config.defaults).items():
        if key not in options.rules() and not under(key, CLASS_GROUPS) and not key.endswith("._target_"):
            yield key, _rule_like(example, key, config)


def _class_rules(config: Config, group: str) -> Iterator[tuple[str, Rule]]:
    """Yield the rules of the keys of a group whose options are described by a class."""
    if config.chooses(group):
        rules = rules_of(config.node(group).load())
        yield from ((f"{group}.{name}", rule) for name, rule in rules.items())


def _rule_like(example: Any, key: str, config: Config) -> Rule:
    """Return a rule for a key that has none: its value has the type of its default, or that of the parameter.

    A whole number that is given for a parameter of type float stays one, as in the identities of earlier records.
    """
    hint = _parameter_hint(key, config)
    if example is None or example == {}:
        return Rule(kinds_of(hint), null=True)
    items = type(example[0]) if isinstance(example, list) and example else None
    kinds: tuple[type, ...] = (type(example),)
    if kinds == (int,) and float in kinds_of(hint):  # `width: 1` of a parameter `width: float`
        kinds = (float, int)
    elif isinstance(example, str) and "${" in example:  # a reference has the type of what it refers to
        kinds = kinds_of(hint)
    return Rule(kinds, null=type(None) in get_args(hint), items=items)


def _parameter_hint(key: str, config: Config) -> Any:
    """Return the type of the parameter that a key of a group is; `object` where there is no such parameter."""
    group, _, name = key.partition(".")
    node = config.defaults[group] if name else {}
    if not isinstance(node, dict) or "_target_" not in node:
        return object
    return get_type_hints(Node.of(group, config.choices[group], node).load()).get(name, object)


def _check_described(node: Node) -> None:
    """Check the options of a method, plug-in or study against the fields of its class. Raises UserError."""
    cls = node.load()
    kind = {"algorithm": "method", "study": "study"}.get(node.group, "plug-in")
    if not (isinstance(cls, type) and getattr(cls, "kind", "") == kind and is_dataclass(cls)):
        name = "study (studies.Study)" if kind == "study" else "method or plug-in (protocol.Method)"
        raise UserError(f"{node}: {node.path} is not a {name}.")
    check_fields(cls, node.options, node.group, f"add it to {node.group}/{node.option}.yaml")


def _left_undecorated(cls: type) -> str:
    """Return which field a class declares although it is not a dataclass itself, and how; "" if none."""
    # A dataclass removes the fields that it finds
    if by_hyper := next((name for name, value in vars(cls).items() if isinstance(value, Field)), None):
        return f"{by_hyper} is declared by hyper()"
    if not hasattr(cls, "__dataclass_fields__") or "__dataclass_fields__" in vars(cls):
        return ""
    declared = vars(cls).get("__annotations__", {}).items()
    return next((f"{name} is declared" for name, kind in declared if "ClassVar" not in str(kind)), "")


def check_fields(cls: type, values: dict[str, Any], head: str, remedy: str) -> None:
    """Check values against a class's fields.

    head: prefix of the names in messages. remedy: what to do where one is missing. Raises UserError if a value is
    unknown, missing or wrong.
    """
    for base in cls.__mro__:
        if left := _left_undecorated(base):
            raise UserError(
                f"{base.__name__}.{left}, but {base.__name__} is not a dataclass: put "
                "@dataclass(frozen=True, kw_only=True) above the class."
            )
    fields, rules = hyperparameters(cls), rules_of(cls)
    for key in values:
        if key in fields:
            continue
        if key in cls.__dataclass_fields__:  # type: ignore[attr-defined]
            raise UserError(f"{head}.{key} is a field of {cls.__name__}, no hyperparameter: declare it with hyper().")
        raise UserError(unknown_key(f"{head}.{key}", [f"{head}.{name}" for name in fields]))
    for name, rule in rules.items():
        if name not in values:
            raise UserError(f"{head}.{name} is missing ({rule.meaning}): {remedy}.")
        require(f"{head}.{name}", values[name], rule)
