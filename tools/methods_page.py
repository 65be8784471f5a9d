"""The page of all methods: paper, hyperparameters, what a round costs, what differs from the paper and why."""

import inspect
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import pandas as pd

from pflsweep.config.compose import option_files, read_option
from pflsweep.config.fields import field_rule, hyperparameters
from pflsweep.config.keys import as_override
from pflsweep.config.node import Node
from pflsweep.methods.protocol import Method
from pflsweep.report.markdown import table

INTRO = """# Methods

One line an option of `algorithm=`; below, one section a class. Everything here is read from the methods' own files and
`conf/algorithm/`; wire and time are measured. *Wire*: models (P numbers) that a client of the cohort sends and receives
in a round, together, after the first rounds. *Time*: the round's, without evaluation, as a multiple of FedAvg's,
measured side by side"""


class Option(NamedTuple):
    """A file of conf/algorithm."""

    name: str
    about: str  # its first line
    cls: type[Method]
    values: dict[str, Any]
    remarks: dict[str, str]  # hyperparameter -> the comment on its line


def page(costs: pd.DataFrame | None = None, setting: str = "") -> str:
    """The page as markdown. costs: columns wire and time, indexed by option; setting: how they were measured."""
    found = [_option(name, file) for name, file in option_files("algorithm").items()]
    classes = list(dict.fromkeys(option.cls for option in found))
    rows = [
        [f"[{option.name}](#{_anchor(option.cls)})", option.about, option.cls.paper, *_cost(costs, option.name)]
        for option in found
    ]
    lines = [
        f"{INTRO}{setting}. Variants as authors' code computes them (`as_run/`) were not measured.",
        "",
        table(["option", "what it is", "paper", "wire", "time"], rows, ":--"),
    ]
    for cls in sorted(classes, key=lambda cls: cls.__name__.lower()):
        lines += _section(cls, [option for option in found if option.cls is cls])
    return "\n".join(lines).rstrip() + "\n"


def _option(name: str, file: Path) -> Option:
    node, text = read_option(file), file.read_text().splitlines()
    cls = Node.of("algorithm", name, node).load()
    values = {key: value for key, value in node.items() if key != "_target_"}
    remarks = {line.partition(":")[0]: line.partition(" # ")[2] for line in text if " # " in line}
    return Option(name, text[0].removeprefix("#").strip(), cls, values, remarks)


def _cost(costs: pd.DataFrame | None, name: str) -> tuple[str, str]:
    if costs is None or name not in costs.index:
        return "", ""
    wire, time = costs.loc[name, ["wire", "time"]]
    return f"{wire:.3g}", f"{time:.2f}"


def _anchor(cls: type) -> str:
    return cls.__name__.lower()


def _section(cls: type[Method], options: list[Option]) -> list[str]:
    """A class: its docstring, what its attributes say, its hyperparameters."""
    lines = [f"## {cls.__name__}", "", inspect.getdoc(cls) or "", ""]
    facts = {
        "Reconstruction": cls.reconstruction,
        "A round beside FedAvg's": cls.cost,
        "A client that was never sampled is evaluated with": cls.unsampled_model,
        "ALA in front (`ala=on`)": "yes" if cls.supports_ala else "",
        "DP-SGD (`privacy=dp_sgd`)": f"refused: {cls.dp_incompatible_reason}" if cls.dp_incompatible_reason else "yes",
    }
    lines += [*(f"- {name}: {text}" for name, text in facts.items() if text), ""]
    if rows := [_row(cls, name, options) for name in hyperparameters(cls)]:
        heads = ["hyperparameter", "meaning", "allowed", *(option.name for option in options)]
        lines.append(table(heads, rows, ":--"))
    return lines


def _row(cls: type[Method], name: str, options: list[Option]) -> list[str]:
    field = hyperparameters(cls)[name]
    rule = field_rule(get_type_hints(cls)[name], field)
    shown = [_value(option.values.get(name), option.remarks.get(name, "")) for option in options]
    return [name, field.metadata.get("meaning", ""), str(rule), *shown]


def _value(value: Any, remark: str) -> str:
    return f"{as_override(value)} ({remark})" if remark else as_override(value)
