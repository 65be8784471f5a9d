"""A reproduced table as markdown that GitHub shows, with all that a reader needs to trust or doubt it."""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from textwrap import fill
from typing import Any

from pflsweep.config import reading
from pflsweep.config.keys import as_override
from pflsweep.report import markdown, tables
from pflsweep.report.compare import PARTIAL
from pflsweep.report.markdown import cell, code, inline
from pflsweep.report.paper import deviations, layout, missing, published, weights
from pflsweep.report.paper.claims import Check, Ruling
from pflsweep.report.paper.comparison import Cell, Comparison, title
from pflsweep.report.paper.links import Links
from pflsweep.report.paper.metrics import Value
from pflsweep.report.paper.store import Answer, Trial
from pflsweep.util.errors import UserError, without_password

MINUS = "\N{MINUS SIGN}"
VERDICTS = {True: "holds", "partly": "holds in part", False: "does not hold", None: "cannot be told yet"}
SINGLE = " Where we show none, the mark takes ours over seeds."
OVER = {
    "seeds": "seeds (divided by n \N{MINUS SIGN} 1), each with a partition, a first model and cohorts of its own",
    "clients": "clients (divided by n), then averaged over seeds",
}
VIEWS = """\
The view `trained` is of each client's model as it last left local training.
"""
TAU = """\
Kendall's tau-b compares our order with print's: 1 where they are the same, 0 where they have nothing in common,
\N{MINUS SIGN}1 where one is the other reversed.
"""
LEGEND = """\
Each cell: ours, then what is printed and the difference. **Bold** is our best of the {along}, <u>underlined</u> our
second; **≠** marks a difference larger than our std and the printed one together (one that is not known counts as
nothing; without either, or with ours alone where it is 0, there is no mark). A std is over {over}.{single}
"""
UNPRINTED = """\
No numbers are printed of this one. **Bold** is our best of the {along}, <u>underlined</u> our second. A std is over
{over}.
"""
OWN = """
Rows with our numbers alone are not the paper's: no count of cells and no claim has them.
"""
NONE = """
**none**: all runs behind the cell are finished, and have no such number.
"""
NO_CODE = """
**no code**: the code of this row is not public, so that this reading has no number; it counts nowhere.
"""
READING = """\
The table as its authors' code ran it ({code}). Each line is something that the code does otherwise than the paper
says, with the keys that express it; `reading=NAME` runs one of them alone.
"""
NEEDS = """
A cell that needs other rows is measured against them.
"""
BASIS = {"stated": "", "reading": "our reading", "extended": "extended", "consistency": "consistency"}
CLAIMS = """\
What the paper says, in our words; in parentheses how we have read it. A claim of a figure holds where ours rounds to
the same.
"""
CLEAR = """\
Clear of std are comparisons that hold by more than the root of the summed squares of both our stds over seeds; with two
seeds such a std is itself uncertain. The verdict does not look at it.
"""
SAMPLES = """\
In the table above each client counts the same, whatever its size. Here each test sample does, as in the code of some
authors; the best round, where the table has that, is the best by this. After it the difference to print; std over
seeds. Columns that do not change are left out.
"""
PAIRED = """\
Mean difference in points of the same client under the same seed, with its 95% CI over seeds (Student's t), or over
clients (bootstrap) where there is one seed; p: Wilcoxon's signed ranks over clients, by seed, since another seed deals
the data anew; not corrected for the number of tests. The interval is about other seeds, p about clients under these.
Columns with one number for all clients are left out.
"""


def text(
    of: Comparison,
    ruled: list[tuple[dict[str, Any], Ruling]],
    figures: dict[str, str],
    links: Links,
    discussion: str = "",
) -> str:
    """The page. figures: file name -> what it shows. links: where its runs can be browsed. discussion: what a person
    has made of it, in markdown.
    """
    parts = [
        f"# {of.layout.name}: {of.layout.title}\n",
        _standing(of),
        table(of),
        _legend(of),
        *([f"## Discussion\n\n{discussion.strip()}\n"] if discussion.strip() else []),
        *[f"![{inline(alt)}]({name})\n" for name, alt in figures.items()],
        *_section("Missing and failed", missing.lines(of)),
        *_section("The order, ours and print's", _order(of)),
        *_section("What the paper says of this table", _claims(ruled)),
        *_section("Correlations by seed", _correlations(of)),
        *_section("With each test sample counting the same", _by_samples(of)),
        *_section("Client by client", _paired(of)),
        *_section("Chosen hyperparameters", _winners(of)),
        *_section("Hyperparameters that were not searched", deviations.fixed(of)),
        *_section("What this reading changes", _changes_of(of)),
        *_section("What differs from the paper", deviations.lines(of)),
        *_section("Odd in print", [f"{published.notes()[number]}" for number in of.layout.notes]),
        *_section("Made by", _origin(of, links)),
    ]
    return "\n".join(parts)


def _changes_of(of: Comparison) -> Iterator[str]:
    """Yield a line for each thing that a reading of the authors' code changes, and what of it is left out here."""
    known = reading.read(of.layout.paper)
    if not of.reading.changes or known is None:
        return
    yield READING.format(code=inline(known.code))
    yield "| change | the paper | the code | where | keys |"
    yield "|:--|:--|:--|:--|:--|"
    for change in of.reading.changes:
        words = (change.name, change.paper, change.code, change.where)
        yield f"| {' | '.join(map(cell, words))} | {'; '.join(cell(code(key)) for key in change.overrides)} |"
    if of.store.reading == reading.CODE and known.not_modelled:
        yield "\nNot modelled:\n"
        yield from known.not_modelled


def table(of: Comparison) -> str:
    """The paper's layout as a pipe table."""
    columns = of.layout.columns
    head = ["", *(cell("<br>".join(filter(None, [c.group, c.header]))) for c in columns)]
    rows = [
        [
            cell(label),
            *(_cell(of.made.get((row, k)), of.layout.in_print, row in of.own_rows) for k in range(len(columns))),
        ]
        for row, label in sorted(of.layout.rows.items())
    ]
    rule = [":--", *["--:"] * len(columns)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *rows)) + "\n"


def _cell(made: Cell | None, in_print: bool, own: bool) -> str:
    if made is None:
        return tables.NONE
    if own or not in_print:
        return _ours(made)
    return f"{_ours(made)}<br><sub>{made.line.shown}{_difference(made)}{' **≠**' if made.apart else ''}</sub>"


def _difference(made: Cell) -> str:
    return "" if made.difference is None else f"; {number(made.difference, made.metric.decimals, '+')}"


def _ours(made: Cell) -> str:
    if not made.there:
        return _needs(made) or made.absent if made.absent == "missing" else made.absent
    shown = value(made)
    shown = f"**{shown}**" if made.place == 1 else f"<u>{shown}</u>" if made.place == 2 else shown
    shown += PARTIAL * made.answer.partial
    seeds = f"{made.value.n} of {len(made.answer.seeds)} seeds"
    return shown if made.complete else f"{shown} ({_needs(made) or seeds})"


def _needs(made: Cell) -> str:
    """Of which rows its number waits for seeds, where its own are all there."""
    if not made.lacking or not made.answer.complete:
        return ""
    rows = "all rows" if made.metric.relative == "slowest" else ", ".join(each.method for each in made.lacking)
    return f"needs {rows}"


def value(made: Cell) -> str:
    """Our mean, with its std where there is one."""
    mean, std, decimals = made.value.mean, made.value.std, made.metric.decimals
    return number(mean, decimals) + ("" if std is None else f" ± {number(std, decimals)}")


def number(x: float, decimals: int, sign: str = "") -> str:
    rounded = round(x, decimals) + 0.0  # no minus zero
    return f"{rounded:{sign}.{decimals}f}".replace("inf", "∞").replace("-", MINUS)


def _section(heading: str, lines: Iterable[str]) -> list[str]:
    """Lines of tables and inner lists stand as they are, and so do paragraphs, which end with a newline."""
    body = [line if line.startswith(("|", "  ")) or line.endswith("\n") else f"- {line}" for line in lines]
    return [f"## {heading}\n", "\n".join(body) + "\n"] if body else []


def _standing(of: Comparison) -> str:
    seeds = sorted({seed for made in of.made.values() for seed in made.answer.seeds})
    parts = [
        f"Reading **{inline(of.store.reading)}**, scale **{inline(of.store.scale)}**, "
        f"{of.complete} of {of.fillable} cells complete"
    ]
    if seeds:
        parts.append(f"seeds {', '.join(map(str, seeds))}")
    printed = {cell.setting: cell.value for cell in layout.heads(of.layout)}
    emds = [f"{c.setting} {c.value:.2f} ({printed[c.setting]:.2f})" for c in of.heads()]
    said = [of.layout.about, f"EMD of our partitions, and as printed: {', '.join(emds)}." if emds else ""]
    return "; ".join(parts) + ".\n" + "".join(f"\n{each}\n" for each in said if each)


def _legend(of: Comparison) -> str:
    said = " or ".join(OVER[over] for over in sorted({made.metric.over for made in of.made.values()} - {"nothing"}))
    unshown = any(made.value.std is None and made.noise is not None for made in of.made.values())
    printed = sorted({re.sub(r"(\d+)", r" (\1)", line.std_over).replace("_", " ") for line in of.layout.printed} - {""})
    theirs = f"; the paper's is over {', '.join(printed)}" if printed else "; the paper prints none"
    none = NONE if any(made.absent == "none" for made in of.made.values() if not made.there) else ""
    none += NO_CODE if any(made.answer.without_code for made in of.made.values()) else ""
    needs = NEEDS if any(_needs(made) for made in of.made.values()) else ""
    text, over = (LEGEND, (said or "nothing") + theirs) if of.layout.in_print else (UNPRINTED, said or "nothing")
    own = OWN if of.own_rows else ""
    along, single = of.layout.compare.removesuffix("s"), SINGLE if unshown else ""
    legend = fill(text.format(along=along, over=over, single=single), 120, break_on_hyphens=False) + "\n"
    return legend + own + none + needs + "".join(_slowest(of))


def _slowest(of: Comparison) -> Iterator[str]:
    """Over which row of a column the others' numbers are, where that is its slowest: in ours often another than in
    print's.
    """
    for number, column in enumerate(of.layout.columns):
        places = [place for place in sorted(of.made) if place[1] == number and place[0] not in of.own_rows]
        there = [made for made in map(of.made.__getitem__, places) if made.there and made.metric.relative == "slowest"]
        arrived = [(made.line.label, made.value.mean) for made in there if made.value.mean]
        printed = [(made.line.label, made.line.value) for made in there if made.line.value is not None]
        if arrived:
            ours, theirs = _lowest(arrived), _lowest(printed)
            yield f"\n{title(column)}: ours over {ours}, the slowest that gets there; print's over {theirs}.\n"


def _lowest(numbers: list[tuple[str, float]]) -> str:
    """The labels of the least of them."""
    return ", ".join(label for label, number in numbers if number == min(each for _, each in numbers))


def _order(of: Comparison) -> list[str]:
    lines = [
        f"| {cell(each.line)} | {tables.NONE if math.isnan(each.tau) else number(each.tau, 2)} | "
        f"{each.n} of {each.of} |"
        for each in of.taus()
    ]
    along = of.layout.compare.removesuffix("s")
    return [TAU, f"| {along} | Kendall's tau | numbers |", "|:--|--:|--:|", *lines] if lines else []


def _claims(ruled: list[tuple[dict[str, Any], Ruling]]) -> list[str]:
    lines = []
    for claim, ruling in ruled:
        n, checks = sum(check.holds for check in ruling.checks), ruling.checks
        so_far = f"{n} of {len(checks)} comparisons" + (" so far" if ruling.holds is None else "") if checks else ""
        so_far += _clear(checks)
        broken = "" if ruling.holds in (True, None) else _broken(checks)
        said = ": ".join(filter(None, [BASIS[claim["basis"]], claim.get("note", "")]))
        read = f" ({said})" if said else ""
        print_ = VERDICTS[claim["holds_in_print"]] if not claim["needs_rerun"] else "not in print"
        found = "; ".join(filter(None, [f"{so_far}{broken}", _without(ruling)]))
        cells = (f"{claim['id']}: {claim['quote']}{read}", print_, VERDICTS[ruling.holds], found)
        lines.append(f"| {' | '.join(map(cell, cells))} |")
    about = [CLAIMS, *([CLEAR] if any(_clear(ruling.checks) for _, ruling in ruled) else [])]
    return [*about, "| claim | in print | in our numbers | |", "|:--|:--|:--|:--|", *lines] if lines else []


def _clear(checks: list[Check]) -> str:
    """How many comparisons are no matter of seeds."""
    known = [check.clear for check in checks if check.clear is not None]
    of = f" of {len(known)}" if len(known) < len(checks) else ""
    return f", {sum(known)}{of} clear of std" if known else ""


def _broken(checks: list[Check]) -> str:
    fails = [check.said for check in checks if not check.holds]
    more = f"; and {len(fails) - 3} more" if len(fails) > 3 else ""
    return f"; fails: {'; '.join(fails[:3])}{more}" if fails else ""


def _without(ruling: Ruling) -> str:
    """The cells that a claim was judged without, by method."""
    by_method: dict[str, dict[str, None]] = defaultdict(dict)
    for _, dataset, _, setting, metric, method in ruling.without:
        by_method[method][" ".join([dataset, setting, metric])] = None
    cells = "; ".join(f"{method} ({', '.join(places)})" for method, places in by_method.items())
    return f"without {cells}: none" if cells else ""


def _correlations(of: Comparison) -> list[str]:
    """How sure each trial's correlation is: a claim about its sign looks at the mean over seeds alone."""
    lines = []
    for made in of.made.values():
        if made.metric.quantity in weights.AXES:
            axis = weights.AXES[made.metric.quantity]
            found = {seed: weights.pearson(trial, axis) for seed, trial in made.answer.trials.items()}
            seeds = ", ".join(f"seed {seed} r = {number(r, 2)}, p {_p(p)}" for seed, (r, p) in found.items())
            lines += [f"{made.line.metric}, {made.answer.method} {made.answer.setting}: {seeds}"] if seeds else []
    said = "Pearson's r over clients; a claim about its sign looks at the mean over seeds alone"
    return [said, *lines] if lines else []


def _by_samples(of: Comparison) -> list[str]:
    found: dict[int, dict[int, tuple[Cell, Value]]] = defaultdict(dict)  # by column and row
    for column, made, value in of.by_samples():
        found[column][made.line.row] = made, value
    shown = {column: rows for column, rows in found.items() if any(_changes(*row) for row in rows.values())}
    if not shown:
        return []
    labels = of.layout.rows
    lines = [
        [labels[row], *(_by_sample(*rows[row]) if row in rows else tables.NONE for rows in shown.values())]
        for row in sorted({row for rows in shown.values() for row in rows})
    ]
    heads = ["", *(cell(title(of.layout.columns[column])) for column in shown)]
    return [SAMPLES, *markdown.table(heads, lines).splitlines()]


def _changes(made: Cell, by_samples: Value) -> bool:
    return number(made.value.mean, made.metric.decimals) != number(by_samples.mean, made.metric.decimals)


def _by_sample(made: Cell, by_samples: Value) -> str:
    other = made._replace(value=by_samples, place=0)
    return _ours(other) + _difference(other)


def _paired(of: Comparison) -> list[str]:
    """The paper's method against each other one."""
    if not of.layout.own:
        return []
    by_row: dict[str, dict[int, str]] = defaultdict(dict)
    for pair in of.paired():
        gain = pair.gain
        percent = [number(100 * x, 2, "+") for x in (gain.mean, gain.low, gain.high)]
        by_row[of.layout.labels[pair.method]][pair.column] = (
            f"{percent[0]} [{percent[1]}, {percent[2]}] {gain.over}, p {', '.join(map(_p, pair.p))}"
        )
    if not by_row:
        return []
    columns = sorted({column for row in by_row.values() for column in row})
    heads = " | ".join(cell(title(of.layout.columns[column])) for column in columns)
    lines = [f"| {of.layout.labels[of.layout.own]} minus | {heads} |", "|:--" + "|:--" * len(columns) + "|"]
    for method, cells in by_row.items():
        lines.append(f"| {method} | {' | '.join(cells.get(column, tables.NONE) for column in columns)} |")
    return [
        PAIRED,
        *lines,
    ]


def _p(p: float) -> str:
    return "<0.001" if p < 0.001 else tables.NONE if math.isnan(p) else f"{p:.3f}"


def _winners(of: Comparison) -> list[str]:
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for answer in of.asked:
        if answer.winner:
            chosen = ", ".join(_chosen(answer, key, value) for key, value in answer.winner.items())
            value = answer.winner_value
            best = (
                ""
                if value is None
                else f" ({100 * value:.2f}% on {inline(answer.split)} data{_other_view(of, answer)})"
            )
            found[answer.method][f"{answer.setting}: {chosen}{best}"] = None
    lines = [f"{method}: {'; '.join(lines)}" for method, lines in found.items()]
    return [VIEWS, *lines] if any("view trained" in line for line in lines) else lines


def _chosen(answer: Answer, key: str, value: Any) -> str:
    """A hyperparameter of the winner, with all its values for which the search has an accuracy."""
    tried = {as_override(point[key]): point[key] for point, _ in answer.tried if key in point}
    ordered = sorted(tried, key=lambda text: (str(type(tried[text])), tried[text]))
    of = f" (of {', '.join(map(inline, ordered))})" if len(tried) > 1 else ""
    return code(f"{key.rpartition('.')[2]}={as_override(value)}") + of


def _other_view(of: Comparison, answer: Answer) -> str:
    """By whose accuracy a search has chosen, where the table shows the accuracy of other models."""
    view = of.layout.views.get(answer.method, "personal")
    other = answer.view not in ("", view)  # older ledgers do not say it
    return f" by {code(f'tune.view={answer.view}')}, where the table shows the view {view}" if other else ""


def _origin(of: Comparison, links: Links) -> list[str]:
    """Commands, code and machines, the MLflow store, and the records."""
    trials = of.trials
    commands = dict.fromkeys(command for answer in of.asked for command in answer.commands)
    lines = [code(command) for command in commands]
    if not trials:
        return lines or [code(missing.command_of(of))]
    for key, values in {
        "commit": {str(m.get("commit")) for t in trials for m in (t.meta, *t.meta.get("sessions", []))},
        "pflsweep": {str(t.meta.get("version")) for t in trials},
        "device": {str(t.meta.get("environment", {}).get("device")) for t in trials},
        "torch": {str(t.meta.get("environment", {}).get("torch")) for t in trials},
        "MLflow": {store_of(t.config) for t in trials},
    }.items():
        lines.append(f"{key}: {', '.join(map(inline, sorted(values)))}")
    for trial in (trial for trial in trials if trial.record.code_versions > 1):
        lines.append(f"{trial.name}: its rounds were trained by {trial.record.code_versions} versions of the code")
    if links.sweeps:
        shown = ", ".join(f"[{inline(sweep)}]({address})" for sweep, address in links.sweeps.items())
        lines.append(f"sweeps in MLflow, where `pflsweep ui` or its server shows them: {shown}")
    lines.append(f"records in {code(of.store.runs)}:")
    for answer in of.asked:
        runs = ", ".join(f"seed {seed} {_named(trial, links)}" for seed, trial in answer.trials.items())
        if runs:
            lines.append(f"  - {answer.method} {answer.setting}: {runs}")
    return lines


def _named(trial: Trial, links: Links) -> str:
    address = links.runs.get(trial.identity)
    shown = code(trial.identity)
    return f"[{shown}]({address})" if address else shown


def store_of(config: dict[str, Any]) -> str:
    """Where a trial's MLflow run is; its name there is the record's. Without a database's password."""
    if config.get("tracking.backend") == "none":
        return "not tracked"
    uri = without_password(config.get("tracking.uri") or "sqlite:///mlflow.db")
    return f"{uri}, experiment {config.get('tracking.experiment')}"


def unwritable(folder: Any, error: OSError) -> UserError:
    return UserError(f"--out {folder} cannot be written to ({error.strerror}). Name another folder.")
