"""A reproduced table as CSV and LaTeX, and the index of all reports in a folder."""

import csv
import io
import json
from itertools import groupby
from pathlib import Path
from typing import Any

from pflsweep.report import tables
from pflsweep.report.markdown import cell, inline
from pflsweep.report.paper import layout, page
from pflsweep.report.paper.comparison import Cell, Comparison
from pflsweep.util import files

PRINTED = ["paper", "table", "row_order", "method", "method_label", "dataset", "model", "setting", "metric"]
NUMBERS = ["value", "std", "unit", "best", "std_over"]
OURS = ["printed", "printed_std", "difference", "apart", "seeds", "seeds_asked", "partial_search"]
STATE = "report.json"
SPECIAL = {**{letter: rf"\{letter}" for letter in "&%#_${}"}, "~": r"\textasciitilde{}"}
HEAD = ["report", "reading", "scale", "cells complete", "apart from print", "failed trials", "mean tau"]
HEAD += ["claims: holds / in part / does not / open", "what"]

INDEX = """\
# The papers' tables, ours beside print

*Apart from print* are cells that differ from print by more than both stds together. *Mean tau* is Kendall's over the
columns that are filled: 1 where our order of methods is print's. *Claims* are the paper's, judged by our numbers;
*open* are those with cells that are missing.
"""


def as_csv(of: Comparison) -> str:
    """The columns of the printed files, with print in further ones; a missing cell has an empty value."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*PRINTED, *NUMBERS, *OURS])
    for made in of.made.values():
        line, value = made.line, made.value
        writer.writerow([
            of.layout.paper, of.layout.table, line.row, line.method, line.label,
            line.dataset, line.model, line.setting, line.metric,
            _number(value.mean) if made.there else "", _number(value.std), line.unit,
            str(made.place == 1).lower() if made.there else "", _over(made),
            line.text, line.std_text, _number(made.difference), str(made.apart).lower(),
            len(made.answer.trials), len(made.answer.seeds), str(made.answer.partial).lower(),
        ])  # fmt: skip
    return file.getvalue()


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
    shown = page.value(made).replace(page.MINUS, "-").replace("∞", r"\infty").replace("±", r"\pm")
    bold = rf"\mathbf{{{shown}}}" if made.place == 1 else rf"\underline{{{shown}}}" if made.place == 2 else shown
    bold += r"^\dagger" * made.answer.partial
    return f"${bold}$" if made.complete else f"${bold}^{{{made.value.n}/{len(made.answer.seeds)}}}$"


def escaped(text: str) -> str:
    """Text that LaTeX prints as it is."""
    return "".join(SPECIAL.get(letter, letter) for letter in text)


def state(of: Comparison, ruled: list[tuple[dict[str, Any], Any]]) -> dict[str, Any]:
    """What the index says of a report."""
    taus = [each.tau for each in of.taus() if each.n == each.of and each.tau == each.tau]
    verdicts = [page.VERDICTS[ruling.holds] for _, ruling in ruled]
    return {
        "title": of.layout.title,
        "scale": of.store.scale,
        "reading": of.store.reading,
        "cells": of.fillable,
        "complete": of.complete,
        "apart": sum(made.apart for made in of.made.values()),
        "failed": sum(len(answer.failed) for answer in of.asked),
        "tau": sum(taus) / len(taus) if taus else None,
        "claims": {verdict: verdicts.count(verdict) for verdict in page.VERDICTS.values()},
        "trials": sorted(trial.identity for trial in of.trials),
    }


def trials_of(folder: Path) -> list[str]:
    """The trials that a report in this folder was made of; none where there is none."""
    file = folder / STATE
    return list(json.loads(file.read_text()).get("trials", [])) if file.exists() else []


def write_index(out: Path, errors: dict[str, str]) -> Path:
    """index.md, from the states that reports have left in their folders."""
    lines, unmade = [f"| {' | '.join(HEAD)} |", "|:--|:--|:--|--:|--:|--:|--:|--:|:--|"], []
    for name in layout.names():
        file = out / name / STATE
        if name in errors:
            lines.append(f"| {name} | | | | | | | | **error**: {inline(errors[name])} |")
        elif file.exists():
            lines.append(_line(name, json.loads(file.read_text())))
        else:
            unmade.append(name)
    rest = f"\nWithout a page so far (`pflsweep report NAME` makes one): {', '.join(unmade)}.\n" if unmade else ""
    path = out / "index.md"
    files.write_text(path, "\n".join([INDEX, *lines]) + "\n" + rest)
    return path


def _line(name: str, of: dict[str, Any]) -> str:
    tau = tables.NONE if of["tau"] is None else f"{of['tau']:.2f}"
    cells = f"{of['complete']} of {of['cells']}"
    claims = " / ".join(str(n) for n in of["claims"].values())
    title = cell(of["title"])
    return (
        f"| [{name}]({name}/README.md) | {inline(of['reading'])} | {inline(of['scale'])} | "
        f"{cells} | {of['apart']} | {of['failed']} | {tau} | "
        f"{claims} | {title} |"
    )
