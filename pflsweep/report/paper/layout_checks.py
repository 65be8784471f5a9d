"""Check a layout: its values, and that its rows, columns and metrics are those of its tables and sweeps."""

import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pflsweep.report.paper import published
from pflsweep.report.paper.agreement import POINTS
from pflsweep.report.paper.published import Printed
from pflsweep.util.errors import UserError, nearest, require_one_of

if TYPE_CHECKING:
    from pflsweep.report.paper.layout import Layout


def matches_column(setting: str, like: str) -> bool:
    """Return whether a setting is a column's, in which `*` stands for any text and every other sign for itself."""
    return fnmatchcase(setting, re.sub(r"[\[?]", r"[\g<0>]", like))


def check_cells(layout: "Layout", cells: set[tuple[str, str]]) -> None:
    """Raise UserError if a layout names a row or a column that its sweeps do not have.

    cells: setting and method of all that they have. A printed row may be missing there: its cells stay empty.
    """
    where, sweeps = f"reports/layouts/{layout.name}.yaml", ", ".join(layout.sweeps)
    settings, methods = sorted({setting for setting, _ in cells}), sorted({method for _, method in cells})
    if not layout.in_print:
        require_allowed(f"own_table.rows, of rows of {sweeps},", list(layout.labels), methods, where)
        placed = [layout.setting_of(printed) for printed in layout.printed]
        require_allowed(f"own_table.columns, of settings of {sweeps},", placed, settings, where)
    require_allowed("settings", list(layout.settings.values()), settings, where)
    rows = list(dict.fromkeys([*layout.labels, *methods]))
    for key, named in (("own", [layout.own] if layout.own else []), ("views", layout.views), ("rounds", layout.rounds)):
        require_allowed(key, list(named), rows, where)
    for name, metric in layout.metrics.items():
        require_allowed(f"metrics.{name}.relative", [metric.relative], ["", "slowest", *rows], where)
        require_allowed(f"metrics.{name}.setting", [metric.setting], ["", *settings], where)
        if "baseline" in metric.options:
            require_allowed(f"metrics.{name}.baseline", [metric.options["baseline"]], rows, where)


def rows_without_sweep(layout: "Layout", cells: set[tuple[str, str]]) -> list[str]:
    """Return a warning for each printed row that no sweep trains. cells: as in check_cells."""
    methods = sorted({method for _, method in cells})
    return [
        f"{layout.name}: the published row '{method}' is no row of {', '.join(layout.sweeps)}, so that its cells stay "
        f"empty.{nearest(method, methods)}"
        for method in (layout.labels if layout.in_print else ())
        if method not in methods
    ]


def check_names(layout: "Layout", beside: list[str], file: Path) -> None:
    """Raise UserError if a layout names a view, a round, a metric or a note that there is not."""
    from pflsweep.report.paper.metrics import OPTION_VALUES

    for key, by_row, allowed in (("views", layout.views, "view"), ("rounds", layout.rounds, "round")):
        for row, value in by_row.items():
            require_one_of(f"{key}.{row}", value, OPTION_VALUES[allowed], file)
    require_allowed("beside", beside, list(dict.fromkeys(printed.metric for printed in layout.printed)), file)
    for note in layout.notes:
        if note not in (known := published.notes()):
            raise UserError(
                f"{file}: notes has {note!r}: notes.yaml has no such number. It has: {', '.join(map(str, known))}."
            )


def check_units(layout: "Layout", places: list[str]) -> None:
    """Raise UserError on a unit by which a number would be scaled or compared wrongly. places: of the cells."""
    from pflsweep.report.paper.metrics import SHARES

    for printed, place in zip(layout.printed, places, strict=True):
        metric = layout.metrics.get(printed.metric)
        share = metric is not None and metric.quantity in SHARES
        # Another quantity's unit is a word of the paper's own, unless it looks like one of these
        like = printed.unit.lower().startswith(("%", "pct", "per", "frac"))
        if printed.unit not in POINTS and (share or like or not printed.unit):
            raise UserError(
                f"{place}: the unit is '{printed.unit}': an accuracy is in {' or '.join(POINTS)} (72.5 or 0.725), "
                "another number in a word such as min or rounds."
            )


def check_places(layout: "Layout", stem: str) -> None:
    """Raise UserError unless each printed number has a column, and a cell of its own, and each column has numbers."""
    seen: dict[Any, str] = {}
    for printed, place in zip(layout.printed, published.places(stem), strict=True):
        if printed.metric not in layout.metrics:
            continue  # it stands beside the table
        column = layout.column_of(printed)
        if column is None:
            raise UserError(f"{place}: columns.csv has no column for it: {_why_no_column(layout, printed)}")
        if printed.label != (label := layout.printed[[each.row for each in layout.printed].index(printed.row)].label):
            raise UserError(
                f"{place}: row {printed.row} is '{printed.label}' here and '{label}' before. One is mistaken."
            )
        for key in (printed.key, (printed.row, column)):
            if key in seen:
                raise UserError(
                    f"{place}: row {printed.row} ({printed.method}) has its number of "
                    f"{printed.dataset}/{printed.setting}, {printed.metric}, already from {seen[key]}. Leave one out."
                )
            seen[key] = place
    for column in layout.columns:
        if (count := layout.columns.count(column)) > 1 or not any(
            layout.column_of(printed) == column for printed in layout.printed
        ):
            wrong = "twice" if count > 1 else f"without a number in {stem}.csv"
            raise UserError(
                f"columns.csv has the column '{column.header}' of {stem} {wrong}: dataset '{column.dataset}', model "
                f"'{column.model}', setting '{column.setting}', metric '{column.metric}'. Leave it out, or mend it."
            )


def _why_no_column(layout: "Layout", printed: Printed) -> str:
    """Return what no column has that a printed number has, with the nearest that there is."""
    for key in ("dataset", "model", "setting"):
        own, known = getattr(printed, key), list(dict.fromkeys(getattr(column, key) for column in layout.columns))
        if not any(matches_column(own, like) for like in known):
            return f"no {key} is '{own}'.{nearest(own, known)} There are: {', '.join(map(repr, known))}."
    return (
        f"none is of dataset '{printed.dataset}', model '{printed.model}', setting '{printed.setting}', metric "
        f"'{printed.metric}' and ala {int(printed.variant)} together."
    )


def require_allowed(key: str, words: list[str], allowed: list[str], where: Path | str) -> None:
    """Raise UserError if one of a layout's words is none that is allowed. where: the layout."""
    for word in words:
        if word not in allowed:
            raise UserError(
                f"{where}: {key} has '{word}'.{nearest(str(word), allowed)} It may have: {', '.join(allowed)}."
            )
