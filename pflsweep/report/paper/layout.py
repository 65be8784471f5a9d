"""A table of a paper as data: its layout file, and what was printed.

reports/layouts/<paper>/<table>.yaml says what each metric is and over what its std is; rows, columns and numbers are
those of the printed CSV file and of columns.csv, or, for a figure of which no numbers are printed, the layout's own. A
new table needs those and no code.
"""

import re
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pflsweep.config.keys import is_number
from pflsweep.report.paper import published
from pflsweep.report.paper.claims import KEYS, Statistic
from pflsweep.report.paper.layout_checks import check_names, check_places, check_units, matches_column, require_allowed
from pflsweep.report.paper.published import Column, Printed
from pflsweep.util import errors, files
from pflsweep.util.errors import UserError, nearest, one_line, require_one_of
from pflsweep.util.resources import own_and_shipped, yaml_names

OVER = ("seeds", "clients", "nothing")
BEST = ("high", "low", "none")
LEADERBOARD = "leaderboard"  # a page that ranks the rows over the columns
PAGES = ("table", LEADERBOARD)
COMPARE = ("columns", "rows")


class Metric(NamedTuple):
    """How the numbers of a metric come about."""

    quantity: str  # a function of pflsweep/report/paper/metrics.py
    over: str  # what the std is over: seeds, clients, or nothing
    best: str = "high"  # which number is the best of its column: high, low, or none
    decimals: int = 2
    options: dict[str, Any] = {}  # noqa: RUF012 (never changed): further words for the quantity
    relative: str = ""  # the row it is divided by; "slowest": the column's largest number divided by it
    minus: str = ""  # the end of a row's name without which it is the row to be subtracted
    times: float = 1.0
    unit: str = "percent"  # where nothing is printed that says it
    setting: str = ""  # the sweep's setting that it is measured in, where that is not its column's

    @property
    def of_clients(self) -> bool:
        """True for an accuracy of which each client has its own: one model on everybody's data has one for all, and the
        least client is another one in each row.
        """
        shared = self.options.get("view") == "global" and self.options.get("target") == "all"
        return self.quantity == "accuracy" and not shared and "take" not in self.options


class Layout(NamedTuple):
    name: str  # pgfed/table1
    title: str
    table: str  # as the papers' CSV files and claims call it: 1, or fig5
    sweeps: list[str]  # whose trials fill it
    metrics: dict[str, Metric]
    settings: dict[str, str]  # dataset/setting/model, or a pattern -> a sweep's setting; else dataset/setting
    views: dict[str, str]  # method -> whose model is scored, where that is not the personal one
    rounds: dict[str, str]  # method -> the round that is scored (last, best), where that is not its metric's
    own: str  # the paper's method: paired tests are against it
    compare: str  # columns, or rows: along which the best number is looked for
    figures: list[str]
    notes: list[int]  # of reports/paper/notes.yaml
    about: str  # what a reader should know of our numbers
    page: str  # table, or leaderboard
    columns: list[Column]
    printed: list[Printed]

    @property
    def has_paper(self) -> bool:
        """Return whether there are printed tables of its paper, of which this may be a figure. Own tables have none."""
        return any(each.in_print for each in of_paper(self.paper))

    @property
    def in_print(self) -> bool:
        """True if numbers of the table are printed."""
        return any(printed.text for printed in self.printed)

    @property
    def whose(self) -> str:
        """Whose method `own` is: the paper's, or that of a table of one's own."""
        return "paper" if self.in_print else "table"

    @property
    def paper(self) -> str:
        return self.name.partition("/")[0]

    @property
    def rows(self) -> dict[int, str]:
        """The label of each row by its number, with what its setting differs in from those of other rows."""
        labels: dict[int, str] = {}
        for printed in self.printed:
            column = self.column_of(printed)
            star = column.setting.split(";") if column is not None else []
            own = [part for part, like in zip(printed.setting.split(";"), star, strict=False) if "*" in like]
            labels.setdefault(printed.row, " ".join([printed.label, *(f"({part})" for part in own)]))
        return labels

    @property
    def labels(self) -> dict[str, str]:
        """The label with which a method's rows begin, by method."""
        return {printed.method: printed.label for printed in self.printed}

    def column_of(self, printed: Printed) -> Column | None:
        """Return the column in which a printed number stands; None for one that has no column of its own."""
        known = {column.metric for column in self.columns}
        for column in self.columns:
            same = (column.dataset, column.model, column.variant) == (printed.dataset, printed.model, printed.variant)
            metric = column.metric == printed.metric or printed.metric not in known
            if printed.metric in self.metrics and same and metric and matches_column(printed.setting, column.setting):
                return column
        return None

    def view(self, metric: Metric, method: str) -> str:
        """Return whose models of a method a metric is of."""
        return str(metric.options.get("view") or self.views.get(method, "personal"))

    def setting_of(self, printed: Printed) -> str:
        """Return the sweep's setting whose trials make a number."""
        metric = self.metrics.get(printed.metric)
        if metric is not None and metric.setting:
            return metric.setting
        place = f"{printed.dataset}/{printed.setting}" if printed.setting else printed.dataset
        name = f"{place}/{printed.model}"
        found = (to for like, to in self.settings.items() if name == like or fnmatchcase(name, like))
        return next(found, place)


def of_paper(paper: str) -> list[Layout]:
    """Return the layouts of a paper's tables that can be read. What is wrong with another its own report says."""
    found = []
    for name in names():
        if name.partition("/")[0] == paper:
            with suppress(UserError):
                found.append(read(name))
    return found


def with_own(layout: Layout, cells: list[tuple[str, str]]) -> Layout:
    """Return a layout with a row at the end for each method that a sweep of one's own adds to a printed table or a
    leaderboard, in the columns whose settings it is in. cells: setting and method of all that the table's sweeps have.
    """
    if not layout.in_print and layout.page != LEADERBOARD:
        return layout
    every = of_paper(layout.paper)
    known = {printed.method for each in (layout, *every) if each is layout or each.in_print for printed in each.printed}
    lines, row = list(layout.printed), max(layout.rows)
    for method in dict.fromkeys(method for _, method in cells if method not in known):
        row += 1
        lines += [
            _unprinted_line(like, row, method)
            for like in _line_of_each_column(layout)
            if (layout.setting_of(like), method) in cells
        ]
    return layout._replace(printed=lines)


def _line_of_each_column(layout: Layout) -> list[Printed]:
    """Return a printed line of each column that any row may have: no plug-in's, and none that stands for several
    settings.
    """
    found: dict[Column, Printed] = {}
    for printed in layout.printed:
        column = layout.column_of(printed)
        if column is not None and not column.variant and "*" not in column.setting:
            found.setdefault(column, printed)
    return list(found.values())


def _unprinted_line(like: Printed, row: int, method: str) -> Printed:
    """Return a line of which nothing is printed."""
    own = like._replace(row=row, label=method, method=method, best=False)
    return own._replace(text="", value=None, std=None, std_text="", std_over="")


def names() -> list[str]:
    """Return the tables that have a layout, in the order of a reader."""
    return yaml_names("reports/layouts")


@cache
def read(name: str) -> Layout:
    """Return a report's layout. Raise UserError if it is not there or says what cannot be."""
    from pflsweep.report.paper.metrics import SHARES

    file = next((f for root in own_and_shipped("reports/layouts") if (f := root / f"{name}.yaml").is_file()), None)
    if file is None:
        raise UserError(
            f"No report '{name}'.{nearest(name, names())} There are: runs, site, all, {', '.join(names())}."
        )
    content = _content(file)
    metrics = {key: _metric(key, spec, file) for key, spec in content.pop("metrics").items()}
    for key, metric in metrics.items():
        if content["page"] == LEADERBOARD and (metric.quantity not in SHARES or metric.best != "high"):
            raise UserError(
                f"{file}: a leaderboard ranks accuracies, the highest first: metrics.{key} is '{metric.quantity}', "
                f"best: {metric.best}. Leave it out, or say `page: {PAGES[0]}`."
            )
    stem, own, beside = (content.pop(key) for key in ("printed", "own_table", "beside"))
    if not stem:
        table, columns, numbers = _unprinted(own, metrics, file)
    else:
        table, columns, numbers = _in_print(stem, name.partition("/")[0], file)
        for printed in numbers:
            if printed.metric not in metrics and printed.metric not in beside:
                raise UserError(
                    f"{file}: {stem}.csv has the metric '{printed.metric}': say under `metrics` how it comes about."
                    f"{nearest(printed.metric, list(metrics))}"
                )
    found = Layout(name=name, table=table, metrics=metrics, columns=columns, printed=numbers, **content)
    check_names(found, beside, file)
    check_units(found, published.places(stem) if stem else [f"{file}: metrics.{printed.metric}" for printed in numbers])
    if stem:
        check_places(found, stem)
    return found


def _in_print(stem: str, paper: str, file: Path) -> tuple[str, list[Column], list[Printed]]:
    """Return name, columns and cells of a printed table. stem: its file without .csv."""
    own, _, number = stem.rpartition("_")
    if own != paper or not number:
        raise UserError(
            f"{file}: 'printed' is '{stem}': it has to be '{paper}_' and the table, such as {paper}_table1 of "
            f"reports/paper/{paper}_table1.csv."
        )
    printed, columns = published.lines(stem), published.columns(stem)
    if not printed:
        raise UserError(f"{file}: {stem}.csv has no numbers.")
    if not columns:
        raise UserError(f"{file}: columns.csv has no columns for '{stem}'.{nearest(stem, published.tables())}")
    return number.removeprefix("table"), columns, printed


def _unprinted(own: Any, metrics: dict[str, Metric], file: Path) -> tuple[str, list[Column], list[Printed]]:
    """Return name, columns and cells of a table of which nothing is printed."""
    keys = ("name", "rows", "columns")
    whole = isinstance(own, dict) and set(own) == set(keys) and all(own.values())
    if not whole or not all(isinstance(own[key], dict) for key in ("rows", "columns")):
        raise UserError(
            f"{file}: without `printed` it needs own_table: {{{', '.join(keys)}}}, each with something; rows are "
            "`method: label`, columns `dataset/setting: header`."
        )
    for key in ("rows", "columns"):
        for word in own[key]:
            if not isinstance(word, str):
                raise UserError(f"{file}: own_table.{key} has {word!r}, which YAML does not read as a text: quote it.")
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
    "rounds": {},
    "own": "",
    "compare": "columns",
    "figures": [],
    "notes": [],
    "about": "",
    "page": PAGES[0],
    "printed": "",  # a file of reports/paper without .csv
    "own_table": None,  # name as claims call it, rows (method: label) and columns (a sweep's setting: header)
    "beside": [],  # printed metrics that are in no column, and are not made anew
}
# Of a metric
TEXTS = ("relative", "minus", "unit", "setting")
NUMBERS = ("times", "first", "goal", "within", "head")
TYPES = {"title": str, "sweeps": list, "metrics": dict, "own_table": dict}
NAMES_OF: dict[Any, str] = {str: "text", list: "list", dict: "mapping"}
NEEDED = ("title", "sweeps", "metrics")


def _content(file: Path) -> dict[str, Any]:
    try:
        content = files.read_yaml(file)
    except Exception as error:  # YAML has its own ways to say what is wrong
        raise UserError(f"{file} is not a layout: {one_line(error)}.") from error
    errors.require_known(content, [*NEEDED, *DEFAULTS], file)
    for key in NEEDED:
        if key not in content:
            raise UserError(f"{file}: '{key}' is missing. A layout has {', '.join(NEEDED)}.")
    for key, value in content.items():
        like = TYPES.get(key) or type(DEFAULTS[key])
        if not isinstance(value, like):
            raise UserError(f"{file}: '{key}' is {value!r}: it has to be a {NAMES_OF[like]}.")
    for key, allowed in (("page", PAGES), ("compare", COMPARE)):
        require_one_of(key, content.get(key, allowed[0]), allowed, file)
    if "printed" in content and "own_table" in content:
        raise UserError(f"{file} has 'printed' and 'own_table': rows and columns are of one of both. Leave one out.")
    if not content["metrics"]:
        raise UserError(f"{file}: 'metrics' is empty: it needs one, such as `acc: {{quantity: accuracy}}`.")
    if not content["sweeps"]:
        raise UserError(f"{file}: 'sweeps' is empty: name those that train its cells, such as pgfed/table1.")
    return {**DEFAULTS, **content}


def _metric(name: str, spec: Any, file: Path) -> Metric:
    from pflsweep.report.paper.metrics import OPTION_NAMES, OPTION_VALUES, QUANTITIES
    from pflsweep.report.paper.study_numbers import WHEN

    allowed = [key for key in Metric._fields if key != "options"]
    if isinstance(spec, dict) and "quantity" not in spec:
        require_allowed(f"metrics.{name}", list(spec), allowed, file)
        raise UserError(f"{file}: metrics.{name} needs 'quantity', one of: {', '.join(QUANTITIES)}.")
    if not isinstance(spec, dict) or spec["quantity"] not in QUANTITIES:
        said = spec["quantity"] if isinstance(spec, dict) else spec
        raise UserError(
            f"{file}: metrics.{name}: '{said}' is not a quantity.{nearest(str(said), list(QUANTITIES))} "
            f"There are: {', '.join(QUANTITIES)}."
        )
    own = {key: value for key, value in spec.items() if key in Metric._fields}
    needed, further = OPTION_NAMES.get(spec["quantity"], ((), ()))
    require_allowed(f"metrics.{name}", list(spec), [*allowed, *needed, *further], file)
    for word in needed:
        if word not in spec:
            raise UserError(f"{file}: metrics.{name}: {spec['quantity']} needs '{word}'.")
    metric = Metric(**{"over": "seeds", **own}, options={k: v for k, v in spec.items() if k not in own})
    for key, value in (("take", "min"), ("by", "samples")):
        if metric.over == "clients" and metric.options.get(key) == value:
            raise UserError(
                f"{file}: metrics.{name}: 'over: clients' shows mean and std of clients that count the same, so that "
                f"'{key}: {value}' has no place. Leave one of both out."
            )
    values = {**OPTION_VALUES, "over": OVER, "best": BEST, "when": WHEN.get(metric.quantity, ())}
    for key, value in spec.items():
        at = f"{file}: metrics.{name}.{key}"
        if key in values:
            require_one_of(f"metrics.{name}.{key}", value, values[key], file)
        elif key == "decimals" and (type(value) is not int or value < 0):
            raise UserError(f"{at} is {value!r}: it has to be a whole number, at least 0.")
        elif key in TEXTS and not isinstance(value, str):
            raise UserError(f"{at} is {value!r}: it has to be a text.")
        elif key in NUMBERS and not is_number(value):
            raise UserError(f"{at} is {value!r}: it has to be a number.")
        elif key == "goal" and not 0 < value <= 1:
            raise UserError(f"{at} is {value!r}: it has to be an accuracy above 0 and at most 1, such as 0.7.")
    return metric


def statistic_of(
    layout: Layout,
    printed: Printed,
    value: float,
    std: float | None,
    best: bool = False,
    std_over_seeds: float | None = None,
) -> Statistic:
    """Return a number, printed or ours, as claims see it. std_over_seeds: its std over seeds."""
    key = dict(zip(KEYS, (layout.table, *printed.key), strict=True))
    return Statistic(paper=layout.paper, **key, value=value, std=std, best=best, std_over_seeds=std_over_seeds)


def printed_statistics(paper: str) -> list[Statistic]:
    """Return all that a paper's tables print, with what FedFomo prints in the heads of columns: their EMD."""
    cells = []
    for layout in of_paper(paper):
        for printed in layout.printed:
            if printed.value is not None:
                cells.append(
                    statistic_of(layout, printed, printed.value, printed.std, printed.best, printed.std_over_seeds)
                )
        cells += heads(layout)
    return cells


def heads(layout: Layout) -> list[Statistic]:
    """Return the EMDs that FedFomo prints in the heads of columns."""
    found = []
    for column in layout.columns:
        emd = re.fullmatch(r"\d+ \(([\d.]+)\)", column.header)
        if emd:
            where = (layout.table, column.dataset, column.model, column.setting)
            found.append(Statistic(layout.paper, *where, "emd", "_head", float(emd[1]), None))
    return found
