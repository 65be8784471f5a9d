"""The page of a reproduced table: what its template, paper.md, shows. It begins with the verdict."""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean
from typing import Any

from pflsweep.config import reading
from pflsweep.config.keys import as_override
from pflsweep.records.provenance import code_versions
from pflsweep.report import tables, template
from pflsweep.report.markdown import code, inline
from pflsweep.report.paper import deviations, layout, missing, published, verdict, weights
from pflsweep.report.paper.agreement import NEAR
from pflsweep.report.paper.claims import Check, Ruling
from pflsweep.report.paper.comparison import Cell, Comparison, title
from pflsweep.report.paper.effects import Effect, Shift
from pflsweep.report.paper.figures import SavedFigures
from pflsweep.report.paper.formats import in_order, number, points, value
from pflsweep.report.paper.links import Links
from pflsweep.report.paper.metrics import Value
from pflsweep.report.paper.published import Column
from pflsweep.report.paper.reproduction import VERDICTS, Reproduction, Ruled
from pflsweep.report.paper.store import CellTrials, FinishedTrial
from pflsweep.report.stats import rounded
from pflsweep.util.errors import without_password

LISTED = 8  # gaps of a change
BASIS = {"stated": "", "reading": "our interpretation", "extended": "extended"}
CellTexts = list[str]  # of a row


def text(reproduction: Reproduction, drawn: SavedFigures, links: Links, discussion: str = "") -> str:
    """Return the page as markdown that GitHub shows.

    drawn: its figures. links: where its runs can be browsed. discussion: what a person has made of it, in markdown.
    """
    cells = [cell for each in reproduction.readings.values() for cell in each.cells.values()]
    printed = {line.std_over for line in reproduction.layout.printed if line.std_over}
    why, discussion = verdict.split_why(discussion)
    return template.render(
        "paper.md",
        layout=reproduction.layout,
        along=reproduction.layout.compare.removesuffix("s"),
        verdict=verdict.lines(reproduction, why),
        emds=[(name, emds) for name, table in reproduction.readings.items() if (emds := _emds(reproduction, table))],
        near=NEAR,
        **_table(reproduction),
        over={cell.metric.over for cell in cells} - {"nothing"},
        printed_over=sorted(re.sub(r"(\d+)", r" (\1)", over).replace("_", " ") for over in printed),
        absent={cell.why_empty for cell in cells if not cell.has_number},
        own_rows=reproduction.first.own_rows,
        one_partition=[name for name, table in reproduction.readings.items() if _has_one_partition(table)],
        needs=any(_needs(cell) for cell in cells),
        readings=[_sections(reproduction, name, links) for name in reproduction.readings],
        discussion=discussion,
        figures=drawn,
        known=reading.read(reproduction.layout.paper),
        effects=[shown_effect(effect) for effect in reproduction.effects],
        shifts=[_shift(reproduction, effect, shift) for effect in reproduction.effects for shift in _shifts(effect)],
        changes_by=[code(command) for effect in reproduction.effects for command in effect.commands],
        listed=LISTED,
        order=_side_by_side(_order(each) for each in reproduction.readings.values()),
        claims=_side_by_side(_claims(ruled) for ruled in reproduction.ruled.values()),
        clear=any(_clear(ruling.checks) for ruled in reproduction.ruled.values() for _, ruling in ruled),
        without=any(ruling.without for ruled in reproduction.ruled.values() for _, ruling in ruled),
        notes=[published.notes()[note] for note in reproduction.layout.notes],
    )


def _has_one_partition(table: Comparison) -> bool:
    """Return whether the partition of a table's trials does not follow their seeds."""
    return bool(table.trials) and all(trial.config.get("partition.seed") is not None for trial in table.trials)


def _emds(reproduction: Reproduction, table: Comparison) -> list[str]:
    """Return the EMD of our partitions, and the printed one, of each column whose head prints it."""
    printed = {head.setting: head.value for head in layout.heads(reproduction.layout)}
    return [f"{head.setting} {head.value:.2f} ({printed[head.setting]:.2f})" for head in table.heads()]


def _table(reproduction: Reproduction) -> dict[str, Any]:
    """Return the columns and rows that say something under some reading, the best rows first, and apart from them the
    rows and columns that do not. Without any such column the rows that say nothing have all columns.
    """
    every = range(len(reproduction.layout.columns))
    there = {
        place for each in reproduction.readings.values() for place, cell in each.cells.items() if _has_content(cell)
    }
    at_all, rows = {at for _, at in there}, {row for row, _ in there}
    shown = [at for at in every if at in at_all or not there]
    labels = reproduction.layout.rows
    order = sorted(rows, key=_mean_rank(reproduction)) if reproduction.layout.compare == "columns" else sorted(rows)

    def filled(rows: Iterable[int]) -> list[tuple[str, list[dict[str, Any] | None]]]:
        return [(labels[row], [_cell(reproduction, (row, at)) for at in shown]) for row in rows]

    return {
        "columns": [reproduction.layout.columns[at] for at in shown],
        "empty": _empty(reproduction.layout.columns, shown),
        "rows": filled(order),
        "empty_rows": filled(row for row in sorted(labels) if row not in rows),
    }


def _empty(columns: Sequence[Column], shown: Sequence[int]) -> list[str]:
    """Return the heads of the columns that are not shown; where none of a group is, the group's alone."""
    filled = {columns[at].group for at in shown} | {""}
    absent = [column for at, column in enumerate(columns) if at not in shown]
    return list(dict.fromkeys(title(column) if column.group in filled else column.group for column in absent))


def _mean_rank(reproduction: Reproduction) -> Callable[[int], tuple[bool, float, int]]:
    """Return the sort key of a row: the mean rank of its numbers, each among all numbers of its column, then the row's
    own number. Numbers that look the same share a rank. A column with numbers of one row alone ranks nothing. After
    the others come rows that lack a number which they could have, then those without a rank.
    """
    columns: dict[int, list[tuple[int, float]]] = defaultdict(list)  # row and number, the best is the lowest
    # The readings are ranked together: each has rows that the other lacks, so that a place among 7 is none among 12
    cells = [each for table in reproduction.readings.values() for each in table.cells.items()]
    for (row, at), cell in cells:
        if cell.has_number and cell.metric.best != "none":
            shown = rounded(cell.value.mean, cell.metric.decimals)
            columns[at].append((row, shown if cell.metric.best == "low" else -shown))
    waiting, known = {place for place, cell in cells if not cell.unfillable}, {place for place, _ in cells}
    ranks: dict[int, list[float]] = defaultdict(list)
    lacking: set[int] = set()
    for at, numbers in columns.items():
        there = {row for row, _ in numbers}
        if len(there) < 2:
            continue
        lacking |= {row for row, column in waiting if column == at} - there
        # Rows that their sweep does not train there
        lacking |= {row for row in reproduction.first.own_rows if (row, at) not in known}
        for row, own in numbers:
            better, equal = (sum(test(each) for _, each in numbers) for test in (own.__gt__, own.__eq__))
            ranks[row].append(better + (equal + 1) / 2)
    return lambda row: (row in lacking, fmean(ranks[row]) if ranks[row] else math.inf, row)


def _has_content(cell: Cell) -> bool:
    """Return whether a cell has a number, or more to say than that nobody has trained it."""
    return cell.has_number or cell.why_empty in ("none", "failed") or bool(_needs(cell))


def _cell(reproduction: Reproduction, place: tuple[int, int]) -> dict[str, Any] | None:
    """Return a place of the table: what is printed, and ours under each reading, once where no reading has a number."""
    by_reading = {name: each.cells[place] for name, each in reproduction.readings.items() if place in each.cells}
    if not by_reading:
        return None
    first = next(iter(by_reading.values()))
    alone = first.line.row in reproduction.first.own_rows or not reproduction.layout.in_print
    ours = [_ours(cell, name) for name, cell in by_reading.items()]
    same = not any(cell.has_number for cell in by_reading.values()) and len({each["shown"] for each in ours}) == 1
    if same or len(reproduction.readings) == 1:
        ours = [{**ours[0], "reading": ""}]
    return {"ours": ours, "printed": "" if alone else first.line.shown}


def _ours(cell: Cell, name: str = "") -> dict[str, Any]:
    """Return our number as the template shows it, or why there is none."""
    if not cell.has_number:
        shown = _needs(cell) or cell.why_empty if cell.why_empty == "missing" else cell.why_empty
        empty = {"rank": 0, "partial": False, "note": "", "difference": "", "apart": False}
        return {"reading": name, "shown": shown, **empty}
    seeds = f"{cell.value.n} of {len(cell.trials.seeds)} seeds"
    return {
        "reading": name,
        "shown": value(cell),
        "rank": cell.rank,
        "partial": cell.trials.partial,
        "note": "" if cell.complete else _needs(cell) or seeds,
        "difference": "" if cell.difference is None else number(cell.difference, cell.metric.decimals, "+"),
        "apart": cell.agrees is False,
    }


def _needs(cell: Cell) -> str:
    """Return the rows that a number waits for, where its own seeds are all there; "" if it waits for none."""
    if not cell.lacking or not cell.trials.complete:
        return ""
    rows = "all rows" if cell.metric.relative == "slowest" else ", ".join(each.method for each in cell.lacking)
    return f"needs {rows}"


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
        "winners": winners(table),
        "fixed": deviations.fixed(table),
        "deviations": deviations.lines(table),
        "origin": origin(table, links),
    }


def shown_effect(effect: Effect) -> dict[str, Any]:
    """Return a change that a reading makes, with text: how far it moves cells, what searches chose otherwise with it,
    how many gaps it explains, and how many agreeing cells it loses.
    """
    seeds = max((shift.seeds for shift in effect.shifts), default=0)
    over = f"{len(effect.shifts)} cells, {'one seed' if seeds == 1 else f'{seeds} seeds'}, scale {effect.scale}"
    gaps, lost = sum(shift.explains for shift in effect.gaps), sum(shift.loses for shift in effect.agreeing)
    return {
        "change": effect.change,
        "size": f"{points(effect.size)} ({over})" if effect.shifts else "not measured",
        "chosen": "; ".join(f"{method}: {what}" for method, what in effect.chosen),
        "explains": f"{gaps} of {len(effect.gaps)}" if effect.shifts else "",
        "lost": f"{lost} of {len(effect.agreeing)}" if effect.shifts else "",
    }


def _shifts(effect: Effect) -> list[Shift]:
    """Return what the page lists of a change: the gaps that it moves most, then all agreeing cells that it loses."""
    return [*effect.gaps[:LISTED], *(shift for shift in effect.agreeing if shift.loses)]


def _shift(reproduction: Reproduction, effect: Effect, shift: Shift) -> CellTexts:
    """Return a cell of the paper's reading, without and with one change."""
    decimals = shift.base.metric.decimals
    numbers = [number(each, decimals) for each in (shift.before, shift.after)]
    place = f"{reproduction.layout.rows[shift.base.line.row]}, {verdict.place_of(reproduction.first, shift.base)}"
    return [effect.change.name, place, *numbers, shift.base.line.shown, _closes(shift), shift.predicted]


def _closes(shift: Shift) -> str:
    """Return the part of its gap that a change closes, and what that means."""
    if shift.loses:
        return "it agreed: lost"
    said = ", explained" if shift.explains else ", overshoots" if shift.overshoots else ""
    return f"{number(100 * shift.closes, 0)}%{said}"


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
        arrived = [(cell.line.label, cell.value.mean) for cell in there if cell.value.mean]
        printed = [(cell.line.label, cell.line.value) for cell in there if cell.line.value is not None]
        if arrived:
            ours, theirs = _lowest(arrived), _lowest(printed)
            yield f"{title(column)}: ours over {ours}, the slowest that gets there; the paper's over {theirs}."


def _lowest(numbers: list[tuple[str, float]]) -> str:
    """Return the labels of the least of them."""
    return ", ".join(label for label, number in numbers if number == min(each for _, each in numbers))


def _order(comparison: Comparison) -> dict[str, CellTexts]:
    return {each.line: [number(each.tau, 2), f"{each.n} of {each.of}"] for each in comparison.taus()}


def _claims(ruled: Ruled) -> dict[tuple[str, str], CellTexts]:
    """Return each claim with whether the published numbers bear it out: our verdict, and what it rests on."""
    found = {}
    for claim, ruling in ruled:
        n, checks = sum(check.holds for check in ruling.checks), ruling.checks
        so_far = f"{n} of {len(checks)} comparisons" + (" so far" if ruling.holds is None else "") if checks else ""
        broken = "" if ruling.holds is True else _broken(checks)
        said = ": ".join(filter(None, [BASIS[claim["basis"]], claim.get("note", "")]))
        quote = f"{claim['id']}: {claim['quote']}" + (f" ({said})" if said else "")
        in_print = VERDICTS[claim["holds_in_print"]] if not claim["needs_rerun"] else "not published"
        why = "; ".join(filter(None, [f"{so_far}{_clear(checks)}{broken}", _without(ruling)]))
        found[quote, in_print] = [VERDICTS[ruling.holds], why]
    return found


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
                where = f"{cell.line.metric}, {cell.trials.method} {cell.trials.setting}"
                yield f"{inline(where)}: {seeds}"


def _by_samples(comparison: Comparison) -> dict[str, Any]:
    """Return the columns that change where each test sample counts the same; {} if none does."""
    found: dict[int, dict[int, tuple[Cell, Value]]] = defaultdict(dict)  # by column and row
    for column, cell, by_samples in comparison.by_samples():
        found[column][cell.line.row] = cell, by_samples
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
    return {"ours": [_ours(cell._replace(value=by_samples, rank=0, noise=by_samples.std))], "printed": ""}


def _paired(comparison: Comparison) -> dict[str, Any]:
    """Return the paired tests of the paper's method against each other one; {} if there are none."""
    by_row: dict[str, dict[int, str]] = defaultdict(dict)
    for pair in comparison.paired() if comparison.layout.own else ():
        gain = pair.gain
        mean, low, high = (number(100 * x, 2, "+") for x in (gain.mean, gain.low, gain.high))
        shown = f"{mean} [{low}, {high}] {gain.kind}, p {', '.join(map(_p, pair.p))}"
        by_row[comparison.layout.labels[pair.method]][pair.column] = shown
    if not by_row:
        return {}
    columns = sorted({column for row in by_row.values() for column in row})
    own = comparison.layout.labels.get(comparison.layout.own)
    return {
        "heads": [f"{own} minus", *(title(comparison.layout.columns[at]) for at in columns)],
        "rows": [[row, *(cells.get(at, tables.NONE) for at in columns)] for row, cells in by_row.items()],
    }


def _p(p: float) -> str:
    return "<0.001" if p < 0.001 else tables.NONE if math.isnan(p) else f"{p:.3f}"


def winners(comparison: Comparison) -> list[str]:
    """Return the hyperparameters that searches chose, one line per method."""
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for trials in comparison.trials_by_cell:
        if trials.winner:
            chosen = ", ".join(_chosen(trials, key, value) for key, value in trials.winner.items())
            value, best = trials.winner_value, ""
            if value is not None:
                on = f"{inline(trials.split)} data{_at_scale(trials)}{_other_view(comparison, trials)}"
                best = f" ({100 * value:.2f}% on {on})"
            found[inline(trials.method)][f"{inline(trials.setting)}: {chosen}{best}"] = None
    return [f"{method}: {'; '.join(lines)}" for method, lines in found.items()]


def _chosen(trials: CellTrials, key: str, value: Any) -> str:
    """Return a hyperparameter of the winner, with all its values for which the search has an accuracy."""
    tried = {as_override(point[key]): point[key] for point, _ in trials.tried if key in point}
    ordered = map(as_override, sorted(tried.values(), key=in_order))
    notes = [f"of {', '.join(map(inline, ordered))}"] if len(tried) > 1 else []
    notes += [f"the {trials.edges[key]} of those tried"] if key in trials.edges else []
    notes_of = f" ({'; '.join(notes)})" if notes else ""
    return code(f"{key.rpartition('.')[2]}={as_override(value)}") + notes_of


def _at_scale(trials: CellTrials) -> str:
    """Return at which scale a search has chosen, where it is another than that of the final trials."""
    return f" at scale {inline(trials.searched_at)}" if trials.searched_at else ""


def _other_view(comparison: Comparison, trials: CellTrials) -> str:
    """Return by whose accuracy a search has chosen, where the table shows the accuracy of other models."""
    view = comparison.layout.views.get(trials.method, "personal")
    other = trials.view not in ("", view)  # older ledgers do not say it
    return f" by {code(f'tune.view={trials.view}')}, where the table shows the view {view}" if other else ""


def origin(comparison: Comparison, links: Links) -> list[str]:
    """Return commands, code and machines, the MLflow store, and the records, as lines of markdown."""
    trials = comparison.trials
    commands = dict.fromkeys(command for cell in comparison.trials_by_cell for command in cell.commands)
    lines = [code(command) for command in commands]
    if not trials:
        return lines or [code(missing.command_of(comparison))]
    for key, values in {
        "commit": {str(m.get("commit") or "unknown") for t in trials for m in (t.meta, *t.meta.get("sessions", []))},
        "pflsweep": {str(t.meta.get("version")) for t in trials},
        "device": {str(t.meta.get("environment", {}).get("device")) for t in trials},
        "torch": {str(t.meta.get("environment", {}).get("torch")) for t in trials},
        "MLflow": {store_of(t.config) for t in trials},
    }.items():
        lines.append(f"{key}: {', '.join(map(inline, sorted(values)))}")
    for trial in trials:
        if (versions := code_versions(trial.record)) > 1:
            named = f"{inline(trial.meta['name'])} {code(trial.identity)}"
            lines.append(f"{named}: its rounds were trained by {versions} versions of the code")
    own = {each.path.name: each.sweep for each in comparison.store.of(comparison.layout.sweeps)}
    tracked = [f"[{inline(own[name])}]({address})" for name, address in links.sweeps.items() if name in own]
    if tracked:
        lines.append(f"sweeps in MLflow, where `pflsweep ui` or its server shows them: {', '.join(tracked)}")
    lines.append(f"records in {code(comparison.store.trials.runs)}:")
    for cell in comparison.trials_by_cell:
        runs = ", ".join(f"seed {seed} {_named(trial, links)}" for seed, trial in cell.finished.items())
        if runs:
            lines.append(f"  - {inline(f'{cell.method} {cell.setting}')}: {runs}")
    return lines


def _named(trial: FinishedTrial, links: Links) -> str:
    address = links.runs.get(trial.identity)
    shown = code(trial.identity)
    return f"[{shown}]({address})" if address else shown


def store_of(config: dict[str, Any]) -> str:
    """Return where a trial's MLflow run is, without a database's password; its name there is the record's."""
    if config.get("tracking.backend") == "none":
        return "not tracked"
    uri = without_password(config.get("tracking.uri") or "sqlite:///mlflow.db")
    return f"{uri}, experiment {config.get('tracking.experiment')}"
