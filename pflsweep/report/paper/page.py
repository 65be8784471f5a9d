"""The page of a reproduced table: what its template, paper.md, shows. It begins with the verdict."""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from pflsweep.config import reading
from pflsweep.report import tables, template
from pflsweep.report.markdown import code, inline
from pflsweep.report.paper import (
    deviations,
    layout,
    missing,
    origin,
    page_effects,
    page_table,
    published,
    verdict,
    weights,
    winners,
)
from pflsweep.report.paper.agreement import NEAR
from pflsweep.report.paper.claims import Check, Ruling
from pflsweep.report.paper.comparison import Cell, Comparison, title
from pflsweep.report.paper.figures import SavedFigures
from pflsweep.report.paper.formats import number
from pflsweep.report.paper.links import Links
from pflsweep.report.paper.metrics import Value
from pflsweep.report.paper.reproduction import VERDICTS, Reproduction, Ruled

BASIS = {"stated": "", "reading": "our interpretation", "extended": "extended"}
CellTexts = list[str]  # of a row


def text(reproduction: Reproduction, drawn: SavedFigures, links: Links, discussion: str = "") -> str:
    """Return the page as markdown that GitHub shows.

    drawn: its figures. links: where its runs can be browsed. discussion: what a person has made of it, in markdown.
    """
    cells = [cell for each in reproduction.readings.values() for cell in each.cells.values()]
    printed = {line.std_over for line in reproduction.layout.printed if line.std_over}
    rulings = [ruling for ruled in reproduction.ruled.values() for _, ruling in ruled]
    why, discussion = verdict.split_why(discussion)
    return template.render(
        "paper.md",
        layout=reproduction.layout,
        along=reproduction.layout.compare.removesuffix("s"),
        verdict=verdict.lines(reproduction, why),
        emds=[(name, emds) for name, table in reproduction.readings.items() if (emds := _emds(reproduction, table))],
        near=NEAR,
        **page_table.table(reproduction),
        over={cell.metric.over for cell in cells} - {"nothing"},
        printed_over=sorted(re.sub(r"(\d+)", r" (\1)", over).replace("_", " ") for over in printed),
        absent={cell.why_empty for cell in cells if not cell.has_number},
        own_rows=reproduction.first.own_rows,
        one_partition=[name for name, table in reproduction.readings.items() if _has_one_partition(table)],
        infinite=any(cell.has_number and math.isinf(cell.value.mean) for cell in cells),
        needs=any(page_table.needs(cell) for cell in cells),
        readings=[_sections(reproduction, name, links) for name in reproduction.readings],
        discussion=discussion,
        figures=drawn,
        known=reading.read(reproduction.layout.paper),
        effects=[page_effects.shown(effect) for effect in reproduction.effects],
        shifts=page_effects.shifts(reproduction),
        changes_by=[code(command) for effect in reproduction.effects for command in effect.commands],
        listed=page_effects.LISTED,
        order=_side_by_side(_order(each) for each in reproduction.readings.values()),
        claims=_side_by_side(_claims(ruled) for ruled in reproduction.ruled.values()),
        clear=any(_clear(ruling.checks) for ruling in rulings),
        so_far=any(ruling.settings for ruling in rulings),
        without=any(ruling.without for ruling in rulings),
        notes=[published.notes()[note] for note in reproduction.layout.notes],
    )


def _has_one_partition(table: Comparison) -> bool:
    """Return whether the partition of a table's trials does not follow their seeds."""
    return bool(table.trials) and all(trial.config.get("partition.seed") is not None for trial in table.trials)


def _emds(reproduction: Reproduction, table: Comparison) -> list[str]:
    """Return the EMD of our partitions, and the printed one, of each column whose head prints it."""
    printed = {head.setting: head.value for head in layout.heads(reproduction.layout)}
    return [f"{head.setting} {head.value:.2f} ({printed[head.setting]:.2f})" for head in table.heads()]


def _sections(reproduction: Reproduction, name: str, links: Links) -> dict[str, Any]:
    """Return what the page says of one reading below its table; lists of lines are markdown."""
    table = reproduction.readings[name]
    return {
        "name": name,
        "slowest": list(_slowest(table)),
        "missing": missing.lines(table),
        "correlations": list(_correlations(table)),
        "by_samples": _by_samples(table),
        "paired": _paired(table),
        "winners": winners.lines(table),
        "fixed": deviations.fixed(table),
        "deviations": deviations.lines(table),
        "origin": origin.lines(table, links),
    }


def _side_by_side(by_reading: Iterable[dict[Any, CellTexts]]) -> list[tuple[Any, CellTexts]]:
    """Return the rows of several tables, by their key, beside each other; a row that one lacks is left empty there."""
    found = list(by_reading)
    keys = dict.fromkeys(key for rows in found for key in rows)
    return [(key, [cell for rows in found for cell in rows.get(key, ["", ""])]) for key in keys]


def _slowest(comparison: Comparison) -> Iterator[str]:
    """Yield over which row of a column the others' numbers are, where that is its slowest row. In ours it is often
    another row than in the paper.
    """
    for at, column in enumerate(comparison.layout.columns):
        places = [place for place in sorted(comparison.cells) if place[1] == at and place[0] not in comparison.own_rows]
        there = [
            cell
            for cell in map(comparison.cells.__getitem__, places)
            if cell.has_number and cell.metric.relative == "slowest"
        ]
        arrived = [(cell.printed.label, cell.value.mean) for cell in there if cell.value.mean]
        printed = [(cell.printed.label, cell.printed.value) for cell in there if cell.printed.value is not None]
        if arrived:
            ours, theirs = _lowest(arrived), _lowest(printed)
            paper = f"; the paper's over {theirs}" if theirs else ""
            yield f"{title(column)}: ours over {ours}, the slowest that gets there{paper}."


def _lowest(numbers: list[tuple[str, float]]) -> str:
    """Return the labels of the least of them."""
    return ", ".join(label for label, number in numbers if number == min(each for _, each in numbers))


def _order(comparison: Comparison) -> dict[str, CellTexts]:
    return {each.line: [number(each.tau, 2), f"{each.n} of {each.of}"] for each in comparison.taus()}


def _claims(ruled: Ruled) -> dict[tuple[str, str], CellTexts]:
    """Return each claim with whether the published numbers bear it out: our verdict, and what it rests on."""
    found = {}
    for claim, ruling in ruled:
        checks = ruling.checks
        counted = f"{_count(checks)} comparisons{_where(claim, ruling)}" if checks else ""
        broken = "" if ruling.holds is True else _broken(checks)
        holds = f"{VERDICTS[ruling.so_far]} so far" if ruling.settings else VERDICTS[ruling.holds]
        said = ": ".join(filter(None, [BASIS[claim["basis"]], claim.get("note", "")]))
        quote = f"{claim['id']}: {claim['quote']}" + (f" ({said})" if said else "")
        in_print = VERDICTS[claim["holds_in_print"]] if not claim["needs_rerun"] else "not published"
        why = "; ".join(filter(None, [f"{counted}{_clear(checks)}{broken}", _without(ruling)]))
        found[quote, in_print] = [holds, why]
    return found


def _where(claim: dict[str, Any], ruling: Ruling) -> str:
    """Return where a claim is judged while some of its cells are missing, and what the published numbers say there."""
    if not ruling.settings:
        return " so far" if ruling.holds is None else ""
    printed = "" if claim["needs_rerun"] else f" (published: {_count(ruling.printed)})"
    return f" in {', '.join(ruling.settings)}{printed}"


def _count(checks: list[Check]) -> str:
    return f"{sum(check.holds for check in checks)} of {len(checks)}"


def _clear(checks: list[Check]) -> str:
    """Return how many comparisons hold by more than the noise of both sides, as text."""
    known = [check.clear for check in checks if check.clear is not None]
    total = f" of {len(known)}" if len(known) < len(checks) else ""
    return f", {sum(known)}{total} clear of std" if known else ""


def _broken(checks: list[Check]) -> str:
    fails = [check.said for check in checks if not check.holds]
    more = f"; and {len(fails) - 3} more" if len(fails) > 3 else ""
    return f"; fails: {'; '.join(fails[:3])}{more}" if fails else ""


def _without(ruling: Ruling) -> str:
    """Return what a claim was judged without: methods, with their cells where it is not all of them."""
    found = ruling.without.items()
    methods = ", ".join(f"{method} ({', '.join(places)})" if places else method for method, places in found)
    return f"without {methods}" if methods else ""


def _correlations(comparison: Comparison) -> Iterator[str]:
    """Yield how sure each trial's correlation is."""
    for cell in comparison.cells.values():
        if cell.metric.quantity in weights.AXES:
            axis = weights.AXES[cell.metric.quantity]
            found = {seed: weights.pearson(trial, axis) for seed, trial in cell.trials.finished.items()}
            seeds = ", ".join(f"seed {seed} r = {number(r, 2)}, p {_p(p)}" for seed, (r, p) in found.items())
            if seeds:
                where = f"{cell.printed.metric}, {cell.trials.method} {cell.trials.setting}"
                yield f"{inline(where)}: {seeds}"


def _by_samples(comparison: Comparison) -> dict[str, Any]:
    """Return the columns that change where each test sample counts the same; {} if none does."""
    found: dict[int, dict[int, tuple[Cell, Value]]] = defaultdict(dict)  # by column and row
    for column, cell, by_samples in comparison.by_samples():
        found[column][cell.printed.row] = cell, by_samples
    shown = {column: rows for column, rows in found.items() if any(_changes(*row) for row in rows.values())}
    if not shown:
        return {}
    rows = sorted({row for rows in shown.values() for row in rows})
    return {
        "columns": [title(comparison.layout.columns[column]) for column in shown],
        "rows": [(comparison.layout.rows[row], [_by_sample(rows, row) for rows in shown.values()]) for row in rows],
    }


def _changes(cell: Cell, by_samples: Value) -> bool:
    return number(cell.value.mean, cell.metric.decimals) != number(by_samples.mean, cell.metric.decimals)


def _by_sample(rows: dict[int, tuple[Cell, Value]], row: int) -> dict[str, Any] | None:
    if row not in rows:
        return None
    cell, by_samples = rows[row]
    return {
        "ours": [page_table.our_number(cell._replace(value=by_samples, rank=0, std_over_seeds=by_samples.std))],
        "printed": "",
    }


def _paired(comparison: Comparison) -> dict[str, Any]:
    """Return the paired tests of the paper's method against each other one; {} if there are none."""
    by_row: dict[str, dict[int, str]] = defaultdict(dict)
    for pair in comparison.paired() if comparison.layout.own else ():
        gain = pair.gain
        span = " ".join(filter(None, [_points(gain.mean), tables.bounds(gain, _points), gain.kind]))
        shown = f"{span}, p {', '.join(map(_p, pair.p))}"
        by_row[comparison.layout.labels[pair.method]][pair.column] = shown
    if not by_row:
        return {}
    columns = sorted({column for row in by_row.values() for column in row})
    own = comparison.layout.labels.get(comparison.layout.own, comparison.layout.own)
    return {
        "heads": [f"{own} minus", *(title(comparison.layout.columns[at]) for at in columns)],
        "rows": [[row, *(cells.get(at, tables.NONE) for at in columns)] for row, cells in by_row.items()],
    }


def _points(difference: float) -> str:
    return number(100 * difference, 2, "+")


def _p(p: float) -> str:
    return "<0.001" if p < 0.001 else tables.NONE if math.isnan(p) else f"{p:.3f}"
