"""The printed numbers of the papers, as data: numbers, columns, claims, settings and oddities, of reports/paper."""

import ast
import csv
import operator
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pflsweep.util import files
from pflsweep.util.errors import UserError
from pflsweep.util.resources import own_and_shipped

# Numbers for the symbols of printed formulas: Sigma, the model's parameters, is the unit of what is sent; the share of
# the feature extractor is not stated, and M is that of FedALA's text
SYMBOLS = {"Sigma": 1.0, "alpha_f": 0.5, "M": 20.0}
OPERATORS: dict[type, Callable[[float, float], float]] = {ast.Add: operator.add, ast.Mult: operator.mul}


class Printed(NamedTuple):
    """A row of a printed CSV file."""

    row: int
    label: str
    dataset: str
    model: str
    setting: str
    metric: str
    method: str
    text: str  # as printed; "" if the paper's text has lost it
    value: float | None
    std: float | None
    std_text: str
    unit: str
    best: bool
    std_over: str

    @property
    def variant(self) -> bool:
        """True if its method has a plug-in that the same row has not in other columns."""
        return self.method.endswith("_ala")

    @property
    def noise(self) -> float | None:
        """The std, where it is over whole runs."""
        return self.std if self.std_over.startswith(("runs", "seeds", "shuffles")) else None

    @property
    def shown(self) -> str:
        """The number as printed, with its std."""
        return (self.text.replace("inf", "∞") or "lost") + (f" ± {self.std_text}" if self.std_text else "")

    @property
    def key(self) -> tuple[str, ...]:
        """The keys of the cell, without the table."""
        return (self.dataset, self.model, self.setting, self.metric, self.method)


class Column(NamedTuple):
    group: str  # the header above it
    header: str
    dataset: str
    model: str
    setting: str  # may hold a *, where the column's rows have different settings
    metric: str
    variant: bool  # of methods with a plug-in, such as fedavg_ala


def lines(stem: str) -> list[Printed]:
    """Return the numbers of a printed table's file, in its order. Raise UserError without it."""
    return [_printed(line) for line in _csv(f"{stem}.csv")]


def columns(stem: str) -> list[Column]:
    """Return the columns of a printed table."""
    paper, number = stem.split("_")
    return [_column(c) for c in _csv("columns.csv") if f"{c['paper']}_{number}" == f"{paper}_{_table(c['table'])}"]


def claims(paper: str, table: str) -> list[dict[str, Any]]:
    """Return the claims about a table."""
    everything = _yaml("claims.yaml")["claims"]
    return [c for c in everything if c["paper"] == paper and table in [str(each) for each in c["table"]]]


def notes() -> dict[int, str]:
    """Return the inconsistencies of the published tables, by number."""
    return dict(_yaml("notes.yaml")["notes"])


def stated(paper: str, table: str) -> dict[tuple[str, str, str], dict[str, str]]:
    """Return what the paper says of training, by dataset, model and setting; "ns" where it says nothing."""
    lines = [line for line in _csv("settings.csv") if (line["paper"], line["table"]) == (paper, table)]
    return {(line["dataset"], line["model"], line["setting"]): line for line in lines}


def _table(number: str) -> str:
    return f"table{number}" if number.isdigit() else number


def _column(line: dict[str, str]) -> Column:
    return Column(**{key: line[key] for key in Column._fields[:-1]}, variant=line["ala"] == "1")


def _printed(line: dict[str, str]) -> Printed:
    return Printed(
        row=int(line["row_order"]),
        label=line["method_label"],
        dataset=line["dataset"],
        model=line["model"],
        setting=line["setting"],
        metric=line["metric"],
        method=line["method"],
        text=line["value"],
        value=_value(line["value"]) if line["value"] else None,
        std=float(line["std"]) if line["std"] else None,
        std_text=line["std"],
        unit=line["unit"],
        best=line["best"] == "true",
        std_over=line["std_over"],
    )


def _value(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return _formula(ast.parse(text, mode="eval").body)


def _formula(node: ast.expr) -> float:
    """Return the value of a printed formula of SYMBOLS, such as (1+M)*Sigma."""
    if isinstance(node, ast.BinOp):
        return OPERATORS[type(node.op)](_formula(node.left), _formula(node.right))
    if isinstance(node, ast.Name):
        return SYMBOLS[node.id]
    return float(ast.literal_eval(node))


@cache
def _yaml(name: str) -> dict[str, Any]:
    return files.read_yaml(_data(name))


@cache
def _csv(name: str) -> list[dict[str, str]]:
    with open(_data(name), newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _data(name: str) -> Path:
    found = next((path for root in own_and_shipped("reports/paper") if (path := root / name).is_file()), None)
    if found is None:
        raise UserError(f"There is no reports/paper/{name} here or beside the package: printed numbers stand there.")
    return found
