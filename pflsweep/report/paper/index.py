"""The index of all reports in a folder, made from what each has left in its report.json: a picture and a table."""

import posixpath
import re
from pathlib import Path
from typing import Any

from pflsweep.report import style, template
from pflsweep.report.paper import formats, layout, page_effects, verdict
from pflsweep.report.paper.agreement import NEAR
from pflsweep.report.paper.comparison import Comparison
from pflsweep.report.paper.effects import Effect
from pflsweep.report.paper.reproduction import Reproduction, Verdict
from pflsweep.util import files
from pflsweep.util.errors import UserError

STATE = "report.json"
DISCUSSION = "DISCUSSION.md"  # written by a person, beside the page that includes it
PICTURE = "index"  # the stem of its files
BAR = 0.42  # inches of a table and reading
PARTS = {  # of the cells of a table, and their colours
    "agrees with the published number": style.PALETTE[0],
    "does not agree": style.PALETTE[1],
    "not published": "#8c8c8c",
    "no number yet": "#ececec",
}


# A link of markdown that names neither a server nor a whole path
RELATIVE = re.compile(r"(?<!\\)\]\((?![A-Za-z][A-Za-z0-9+.-]*:|/)([^)#\s]*)")


def discussion(folder: Path) -> str:
    """Return what a person has written for the page in a folder; "" if nobody has."""
    file = folder / DISCUSSION
    return file.read_text("utf-8") if file.exists() else ""


def state(reproduction: Reproduction, why: str) -> dict[str, Any]:
    """Return what the index says of a report, and which trials it is made of. why: a person's words, which may have
    links from the report's folder.
    """
    return {
        "title": reproduction.layout.title,
        "scale": reproduction.scale,
        "readings": {
            reading: _agreement(each, reproduction.verdicts[reading]) for reading, each in reproduction.readings.items()
        },
        "why": from_index(verdict.explanation(reproduction, why), reproduction.layout.name)
        if reproduction.layout.in_print
        else "",
        "effects": [_effect(effect) for effect in reproduction.effects if effect.shifts],
        "trials": sorted(trial.identity for trial in reproduction.trials),
    }


def from_index(markdown: str, name: str) -> str:
    """Return markdown of a report's folder with its relative links as they lead there from the index."""

    def moved(link: re.Match[str]) -> str:
        return f"]({posixpath.normpath(posixpath.join(name, link[1] or 'README.md'))}"

    return RELATIVE.sub(moved, markdown)


def _agreement(comparison: Comparison, verdict: Verdict) -> dict[str, Any]:
    """Return how far a table is under one reading."""
    return {
        "complete": comparison.complete,
        "cells": comparison.fillable,
        "agree": verdict.agree,
        "compared": verdict.compared,
        "unprinted": sum(cell.complete and cell.agrees is None for cell in comparison.paper_cells),
        "difference": formats.points(verdict.difference),
        "tau": formats.number(verdict.tau, 2),
        "failed": sum(len(trials.failed) for trials in comparison.trials_by_cell),
        "claims": verdict.claims,
        "so_far": verdict.so_far,
    }


def _effect(effect: Effect) -> dict[str, str]:
    """Return what the index says of one change of the authors' code."""
    change = effect.change
    return page_effects.shown(effect) | {"change": change.name, "paper": change.paper, "code": change.code}


def trials_of(folder: Path) -> list[str]:
    """Return the trials that a report in this folder was made of; none if there is no report."""
    return list(_state(folder).get("trials", []))


def _state(folder: Path) -> dict[str, Any]:
    file = folder / STATE
    try:
        return files.read_json(file) if file.exists() else {}
    except ValueError as error:
        raise UserError(
            f"{file} is damaged ({error}). Restore it, or delete it and make the report again with `pflsweep report`."
        ) from error


def states(out: Path) -> dict[str, dict[str, Any]]:
    """Return the states of the reports in a folder, by name. Those of an older version have no readings: they are left
    out, and have to be made anew.
    """
    found = {name: _state(out / name) for name in layout.names()}
    return {name: each for name, each in found.items() if "readings" in each}


def write(out: Path, errors: dict[str, str]) -> Path:
    """Write index.md and its picture, and return the page's path. errors: why reports could not be made, by name."""
    made = {name: each for name, each in states(out).items() if name not in errors}
    if made:
        style.save(picture(made), out / PICTURE)
    unmade = [name for name in layout.names() if name not in made and name not in errors]
    path, shown = out / "index.md", PICTURE + ".png" if made else ""
    text = template.render(
        "index.md",
        near=NEAR,
        words=verdict.WORDS,
        made=made,
        picture=shown,
        errors=errors,
        unmade=unmade,
        discussion=discussion(out).strip(),
    )
    files.write_text(path, text)
    return path


def picture(made: dict[str, dict[str, Any]]) -> Any:
    """Draw a bar for each table and reading: the shares of cells that agree, that do not, and that have no number."""
    rows = [(name, reading, each) for name, state in made.items() for reading, each in state["readings"].items()]
    with style.figure(7.2, 1.3 + BAR * len(rows)) as (drawn, axes):
        for place, (_, _, each) in enumerate(rows):
            left = 0.0
            for (part, colour), share in zip(PARTS.items(), shares(each), strict=True):
                axes.barh(place, share, left=left, height=0.7, color=colour, label=part if not place else None)
                left += share
            said = f"{each['agree']} of {each['compared']} agree" if each["compared"] else "nothing to compare"
            axes.annotate(
                f"{said}; {each['complete']} of {each['cells']} complete", (1.01, place), fontsize=8, va="center",
                xycoords=("axes fraction", "data"), annotation_clip=False,
            )  # fmt: skip
        names = [f"{name}\nreading {reading}, scale {made[name]['scale']}" for name, reading, _ in rows]
        axes.set_yticks(range(len(rows)), names, fontsize=8.5)
        axes.set(xlabel="cells of the table (%)", xlim=(0, 100), ylim=(len(rows) - 0.4, -0.6))
        axes.grid(False, axis="y")
        handles, labels = axes.get_legend_handles_labels()
        drawn.legend(handles, labels, loc="outside upper center", ncols=len(PARTS), fontsize=8.5, handlelength=1.2)
    return drawn


def shares(each: dict[str, Any]) -> list[float]:
    """Return the share of a table's cells for each of PARTS, in percent. A cell that has some of its seeds can be
    compared and is not complete.
    """
    agree, compared, cells = each["agree"], each["compared"], max(each["cells"], 1)
    # Pages made before 2026-11-27 do not count these cells
    unprinted = each.get("unprinted", max(each["complete"] - compared, 0))
    numbers = (agree, compared - agree, unprinted, each["cells"] - compared - unprinted)
    return [100 * number / cells for number in numbers]
