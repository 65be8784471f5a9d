"""The five lines on top of a table's page: what agrees, what does not, why, the order, and the scale.

Below the paper's own scale the scale comes first: fewer rounds are no reproduction, whatever agrees.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from pflsweep.report.markdown import inline
from pflsweep.report.paper import deviations
from pflsweep.report.paper.comparison import Cell, Comparison, title
from pflsweep.report.paper.formats import number, points, short, value
from pflsweep.report.paper.reproduction import Reproduction, furthest

WHY = "Why: "  # how the line of DISCUSSION.md begins that stands in the verdict
NAMED = 3  # cells, or rows, that a line names
WORDS = ("hold", "hold in part", "do not hold", "are open")  # of claims, in the order of a verdict's counts


def split_why(discussion: str) -> tuple[str, str]:
    """Return a discussion's line that begins with WHY, without that word, and all its other text."""
    lines = discussion.strip().splitlines()
    found = [line for line in lines if line.startswith(WHY)]
    rest = "\n".join(line for line in lines if line not in found[:1])
    return found[0].removeprefix(WHY).strip() if found else "", rest.strip()


def lines(of: Reproduction, why: str = "") -> list[str]:
    """Return the verdict as lines of markdown. why: what a person has found out about the differences.

    A table without published numbers has the scale, and the claims where there are any.
    """
    printed, smaller = of.layout.in_print, below_paper(of)
    no_reproduction = f", {smaller}, so that this is no reproduction of the table" if smaller else ""
    scale = {"Scale": f"**{inline(of.scale)}**{no_reproduction}; {_each(of, _scale)}{_best_round(of)}"}
    found = {
        "Agrees with the published numbers": _each(of, _agrees) if printed else "",
        "Does not agree": _each(of, _differs) if printed else "",
        "Why": explanation(of, why),
        "Order and claims": _each(of, _order),
    }
    ordered = scale | found if smaller else found | scale
    return [f"**{head}:** {text}." for head, text in ordered.items() if text]


def below_paper(of: Reproduction) -> str:
    """Return how much less than the paper's training our trials had, as text; "" if they had all of it."""
    if of.fewer_rounds:
        ours, theirs = (_span(numbers) for numbers in zip(*of.fewer_rounds, strict=True))
        return f"{ours} of the paper's {theirs} rounds"
    return "not the paper's own scale" if of.scale != "paper" and of.layout.in_print else ""


def _span(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _each(of: Reproduction, say: Callable[[Reproduction, str], str]) -> str:
    """Return what is said of each reading; its name stands before it where there are several."""
    said = {name: say(of, name) for name in of.readings}
    if len(said) == 1:
        return next(iter(said.values()))
    return "; ".join(f"reading **{name}**: {text}" for name, text in said.items() if text)


def _agrees(of: Reproduction, name: str) -> str:
    verdict = of.verdicts[name]
    if not verdict.compared:
        return "nothing can be compared yet"
    rows: dict[str, list[bool]] = defaultdict(list)
    for cell in of.readings[name].paper_cells:
        if cell.agrees is not None:
            rows[_row(of, cell)].append(cell.agrees)
    whole = [row for row, agree in rows.items() if all(agree)]
    more = f" and {len(whole) - 2 * NAMED} more" if len(whole) > 2 * NAMED else ""
    said = f" (all of {', '.join(whole[: 2 * NAMED])}{more})" if whole else ""
    return f"**{verdict.agree} of {verdict.compared}** numbers{said}"


def _differs(of: Reproduction, name: str) -> str:
    table, verdict = of.readings[name], of.verdicts[name]
    apart = verdict.compared - verdict.agree
    if not apart:
        return ""
    named = [f"{_place(of, cell)} {value(cell)} ({cell.line.shown})" for cell in furthest(table)[:NAMED]]
    known = not math.isnan(verdict.difference)
    mean = f"; all accuracies differ by {points(verdict.difference)} on average" if known else ""
    said = f"; the largest differences (published numbers in brackets): {'; '.join(named)}" if named else ""
    return f"{apart} of {verdict.compared}{mean}{said}"


def explanation(of: Reproduction, why: str) -> str:
    """Return why a table differs from the published one: what a person found out, and what single changes explain.

    Without either, say in how many respects the settings differ. Fewer rounds than the paper's are said first.
    why: a person's words.
    """
    apart = any(verdict.compared > verdict.agree for verdict in of.verdicts.values())
    smaller = below_paper(of) if apart else ""
    parts = [f"{smaller} (scale {inline(of.scale)})" if smaller else "", why.removesuffix(".")]
    if of.explained:
        gaps = f"{_count(of.explained, 'gap')} of reading paper ({', '.join(of.explained)})"
        parts.append(f"one change alone to what the authors' code does explains {gaps}")
    if not any(parts[1:]) and apart:
        differing = len({line for table in of.readings.values() for line in deviations.lines(table)})
        respects = (
            f"our runs differ from the paper's in {differing} respect{'s' if differing > 1 else ''}, listed below"
        )
        parts = [parts[0] or "not known yet", respects]
    if of.lost:
        parts.append(f"one change alone loses {_count(of.lost, 'agreeing cell')} ({', '.join(of.lost)})")
    return "; ".join(filter(None, parts))


def _count(cells: dict[str, set[tuple[str, ...]]], noun: str) -> str:
    """Return how many cells there are, each counted once. cells: by the change that moves them."""
    n = len(set().union(*cells.values()))
    return f"{n} {noun}{'s' if n > 1 else ''}"


def _order(of: Reproduction, name: str) -> str:
    verdict = of.verdicts[name]
    over, order = ("columns", "methods") if of.layout.compare == "columns" else ("rows", "columns")
    said = f"Kendall's tau {number(verdict.tau, 2)}, mean over {over} (1: the paper's order of {order}); "
    tau = "" if math.isnan(verdict.tau) else said
    counts = [f"{n} {word}" for n, word in zip(verdict.claims.values(), WORDS, strict=True) if n]
    if not counts and not of.layout.in_print:
        return ""
    about = len(of.ruled[name])
    none = f"of the paper's {about} claims none can be decided" if about else "no claim of the paper is about it"
    claims = f"of the paper's claims {', '.join(counts)}" if counts else none
    return tau + claims


def _scale(of: Reproduction, name: str) -> str:
    table = of.readings[name]
    reading = f"reading {name}, " if len(of.readings) == 1 else ""
    return f"{reading}{table.complete} of {table.fillable} cells complete, {_seeds(table)}"


def _best_round(of: Reproduction) -> str:
    """Return which numbers are of the best round, where the end of a sweep prints the last one's; "" if none is."""
    rows: dict[bool, dict[str, None]] = {True: {}, False: {}}  # of the best round, or not -> labels
    for table in of.readings.values():
        for cell in filter(
            lambda cell: cell.has_number and cell.metric.quantity in ("accuracy", "gain"), table.paper_cells
        ):
            shown = table.layout.rounds.get(cell.trials.method, cell.metric.options.get("round"))
            rows[shown == "best"][_row(of, cell)] = None
    best, last = rows[True], rows[False]
    if not best:
        return ""
    where = "" if not last else f" for {', '.join(best)}" if len(best) <= NAMED else f", but for {', '.join(last)}"
    return f"; accuracies are of the **best round**{where} (the table at the end of a sweep has the last round)"


def _seeds(table: Comparison) -> str:
    """Return the seeds that our numbers rest on, and how many cells have which where they differ."""
    cells = Counter(tuple(sorted(cell.trials.finished)) for cell in table.paper_cells if cell.has_number)
    said = [
        f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
        + (f" ({n} cell{'s' if n > 1 else ''})" if len(cells) > 1 else "")
        for seeds, n in cells.most_common()
    ]
    return " and ".join(said) or "no seed"


def _row(of: Reproduction, cell: Cell) -> str:
    return inline(short(of.layout.rows[cell.line.row]))


def _place(of: Reproduction, cell: Cell) -> str:
    return f"{_row(of, cell)}, {inline(place_of(of.first, cell))}"


def place_of(of: Comparison, cell: Cell) -> str:
    """Return the head of a cell's column."""
    column = of.layout.column_of(cell.line)
    assert column is not None, "cells stand in columns"
    return title(column)
