"""The five lines on top of a table's page: what agrees, what does not, why, the order, and the scale.

Below the paper's own scale the scale comes first: fewer rounds are no reproduction, whatever agrees.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence

from pflsweep.report.markdown import inline
from pflsweep.report.paper import deviations
from pflsweep.report.paper.comparison import Cell, Comparison, title
from pflsweep.report.paper.formats import number, points, short, value
from pflsweep.report.paper.reproduction import Reproduction, furthest
from pflsweep.util.errors import counted

WHY = "Why: "  # how the line of DISCUSSION.md begins that stands in the verdict
NAMED = 3  # cells, or rows, that a line names
# Of several claims and of one, in the order of a verdict's counts
WORDS = ("hold", "hold in part", "do not hold", "are open")
WORDS_OF_ONE = ("holds", "holds in part", "does not hold", "is open")


def split_why(discussion: str) -> tuple[str, str]:
    """Return a discussion's line that begins with WHY, without that word, and all its other text."""
    lines = discussion.strip().splitlines()
    found = [line for line in lines if line.startswith(WHY)]
    rest = "\n".join(line for line in lines if line not in found[:1])
    return found[0].removeprefix(WHY).strip() if found else "", rest.strip()


def lines(reproduction: Reproduction, why: str = "") -> list[str]:
    """Return the verdict as lines of markdown. why: what a person has found out about the differences.

    A table without published numbers has the scale, and the claims where there are any.
    """
    printed, smaller = reproduction.layout.in_print, below_paper(reproduction)
    no_reproduction = f", {smaller}, so that this is no reproduction of the table" if smaller else ""
    cells = f"{_each(reproduction, _scale)}{_best_round(reproduction)}"
    scale = {"Scale": f"**{inline(reproduction.scale)}**{no_reproduction}; {cells}"}
    found = {
        "Agrees with the published numbers": _each(reproduction, _agrees) if printed else "",
        "Does not agree": _each(reproduction, _differs) if printed else "",
        "Why": explanation(reproduction, why),
        "Order and claims": _each(reproduction, _order),
    }
    ordered = scale | found if smaller else found | scale
    return [f"**{head}:** {text}." for head, text in ordered.items() if text]


def below_paper(reproduction: Reproduction) -> str:
    """Return how much less than the paper's training our trials had, as text; "" if they had all of it."""
    if reproduction.fewer_rounds:
        ours, theirs = (_span(numbers) for numbers in zip(*reproduction.fewer_rounds, strict=True))
        return f"{ours} of the paper's {theirs} rounds"
    return "not the paper's own scale" if reproduction.scale != "paper" and reproduction.layout.in_print else ""


def _span(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _each(reproduction: Reproduction, say: Callable[[Reproduction, str], str]) -> str:
    """Return what is said of each reading; its name stands before it where there are several."""
    said = {name: say(reproduction, name) for name in reproduction.readings}
    if len(said) == 1:
        return next(iter(said.values()))
    return "; ".join(f"reading **{name}**: {text}" for name, text in said.items() if text)


def _agrees(reproduction: Reproduction, name: str) -> str:
    verdict = reproduction.verdicts[name]
    if not verdict.compared:
        return "nothing can be compared yet"
    rows: dict[str, list[bool]] = defaultdict(list)
    for cell in reproduction.readings[name].paper_cells:
        if cell.agrees is not None:
            rows[_row(reproduction, cell)].append(cell.agrees)
    whole = [row for row, agree in rows.items() if all(agree)]
    more = f" and {len(whole) - 2 * NAMED} more" if len(whole) > 2 * NAMED else ""
    said = f" (all of {', '.join(whole[: 2 * NAMED])}{more})" if whole else ""
    return f"**{verdict.agree} of {verdict.compared}** numbers{said}"


def _differs(reproduction: Reproduction, name: str) -> str:
    table, verdict = reproduction.readings[name], reproduction.verdicts[name]
    apart = verdict.compared - verdict.agree
    if not apart:
        return ""
    named = [f"{_place(reproduction, cell)} {value(cell)} ({cell.printed.shown})" for cell in furthest(table)[:NAMED]]
    known = not math.isnan(verdict.difference)
    mean = f"; all accuracies differ by {points(verdict.difference)} on average" if known else ""
    said = f"; the largest differences (published numbers in brackets): {'; '.join(named)}" if named else ""
    return f"{apart} of {verdict.compared}{mean}{said}"


def explanation(reproduction: Reproduction, why: str) -> str:
    """Return why a table differs from the published one: what a person found out, and what single changes explain.

    Without either, say in how many respects the settings differ. Fewer rounds than the paper's are said first.
    why: a person's words.
    """
    apart = any(verdict.compared > verdict.agree for verdict in reproduction.verdicts.values())
    smaller = below_paper(reproduction) if apart else ""
    parts = [f"{smaller} (scale {inline(reproduction.scale)})" if smaller else "", why.removesuffix(".")]
    if reproduction.explained:
        gaps = f"{_count(reproduction.explained, 'gap')} of reading paper ({', '.join(reproduction.explained)})"
        parts.append(f"one change alone to what the authors' code does explains {gaps}")
    if not any(parts[1:]) and apart:
        differing = len({line for table in reproduction.readings.values() for line in deviations.lines(table)})
        respects = (
            f"our runs differ from the paper's in {counted(differing, 'respect')}, listed below"
            if differing
            else "nothing is known in which our runs differ from the paper's"
        )
        parts = [parts[0] or "not known yet", respects]
    if reproduction.lost:
        parts.append(
            f"one change alone loses {_count(reproduction.lost, 'agreeing cell')} ({', '.join(reproduction.lost)})"
        )
    return "; ".join(filter(None, parts))


def _count(cells: dict[str, set[tuple[str, ...]]], noun: str) -> str:
    """Return how many cells there are, each counted once. cells: by the change that moves them."""
    return counted(len(set().union(*cells.values())), noun)


def _order(reproduction: Reproduction, name: str) -> str:
    verdict = reproduction.verdicts[name]
    over, order = ("columns", "methods") if reproduction.layout.compare == "columns" else ("rows", "columns")
    said = f"Kendall's tau {number(verdict.tau, 2)}, mean over {over} (1: the paper's order of {order}); "
    tau = "" if math.isnan(verdict.tau) else said
    counts, so_far = _counted(verdict.claims), _counted(verdict.so_far)
    if not counts and not reproduction.layout.in_print:
        return ""
    about = len(reproduction.ruled[name])
    none = f"of the paper's {about} claims none can be decided" if about else "no claim of the paper is about it"
    claims = f"of the paper's claims {counts}" if counts else none
    return tau + claims + (f" (so far {so_far})" if so_far else "")


def _counted(claims: dict[str, int]) -> str:
    """Return how many claims have each verdict, as text; "" without any."""
    words = zip(claims.values(), WORDS, WORDS_OF_ONE, strict=False)  # open ones come last, and may be left out
    return ", ".join(f"{n} {one if n == 1 else several}" for n, several, one in words if n)


def _scale(reproduction: Reproduction, name: str) -> str:
    table = reproduction.readings[name]
    reading = f"reading {name}, " if len(reproduction.readings) == 1 else ""
    return f"{reading}{table.complete} of {table.fillable} cells complete, {_seeds(table)}"


def _best_round(reproduction: Reproduction) -> str:
    """Return which numbers are of the best round, where the end of a sweep prints the last one's; "" if none is."""
    found: dict[bool, dict[tuple[str, str], None]] = {True: {}, False: {}}  # of the best round, or not -> metric, row
    for table in reproduction.readings.values():
        for cell in filter(
            lambda cell: cell.has_number and cell.metric.quantity in ("accuracy", "gain"), table.paper_cells
        ):
            shown = table.layout.rounds.get(cell.trials.method, cell.metric.options.get("round"))
            found[shown == "best"][cell.printed.metric, _row(reproduction, cell)] = None
    best, last = (_names(*each) for each in ((found[True], found[False]), (found[False], found[True])))
    if not best:
        return ""
    where = "" if not last else f" for {', '.join(best)}" if len(best) <= NAMED else f", but for {', '.join(last)}"
    return f"; accuracies are of the **best round**{where} (the table at the end of a sweep has the last round)"


def _names(some: Collection[tuple[str, str]], others: Collection[tuple[str, str]]) -> list[str]:
    """Return the metrics of some cells if no other cell has one of these, else their rows, else both of each cell."""
    metrics, rows = (list(dict.fromkeys(names)) for names in zip(*some, strict=True)) if some else ([], [])
    if {metric for metric, _ in others}.isdisjoint(metrics):
        return metrics
    return rows if {row for _, row in others}.isdisjoint(rows) else [f"{metric} of {row}" for metric, row in some]


def _seeds(table: Comparison) -> str:
    """Return the seeds that our numbers rest on, and how many cells have which where they differ."""
    cells = Counter(tuple(sorted(cell.trials.finished)) for cell in table.paper_cells if cell.has_number)
    said = [
        f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
        + (f" ({n} cell{'s' if n > 1 else ''})" if len(cells) > 1 else "")
        for seeds, n in cells.most_common()
    ]
    return " and ".join(said) or "no seed"


def _row(reproduction: Reproduction, cell: Cell) -> str:
    return inline(short(reproduction.layout.rows[cell.printed.row]))


def _place(reproduction: Reproduction, cell: Cell) -> str:
    return f"{_row(reproduction, cell)}, {inline(place_of(reproduction.first, cell))}"


def place_of(comparison: Comparison, cell: Cell) -> str:
    """Return the head of a cell's column."""
    column = comparison.layout.column_of(cell.printed)
    assert column is not None, "cells stand in columns"
    return title(column)
