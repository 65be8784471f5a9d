"""A reproduced table as CSV and LaTeX, and the index of all reports in a folder."""

import csv
import io
import json
from itertools import groupby
from pathlib import Path
from typing import Any

from pflsweep.report import template
from pflsweep.report.paper import formats, layout
from pflsweep.report.paper.agreement import NEAR
from pflsweep.report.paper.comparison import Cell, Comparison
from pflsweep.report.paper.reproduction import Reproduction, Verdict
from pflsweep.util import files

PRINTED = ["paper", "table", "row_order", "method", "method_label", "dataset", "model", "setting", "metric"]
NUMBERS = ["value", "std", "unit", "best", "std_over"]
OURS = ["reading", "printed", "printed_std", "difference", "agrees", "seeds", "seeds_asked", "partial_search"]
STATE = "report.json"
SPECIAL = {**{letter: rf"\{letter}" for letter in "&%#_${}"}, "~": r"\textasciitilde{}"}


def as_csv(readings: dict[str, Comparison]) -> str:
    """The columns of the printed files, with the reading, print and more in further ones; a line a cell and reading. A
    missing cell has an empty value.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*PRINTED, *NUMBERS, *OURS])
    for reading, of in readings.items():
        for made in of.made.values():
            line, value = made.line, made.value
            writer.writerow([
                of.layout.paper, of.layout.table, line.row, line.method, line.label,
                line.dataset, line.model, line.setting, line.metric,
                _number(value.mean) if made.there else "", _number(value.std), line.unit,
                _word(made.place == 1) if made.there else "", _over(made), reading,
                line.text, line.std_text, _number(made.difference), _word(made.agrees),
                len(made.answer.trials), len(made.answer.seeds), _word(made.answer.partial),
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
    """A tabular in the style of booktabs (\\usepackage{booktabs}): the best bold, the second underlined."""
    columns = of.layout.columns
    about = (
        f"% {of.layout.name}, reading {of.store.reading}, scale {of.store.scale}; "
        "a superscript: how many of the seeds are there"
    )
    lines = [about, rf"\begin{{tabular}}{{l{'r' * len(columns)}}}", r"\toprule"]
    if any(column.group for column in columns):
        lines += _groups([column.group for column in columns])
    lines += [" & ".join(["", *(escaped(column.header) for column in columns)]) + r" \\", r"\midrule"]
    for row, label in sorted(of.layout.rows.items()):
        cells = [_latex(of.made.get((row, column))) for column in range(len(columns))]
        lines.append(" & ".join([escaped(label), *cells]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _groups(heads: list[str]) -> list[str]:
    """The headers above the columns, and a rule under each."""
    cells, rules, at = [""], [], 2
    for head, group in groupby(heads):
        width = len(list(group))
        cells.append(rf"\multicolumn{{{width}}}{{c}}{{{escaped(head)}}}")
        rules += [rf"\cmidrule(lr){{{at}-{at + width - 1}}}"] if head else []
        at += width
    return [" & ".join(cells) + r" \\", " ".join(rules)]


def _latex(made: Cell | None) -> str:
    if made is None or not made.there:
        return "--" if made is None or made.absent == "missing" else made.absent
    shown = formats.value(made).replace(formats.MINUS, "-").replace("∞", r"\infty").replace("±", r"\pm")
    bold = rf"\mathbf{{{shown}}}" if made.place == 1 else rf"\underline{{{shown}}}" if made.place == 2 else shown
    bold += r"^\dagger" * made.answer.partial
    return f"${bold}$" if made.complete else f"${bold}^{{{made.value.n}/{len(made.answer.seeds)}}}$"


def escaped(text: str) -> str:
    """Text that LaTeX prints as it is."""
    return "".join(SPECIAL.get(letter, letter) for letter in text)


def state(of: Reproduction) -> dict[str, Any]:
    """What the index says of a report, and which trials it is made of."""
    return {
        "title": of.layout.title,
        "scale": of.scale,
        "readings": {reading: _standing(each, of.verdicts[reading]) for reading, each in of.readings.items()},
        "trials": sorted(trial.identity for trial in of.trials),
    }


def _standing(of: Comparison, verdict: Verdict) -> dict[str, Any]:
    return {
        "complete": of.complete,
        "cells": of.fillable,
        "agree": verdict.agree,
        "compared": verdict.compared,
        "difference": formats.points(verdict.difference),
        "tau": formats.number(verdict.tau, 2),
        "failed": sum(len(answer.failed) for answer in of.asked),
        "claims": verdict.claims,
    }


def trials_of(folder: Path) -> list[str]:
    """The trials that a report in this folder was made of; none where there is none."""
    return list(_state(folder).get("trials", []))


def _state(folder: Path) -> dict[str, Any]:
    file = folder / STATE
    return json.loads(file.read_text()) if file.exists() else {}


def write_index(out: Path, errors: dict[str, str]) -> Path:
    """index.md, from the states that reports have left in their folders; those of an older version are to make anew."""
    states = {name: _state(out / name) for name in layout.names() if name not in errors}
    made = {name: state for name, state in states.items() if "readings" in state}
    unmade = [name for name in states if name not in made]
    path = out / "index.md"
    text = template.render("index.md", near=NEAR, made=list(made.items()), errors=errors, unmade=unmade)
    files.write_text(path, text)
    return path
