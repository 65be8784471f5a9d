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
    for reading, of in readings.items():
        for made in of.made.values():
            line, value = made.line, made.value
            writer.writerow([
                of.layout.paper, of.layout.table, line.row, line.method, line.label,
                line.dataset, line.model, line.setting, line.metric,
                _number(value.mean) if made.there else "", _number(value.std), line.unit,
                _word(made.place == 1) if made.there else "", _over(made), reading, made.trials.algorithm,
                line.text, line.std_text, _number(made.difference), _word(made.agrees),
                len(made.trials.finished), len(made.trials.seeds), _word(made.trials.partial),
            ])  # fmt: skip
    return file.getvalue()


def _word(value: bool | None) -> str:
    return "" if value is None else str(value).lower()


def _over(made: Cell) -> str:
    if made.value.std is None:
        return ""
    return f"seeds{made.value.n}" if made.metric.over == "seeds" else made.metric.over


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}" if abs(value) < 1e5 else str(value)


def as_latex(of: Comparison) -> str:
    """Return a tabular in the style of booktabs (\\usepackage{booktabs}): the best bold, the second underlined."""
    columns = of.layout.columns
    along = of.layout.compare.removesuffix("s")
    about = (
        f"{of.layout.name}, reading {of.store.reading}, scale {of.store.scale}; "
        "a superscript: how many of the seeds are there; a dagger: the winner is the best of an incomplete search"
    )
    caption = f"{_deviation(of)} Bold: the best of the {along}; underlined: the second, whatever the noise."
    needs = r"Needs \usepackage{booktabs}."
    rows = [
        (label, [_latex(of.made.get((row, column))) for column in range(len(columns))])
        for row, label in sorted(of.layout.rows.items())
    ]
    groups, heads = [column.group for column in columns], ["", *(column.header for column in columns)]
    return tabular([about, caption, needs], groups, heads, rows)


def _deviation(of: Comparison) -> str:
    """Return what stands after a plus-minus sign, for the caption."""
    over = {made.metric.over for made in of.made.values() if made.there and made.value.std is not None}
    kinds = {"seeds": "over seeds (n - 1 in the denominator)", "clients": "over clients, averaged over seeds"}
    said = " or ".join(words for kind, words in kinds.items() if kind in over)
    return rf"$\pm$: the standard deviation {said}." if said else r"No $\pm$: no number has several seeds."


def _latex(made: Cell | None) -> str:
    if made is None or not made.there:
        return "--" if made is None or made.absent == "missing" else made.absent
    shown = formats.value(made).replace(formats.MINUS, "-").replace("∞", r"\infty").replace("±", r"\pm")
    bold = rf"\mathbf{{{shown}}}" if made.place == 1 else rf"\underline{{{shown}}}" if made.place == 2 else shown
    # One superscript: LaTeX refuses two in a row
    marks = r"\dagger" * made.trials.partial
    marks += "" if made.complete else f"{made.value.n}/{len(made.trials.seeds)}"
    return f"${bold}^{{{marks}}}$" if marks else f"${bold}$"
