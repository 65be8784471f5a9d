"""A table of a paper as data: its layout file, and what was printed.

reports/layouts/<paper>/<table>.yaml says what each metric is and over what its std is; rows, columns and numbers are
those of the printed CSV file and of columns.csv, or, for a figure of which no numbers are printed, the layout's own. A
new table needs those and no code.
"""

import ast
import csv
import operator
import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pflsweep import disk
from pflsweep.errors import UserError, nearest
from pflsweep.report.paper.claims import KEYS, Cell

# Numbers for the symbols of printed formulas: Sigma, the model's parameters, is the unit of what is sent; the share of
# the feature extractor is not stated, and M is that of FedALA's text
SYMBOLS = {"Sigma": 1.0, "alpha_f": 0.5, "M": 20.0}
OPERATORS: dict[type, Callable[[float, float], float]] = {ast.Add: operator.add, ast.Mult: operator.mul}
OVER = ("seeds", "clients", "nothing")
BEST = ("high", "low", "none")


class Metric(NamedTuple):
    """How the numbers of a metric come about."""

    quantity: str  # a function of pflsweep/report/paper/measure.py
    over: str  # what the std is over: seeds, clients, or nothing
    best: str = "high"  # which number is the best of its column: high, low, or none
    decimals: int = 2
    options: dict[str, Any] = {}  # noqa: RUF012 (never changed): further words for the quantity
    relative: str = ""  # the row it is divided by; "slowest": the column's largest number divided by it
    minus: str = ""  # the end of a row's name without which it is the row to be subtracted
    times: float = 1.0
    unit: str = "percent"  # where nothing is printed that says it

    @property
    def of_clients(self) -> bool:
        """Whether it is an accuracy of which each client has its own: one model on everybody's data has one for all."""
        shared = self.options.get("view") == "global" and self.options.get("target") == "all"
        return self.quantity == "accuracy" and not shared


class Printed(NamedTuple):
    """A row of a printed CSV file."""

    row: int
    label: str
    dataset: str
    model: str
    setting: str
    metric: str
    method: str
    text: str  # as printed; "" where the print has lost it
    value: float | None
    std: float | None
    std_text: str
    unit: str
    best: bool
    std_over: str

    @property
    def variant(self) -> bool:
        """Whether its method has a plug-in that the same row has not in other columns."""
        return self.method.endswith("_ala")

    @property
    def noise(self) -> float | None:
        """The std, where it is over whole runs."""
        return self.std if self.std_over.startswith(("runs", "seeds", "shuffles")) else None

    @property
    def shown(self) -> str:
        """As printed."""
        return (self.text.replace("inf", "∞") or "lost") + (f" ± {self.std_text}" if self.std_text else "")

    @property
    def key(self) -> tuple[str, ...]:
        """Without the table."""
        return (self.dataset, self.model, self.setting, self.metric, self.method)


class Column(NamedTuple):
    group: str  # the header above it
    header: str
    dataset: str
    model: str
    setting: str  # may hold a *, where the column's rows have different settings
    metric: str
    variant: bool  # of methods with a plug-in, such as fedavg_ala


class Layout(NamedTuple):
    name: str  # pgfed/table1
    title: str
    table: str  # as the papers' CSV files and claims call it: 1, or fig5
    sweeps: list[str]  # whose trials fill it
    metrics: dict[str, Metric]
    settings: dict[str, str]  # dataset/setting/model, or a pattern -> a sweep's setting; else dataset/setting
    views: dict[str, str]  # method -> whose model is scored, where that is not the personal one
    own: str  # the paper's method: paired tests are against it
    compare: str  # columns, or rows: along which the best number is looked for
    figures: list[str]
    notes: list[int]  # of reports/paper/notes.yaml
    about: str  # what a reader should know of our numbers
    columns: list[Column]
    printed: list[Printed]

    @property
    def in_print(self) -> bool:
        """Whether there are numbers to stand beside."""
        return any(line.text for line in self.printed)

    @property
    def paper(self) -> str:
        return self.name.partition("/")[0]

    @property
    def rows(self) -> dict[int, str]:
        """Number -> label, with what tells its setting from those of other rows."""
        labels: dict[int, str] = {}
        for line in self.printed:
            column = self.column_of(line)
            star = column.setting.split(";") if column is not None else []
            own = [part for part, like in zip(line.setting.split(";"), star, strict=False) if "*" in like]
            labels.setdefault(line.row, " ".join([line.label, *(f"({part})" for part in own)]))
        return labels

    def column_of(self, line: Printed) -> Column | None:
        """Where a printed number stands; None for one that has no column of its own."""
        known = {column.metric for column in self.columns}
        for column in self.columns:
            same = (column.dataset, column.model, column.variant) == (line.dataset, line.model, line.variant)
            metric = column.metric == line.metric or line.metric not in known
            if line.metric in self.metrics and same and metric and fnmatchcase(line.setting, column.setting):
                return column
        return None

    def setting_of(self, line: Printed) -> str:
        """The sweep's setting whose trials make a number."""
        place = f"{line.dataset}/{line.setting}"
        found = (to for like, to in self.settings.items() if fnmatchcase(f"{place}/{line.model}", like))
        return next(found, place)


def with_own(of: Layout, cells: list[tuple[str, str]]) -> Layout:
    """With a row at the end for each method that a sweep of one's own adds to a printed table, in the columns whose
    settings it is in. cells: setting and method of all that the table's sweeps have.
    """
    if not of.in_print:
        return of
    every = [of, *(read(name) for name in names() if name.partition("/")[0] == of.paper)]
    known = {line.method for each in every if each.in_print for line in each.printed}
    lines, row = list(of.printed), max(of.rows)
    for method in dict.fromkeys(method for _, method in cells if method not in known):
        row += 1
        lines += [_unsaid(like, row, method) for like in _likes(of) if (of.setting_of(like), method) in cells]
    return of._replace(printed=lines)


def _likes(of: Layout) -> list[Printed]:
    """A printed line of each column that any row may have: no plug-in's, and none that stands for several settings."""
    found: dict[Column, Printed] = {}
    for line in of.printed:
        column = of.column_of(line)
        if column is not None and not column.variant and "*" not in column.setting:
            found.setdefault(column, line)
    return list(found.values())


def _unsaid(like: Printed, row: int, method: str) -> Printed:
    """A line of which nothing is printed."""
    own = like._replace(row=row, label=method, method=method, best=False)
    return own._replace(text="", value=None, std=None, std_text="", std_over="")


def folder(name: str) -> list[Path]:
    """Where reports/<name> is looked for: the user's, then the package's (a wheel's, or beside it)."""
    package = Path(__file__).parents[2]
    inside = package / "reports"
    return [Path.cwd() / "reports" / name, (inside if inside.is_dir() else package.parent / "reports") / name]


def names() -> list[str]:
    """The tables that have a layout, in the order of a reader."""
    found = {
        file.relative_to(root).with_suffix("").as_posix(): None
        for root in folder("layouts")
        for file in sorted(root.glob("*/*.yaml"))
    }
    return list(found)


@cache
def read(name: str) -> Layout:
    """Raises UserError on a layout that is not there or says what cannot be."""
    file = next((f for root in folder("layouts") if (f := root / f"{name}.yaml").is_file()), None)
    if file is None:
        raise UserError(f"No report '{name}'.{nearest(name, names())} There are: runs, all, {', '.join(names())}.")
    content = _content(file)
    metrics = {key: _metric(key, spec, file) for key, spec in content.pop("metrics").items()}
    _known("figures", content["figures"], _figures(), file)
    stem, own, beside = (content.pop(key) for key in ("printed", "own_table", "beside"))
    if not stem:
        table, columns, printed = _unprinted(own, metrics, file)
        return Layout(name=name, table=table, metrics=metrics, columns=columns, printed=printed, **content)
    printed = [_printed(line) for line in _csv(f"{stem}.csv")]
    missing = [line.metric for line in printed if line.metric not in metrics and line.metric not in beside]
    if missing:
        raise UserError(f"{file}: {stem}.csv has the metric '{missing[0]}': say under `metrics` how it comes about.")
    paper, number = stem.split("_")
    columns = [_column(c) for c in _csv("columns.csv") if f"{c['paper']}_{number}" == f"{paper}_{_table(c['table'])}"]
    if not columns or paper != name.partition("/")[0]:
        raise UserError(f"{file}: columns.csv has no columns for '{stem}'.")
    table = number.removeprefix("table")
    return Layout(name=name, table=table, metrics=metrics, columns=columns, printed=printed, **content)


def _unprinted(own: Any, metrics: dict[str, Metric], file: Path) -> tuple[str, list[Column], list[Printed]]:
    """Name, columns and cells of a table of which nothing is printed."""
    keys = ("name", "rows", "columns")
    if not isinstance(own, dict) or set(own) != set(keys) or not all(own.values()):
        raise UserError(f"{file}: without `printed` it needs own_table: {{{', '.join(keys)}}}, each with something.")
    columns, cells = [], []
    for place, header in own["columns"].items():
        dataset, _, setting = place.partition("/")
        for metric in metrics:
            group, head = (header, metric) if len(metrics) > 1 else ("", header)
            columns.append(Column(group, head, dataset, "", setting, metric, False))
            for row, (method, label) in enumerate(own["rows"].items(), start=1):
                where = (row, label, dataset, "", setting, metric, method)
                cells.append(Printed(*where, "", None, None, "", metrics[metric].unit, False, ""))
    return str(own["name"]), columns, cells


DEFAULTS: dict[str, Any] = {
    "settings": {},
    "views": {},
    "own": "",
    "compare": "columns",
    "figures": [],
    "notes": [],
    "about": "",
    "printed": "",  # a file of reports/paper without .csv
    "own_table": None,  # name as claims call it, rows (method: label) and columns (a sweep's setting: header)
    "beside": [],  # printed metrics that are in no column, and are not made anew
}
TYPES = {"title": str, "sweeps": list, "metrics": dict, "own_table": dict}
NAMES_OF: dict[Any, str] = {str: "text", list: "list", dict: "mapping"}
NEEDED = ("title", "sweeps", "metrics")


def _content(file: Path) -> dict[str, Any]:
    try:
        content = disk.read_yaml(file)
    except Exception as error:  # YAML has its own ways to say what is wrong
        raise UserError(f"{file} is no layout: {' '.join(str(error).split())}.") from error
    for key in content:
        if key not in (*NEEDED, *DEFAULTS):
            allowed = [*NEEDED, *DEFAULTS]
            raise UserError(
                f"{file}: unknown key '{key}'.{nearest(str(key), allowed)} It may have: {', '.join(allowed)}."
            )
    for key in NEEDED:
        if key not in content:
            raise UserError(f"{file}: '{key}' is missing. A layout has {', '.join(NEEDED)}.")
    for key, value in content.items():
        like = TYPES.get(key) or type(DEFAULTS[key])
        if not isinstance(value, like):
            raise UserError(f"{file}: '{key}' is {value!r}: it has to be a {NAMES_OF[like]}.")
    return {**DEFAULTS, **content}


def _metric(name: str, spec: Any, file: Path) -> Metric:
    from pflsweep.report.paper.measure import QUANTITIES, WORDS

    if not isinstance(spec, dict) or spec.get("quantity") not in QUANTITIES:
        said = spec.get("quantity") if isinstance(spec, dict) else spec
        raise UserError(
            f"{file}: metrics.{name}: '{said}' is no quantity.{nearest(str(said), list(QUANTITIES))} "
            f"There are: {', '.join(QUANTITIES)}."
        )
    own = {key: value for key, value in spec.items() if key in Metric._fields}
    needed, further = WORDS.get(spec["quantity"], ((), ()))
    _known(f"metrics.{name}", list(spec), [*Metric._fields, *needed, *further], file)
    for word in needed:
        if word not in spec:
            raise UserError(f"{file}: metrics.{name}: {spec['quantity']} needs '{word}'.")
    metric = Metric(**{"over": "seeds", **own}, options={k: v for k, v in spec.items() if k not in own})
    for key, value, allowed in (("over", metric.over, OVER), ("best", metric.best, BEST)):
        if value not in allowed:
            raise UserError(f"{file}: metrics.{name}.{key} is '{value}': it has to be {', '.join(allowed)}.")
    return metric


def _figures() -> list[str]:
    from pflsweep.report.paper.figures import FIGURES

    return list(FIGURES)


def _known(key: str, words: list[str], allowed: list[str], file: Path) -> None:
    for word in words:
        if word not in allowed:
            raise UserError(
                f"{file}: {key} has '{word}'.{nearest(str(word), allowed)} It may have: {', '.join(allowed)}."
            )


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
    """A printed formula of SYMBOLS, such as (1+M)*Sigma."""
    if isinstance(node, ast.BinOp):
        return OPERATORS[type(node.op)](_formula(node.left), _formula(node.right))
    if isinstance(node, ast.Name):
        return SYMBOLS[node.id]
    return float(ast.literal_eval(node))


def cell_of(
    layout: Layout, line: Printed, value: float, std: float | None, best: bool = False, noise: float | None = None
) -> Cell:
    """A number, printed or ours, as claims see it. noise: its std over seeds."""
    key = dict(zip(KEYS, (layout.table, *line.key), strict=True))
    return Cell(paper=layout.paper, **key, value=value, std=std, best=best, noise=noise)


def printed_cells(paper: str) -> list[Cell]:
    """All that a paper's tables print, with what FedFomo prints in the heads of columns: their EMD."""
    cells = []
    for name in names():
        if name.partition("/")[0] == paper:
            layout = read(name)
            for line in layout.printed:
                if line.value is not None:
                    cells.append(cell_of(layout, line, line.value, line.std, line.best, line.noise))
            cells += heads(layout)
    return cells


def heads(layout: Layout) -> list[Cell]:
    """The EMDs that FedFomo prints in the heads of columns."""
    found = []
    for column in layout.columns:
        emd = re.fullmatch(r"\d+ \(([\d.]+)\)", column.header)
        if emd:
            where = (layout.table, column.dataset, column.model, column.setting)
            found.append(Cell(layout.paper, *where, "emd", "_head", float(emd[1]), None))
    return found


def claims(paper: str, table: str) -> list[dict[str, Any]]:
    """Those that are about a table."""
    everything = _yaml("claims.yaml")["claims"]
    return [c for c in everything if c["paper"] == paper and table in [str(each) for each in c["table"]]]


def notes() -> dict[int, str]:
    """What is odd in print, by number."""
    return dict(_yaml("notes.yaml")["notes"])


def stated(paper: str, table: str) -> dict[tuple[str, str, str], dict[str, str]]:
    """By dataset, model and setting, what the paper says of training; "ns" where it does not."""
    lines = [line for line in _csv("settings.csv") if (line["paper"], line["table"]) == (paper, table)]
    return {(line["dataset"], line["model"], line["setting"]): line for line in lines}


@cache
def _yaml(name: str) -> dict[str, Any]:
    return disk.read_yaml(_data(name))


@cache
def _csv(name: str) -> list[dict[str, str]]:
    with open(_data(name), newline="") as file:
        return list(csv.DictReader(file))


def _data(name: str) -> Path:
    found = next((path for root in folder("paper") if (path := root / name).is_file()), None)
    if found is None:
        raise UserError(f"There is no reports/paper/{name} here or beside the package: printed numbers stand there.")
    return found
