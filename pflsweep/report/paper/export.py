"""A reproduced table as CSV and LaTeX."""

import csv
import io

from pflsweep.report.latex import tabular
from pflsweep.report.paper import formats
from pflsweep.report.paper.comparison import Cell, Comparison

PRINTED = ["paper", "table", "row_order", "method", "method_label", "dataset", "model", "setting", "metric"]
NUMBERS = ["value", "std", "unit", "best", "std_over"]
OURS = ["reading", "algorithm", "printed", "printed_std", "difference", "agrees"]
BEHIND = ["seeds", "seeds_asked", "partial_search"]


def as_csv(readings: dict[str, Comparison]) -> str:
    """Return a table in the columns of the printed files, with the reading, the trials' option of `algorithm=`,
    print and more in further ones; one line per cell and reading. A missing cell has an empty value.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*PRINTED, *NUMBERS, *OURS, *BEHIND])
    for reading, comparison in readings.items():
        for cell in comparison.cells.values():
            printed, value = cell.printed, cell.value
            writer.writerow([
                comparison.layout.paper, comparison.layout.table, printed.row, printed.method, printed.label,
                printed.dataset, printed.model, printed.setting, printed.metric,
                _number(value.mean) if cell.has_number else "", _number(value.std), printed.unit,
                _word(cell.rank == 1) if cell.has_number else "", _over(cell), reading, cell.trials.algorithm,
                printed.text, printed.std_text, _number(cell.difference), _word(cell.agrees),
                len(cell.trials.finished), len(cell.trials.seeds), _word(cell.trials.partial),
            ])  # fmt: skip
    return file.getvalue()


def _word(value: bool | None) -> str:
    return "" if value is None else str(value).lower()


def _over(cell: Cell) -> str:
    if cell.value.std is None:
        return ""
    return f"seeds{cell.value.n}" if cell.metric.over == "seeds" else cell.metric.over


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}" if abs(value) < 1e5 else str(value)


def as_latex(comparison: Comparison) -> str:
    """Return a tabular in the style of booktabs (\\usepackage{booktabs}): the best bold, the second underlined."""
    columns = comparison.layout.columns
    along = comparison.layout.compare.removesuffix("s")
    about = (
        f"{comparison.layout.name}, reading {comparison.store.reading}, scale {comparison.store.scale}; "
        "a superscript: how many of the seeds are there; a dagger: the winner is the best of an incomplete search"
    )
    caption = f"{_deviation(comparison)} Bold: the best of the {along}; underlined: the second, whatever the noise."
    needs = r"Needs \usepackage{booktabs}."
    rows = [
        (label, [_latex(comparison.cells.get((row, column))) for column in range(len(columns))])
        for row, label in sorted(comparison.layout.rows.items())
    ]
    groups, heads = [column.group for column in columns], ["", *(column.header for column in columns)]
    return tabular([about, caption, needs], groups, heads, rows)


def _deviation(comparison: Comparison) -> str:
    """Return what stands after a plus-minus sign, for the caption."""
    over = {cell.metric.over for cell in comparison.cells.values() if cell.has_number and cell.value.std is not None}
    kinds = {"seeds": "over seeds (n - 1 in the denominator)", "clients": "over clients, averaged over seeds"}
    said = " or ".join(words for kind, words in kinds.items() if kind in over)
    return rf"$\pm$: the standard deviation {said}." if said else r"No $\pm$: no number has several seeds."


def _latex(cell: Cell | None) -> str:
    if cell is None or not cell.has_number:
        return "--" if cell is None or cell.why_empty == "missing" else cell.why_empty
    shown = formats.value(cell).replace(formats.MINUS, "-").replace("∞", r"\infty").replace("±", r"\pm")
    bold = rf"\mathbf{{{shown}}}" if cell.rank == 1 else rf"\underline{{{shown}}}" if cell.rank == 2 else shown
    # One superscript: LaTeX refuses two in a row
    marks = r"\dagger" * cell.trials.partial
    marks += "" if cell.complete else f"{cell.value.n}/{len(cell.trials.seeds)}"
    return f"${bold}^{{{marks}}}$" if marks else f"${bold}$"
