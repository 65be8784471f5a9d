"""The printed numbers of the papers, as data: numbers, columns, claims, settings and oddities, of reports/paper."""

import ast
import csv
import math
import operator
import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pflsweep.util import files
from pflsweep.util.errors import UserError, nearest, one_line
from pflsweep.util.resources import own_and_shipped

# Numbers for the symbols of printed formulas: Sigma, the model's parameters, is the unit of what is sent; the share of
# the feature extractor is not stated, and M is that of FedALA's text
SYMBOLS = {"Sigma": 1.0, "alpha_f": 0.5, "M": 20.0}
OPERATORS: dict[type, Callable[[float, float], float]] = {ast.Add: operator.add, ast.Mult: operator.mul}
BEST = {"true": True, "false": False, "": False}
# What a printed std is over. Only one over whole runs widens what agrees, so that a word beside these changes verdicts
STD_OVER = re.compile(r"(clients|personalized_models|(runs|seeds|shuffles)([1-9]\d*(_or_runs[1-9]\d*)?)?)?")


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
    def std_over_seeds(self) -> float | None:
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


# The head of each file. A printed table's has the same in all of them
PRINTED_HEAD = (
    *("paper", "table", "row_order", "method", "method_label", "dataset", "model", "setting", "metric"),
    *("value", "std", "unit", "best", "std_over"),
)
HEADS = {
    "columns.csv": ("paper", "table", "col_order", *Column._fields[:-1], "ala"),
    "settings.csv": (
        *("paper", "table", "dataset", "model", "setting", "clients", "participation", "partition", "rounds"),
        *("local_epochs", "batch_size", "optimizer", "lr", "momentum", "weight_decay", "lr_decay", "runs", "std_over"),
        *("test_split", "eval"),
    ),
}


class Line(NamedTuple):
    """A line of a CSV file, not yet understood."""

    where: str  # file and line, for messages
    values: dict[str, str]  # by the head


def lines(stem: str) -> list[Printed]:
    """Return the numbers of a printed table's file, in its order. Raise UserError without it, or if a line is wrong."""
    found = _csv(f"{stem}.csv")
    for line in found:
        if (own := _stem(line.values)) != stem:
            raise UserError(f"{line.where}: paper and table are those of '{own}', but the file is {stem}.csv.")
    return [_printed(line) for line in found]


def places(stem: str) -> list[str]:
    """Return file and line of each number of a printed table, in the order of `lines`."""
    return [line.where for line in _csv(f"{stem}.csv")]


def columns(stem: str) -> list[Column]:
    """Return the columns of a printed table. Raise UserError if one is wrong."""
    return [_column(line) for line in _csv("columns.csv") if _stem(line.values) == stem]


def tables() -> list[str]:
    """Return the printed tables whose columns are known, as their files are named."""
    return list(dict.fromkeys(_stem(line.values) for line in _csv("columns.csv")))


def claims(paper: str, table: str) -> list[dict[str, Any]]:
    """Return the claims about a table. Raise UserError if one is not as it has to be."""
    return [c for c in _claims() if c["paper"] == paper and table in [str(each) for each in c["table"]]]


@cache
def _claims() -> list[dict[str, Any]]:
    from pflsweep.report.paper.claim_fields import check

    file = _data("claims.yaml")
    every = _of_yaml("claims.yaml", "claims", list)
    for claim in every:
        check(claim, str(file))
    for name, count in Counter(claim["id"] for claim in every).items():
        if count > 1:
            raise UserError(f"{file}: {count} claims have the id '{name}'. Give each its own.")
    return every


def notes() -> dict[int, str]:
    """Return the inconsistencies of the published tables, by number."""
    return dict(_of_yaml("notes.yaml", "notes", dict))


def stated(paper: str, table: str) -> dict[tuple[str, str, str], dict[str, str]]:
    """Return what the paper says of training, by dataset, model and setting; "ns" where it says nothing."""
    every = [line.values for line in _csv("settings.csv")]
    lines = [line for line in every if (line["paper"], line["table"]) == (paper, table)]
    return {(line["dataset"], line["model"], line["setting"]): line for line in lines}


def _stem(line: dict[str, str]) -> str:
    """Return the name of the file of a line's table, without .csv."""
    number = line["table"]
    return f"{line['paper']}_{f'table{number}' if number.isdigit() else number}"


def _column(line: Line) -> Column:
    own = line.values
    if own["ala"] not in ("0", "1"):
        raise UserError(f"{line.where}: ala is '{own['ala']}': it has to be 1 for methods that end in _ala, else 0.")
    return Column(**{key: own[key] for key in Column._fields[:-1]}, variant=own["ala"] == "1")


def _printed(line: Line) -> Printed:
    own = line.values
    if not own["row_order"].isdecimal():
        raise UserError(f"{line.where}: row_order is '{own['row_order']}': it has to be the number of the row, from 1.")
    if own["best"] not in BEST:
        raise UserError(f"{line.where}: best is '{own['best']}': it has to be true, false or empty.")
    if not STD_OVER.fullmatch(own["std_over"]):
        raise UserError(
            f"{line.where}: std_over is '{own['std_over']}': it has to be seeds, runs or shuffles with their number, "
            "as in seeds3, or clients, personalized_models, or empty without a std."
        )
    if bool(own["std"]) != bool(own["std_over"]):
        has, lacks = ("std", "std_over") if own["std"] else ("std_over", "std")
        raise UserError(f"{line.where}: {has} is '{own[has]}' and {lacks} is empty: they have to be there both.")
    std = _value(line, "std")
    if std is not None and std < 0:
        raise UserError(f"{line.where}: std is '{own['std']}': it cannot be negative.")
    return Printed(
        row=int(own["row_order"]),
        label=own["method_label"],
        dataset=own["dataset"],
        model=own["model"],
        setting=own["setting"],
        metric=own["metric"],
        method=own["method"],
        text=own["value"],
        value=_value(line, "value"),
        std=std,
        std_text=own["std"],
        unit=own["unit"],
        best=BEST[own["best"]],
        std_over=own["std_over"],
    )


def _value(line: Line, key: str) -> float | None:
    """Return a printed number, or the value of a printed formula; None where nothing is written."""
    text = line.values[key]
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        try:
            value = _formula(ast.parse(text, mode="eval").body)
        except (SyntaxError, ValueError, TypeError, KeyError):
            value = math.nan
    if math.isnan(value):
        raise UserError(
            f"{line.where}: {key} is '{text}': it has to be a number such as 70.25, inf, or a formula of + and * over "
            f"{', '.join(SYMBOLS)}; leave it empty where nothing is printed."
        )
    return value


def _formula(node: ast.expr) -> float:
    """Return the value of a printed formula of SYMBOLS, such as (1+M)*Sigma."""
    if isinstance(node, ast.BinOp):
        return OPERATORS[type(node.op)](_formula(node.left), _formula(node.right))
    if isinstance(node, ast.Name):
        return SYMBOLS[node.id]
    return float(ast.literal_eval(node))


@cache
def _of_yaml(name: str, key: str, like: type) -> Any:
    """Return what stands under the only key that a YAML file needs."""
    file, needs = _data(name), f"It needs `{key}:`, and below it a {'list' if like is list else 'mapping'}."
    try:
        found = files.read_yaml(file).get(key)
    except Exception as error:  # YAML has its own ways to say what is wrong
        raise UserError(f"{file} cannot be read: {one_line(error)}. {needs}") from error
    if not isinstance(found, like):
        raise UserError(f"{file}: '{key}' is {'not there' if found is None else repr(found)}. {needs}")
    return found


@cache
def _csv(name: str) -> list[Line]:
    """Return the lines of a CSV file. Raise UserError if one lacks a value that its head promises."""
    file = _data(name)
    try:
        # Excel puts a byte-order mark before the head
        with open(file, newline="", encoding="utf-8-sig") as opened:
            reader = csv.DictReader(opened)
            head = list(reader.fieldnames or [])
            _check_head(head, HEADS.get(name, PRINTED_HEAD), file)
            return [_line(values, f"{file}, line {reader.line_num}") for values in reader]
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is no text in UTF-8 ({error}). Save it as CSV in UTF-8.") from error


def _check_head(head: list[str], needed: tuple[str, ...], file: Path) -> None:
    whole = f"Its first line has to be {','.join(needed)}"
    if len(head) == 1 and needed[0] in re.split(r"\W", head[0]):
        raise UserError(f"{file}, line 1: the values are not separated by commas. {whole}, and so the others.")
    for key in needed:
        if key not in head:
            other = next((each for each in head if each not in needed and nearest(each, [key])), None)
            wrong = f"'{other}' is no column. Did you mean '{key}'?" if other else f"there is no column '{key}'."
            raise UserError(f"{file}, line 1: {wrong} {whole}.")


def _line(values: dict[Any, Any], where: str) -> Line:
    short = next((key for key, value in values.items() if value is None), None)
    if short is not None or None in values:
        wrong = f"no value for '{short}'" if short is not None else "more values than in the first line"
        raise UserError(
            f"{where}: it has {wrong}. An empty value keeps its comma, a number has a decimal point, and a text with a "
            "comma is in quotes."
        )
    return Line(where, values)


def _data(name: str) -> Path:
    roots = own_and_shipped("reports/paper")
    found = next((path for root in roots if (path := root / name).is_file()), None)
    if found is None:
        there = [path.name for root in roots for path in root.glob("*_*.csv")]
        raise UserError(
            f"There is no reports/paper/{name} here or beside the package: the published numbers are read from there."
            f"{nearest(name, there)}"
        )
    return found
