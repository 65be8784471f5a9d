"""Judge the claims of a paper about a table on our numbers."""

from collections.abc import Iterator
from functools import cache
from typing import Any

from pflsweep.report.paper import claims, layout, published
from pflsweep.report.paper.claim_fields import names_in
from pflsweep.report.paper.claims import Ruling, Statistic
from pflsweep.report.paper.comparison import Comparison
from pflsweep.report.paper.layout import Layout
from pflsweep.util.errors import UserError, nearest


def rulings(comparison: Comparison, others: list[Comparison]) -> Iterator[tuple[dict[str, Any], Ruling]]:
    """Yield the claims about a table, judged on our numbers; some look at `others`, the paper's further tables.

    Cells that no run can fill are left out of a claim. If nothing is left to check, it is "undecidable".
    """
    tables = (comparison, *others)
    ours = [number for table in tables for number in table.statistics()]
    empty = {
        (table.layout.table, *cell.printed.key) for table in tables for cell in table.cells.values() if cell.unfillable
    }
    printed = layout.printed_statistics(comparison.layout.paper) + _placeholders(comparison)
    possible = [number for number in printed if number.key not in empty]
    for claim in _about_runs(comparison.layout):
        _check_print(claim, printed)
        needed = claims.needed_cells(claim, printed)
        ruling = _ruling(claim, ours, possible, needed - empty)._replace(without=_without(needed, empty))
        undecidable = bool(ruling.without) and not claims.judge(claim, possible).checks
        yield claim, ruling._replace(holds="undecidable") if undecidable else ruling


def _ruling(
    claim: dict[str, Any], ours: list[Statistic], possible: list[Statistic], needed: set[tuple[str, ...]]
) -> Ruling:
    """Return the ruling of a claim; while cells are missing, that of the settings that lack none.

    possible: the published numbers that a run can have.
    """
    ruling = claims.judge(claim, ours, needed)
    if ruling.holds is not None or not claims.by_setting(claim):
        return ruling
    lacking = {_setting(key) for key in needed - {number.key for number in ours}}
    whole = {_setting(key) for key in needed} - lacking
    part, printed = (
        claims.judge(claim, [number for number in numbers if _setting(number.key) in whole])
        for numbers in (ours, possible)
    )
    if not part.checks:
        return ruling
    settings = tuple(sorted({f"{dataset} {setting}" for _, dataset, _, setting in whole}))
    return Ruling(None, part.checks, part.holds, settings, printed.checks)


def _setting(key: tuple[str, ...]) -> tuple[str, ...]:
    """Return the table, dataset, model and setting of a cell."""
    return key[:4]


def _about_runs(layout: Layout) -> list[dict[str, Any]]:
    """Return the claims about a table that a run can decide: not one about typography, nor that two published tables
    say the same. Ours do so by construction, or by chance if they have other seeds.
    """
    every = published.claims(layout.paper, layout.table)
    for claim in every:
        _check_names(claim, layout.paper)
    return [claim for claim in every if "bold" not in claim["expr"] and claim["basis"] != "consistency"]


def _check_names(claim: dict[str, Any], paper: str) -> None:
    """Raise UserError if a claim names a method, or a part of a column, that no table of its paper has."""
    # It would be open for ever
    known = _known(paper)
    for key, value in names_in(claim):
        if value not in known[key] and value != "_head":
            raise UserError(
                f"claims.yaml: claim {claim['id']!r}: no table of '{paper}' has the {key} '{value}'."
                f"{nearest(value, known[key])} There are: {', '.join(known[key])}."
            )


def _check_print(claim: dict[str, Any], printed: list[Statistic]) -> None:
    """Raise UserError if the published numbers say otherwise than a claim's holds_in_print."""
    if claim["needs_rerun"]:
        return
    holds = claims.judge(claim, printed).holds
    if holds != claim["holds_in_print"]:
        said = {True: "true", False: "false", "partly": "partly", None: "nothing of it, since its cells are not there"}
        raise UserError(
            f"claims.yaml: claim {claim['id']!r} has holds_in_print: {said[claim['holds_in_print']]}; the published "
            f"numbers say {said[holds]}."
        )


@cache
def _known(paper: str) -> dict[str, list[str]]:
    """Return the values of each key of a claim that some table of a paper has."""
    tables = layout.of_paper(paper)
    numbers = [each for table in tables for each in (*table.printed, *layout.heads(table))]
    return {key: sorted({getattr(each, key) for each in numbers}) for key in claims.KEYS[1:]}


def _without(needed: set[tuple[str, ...]], empty: set[tuple[str, ...]]) -> dict[str, list[str]]:
    """Return the methods of which some needed cells cannot be filled, with the places of these where others can be."""
    found: dict[str, list[str]] = {}
    for method in sorted({key[-1] for key in needed & empty}):
        own = {key for key in needed if key[-1] == method}
        places = {" ".join([dataset, setting, metric]) for _, dataset, _, setting, metric, _ in own & empty}
        found[method] = sorted(places) if own - empty else []
    return found


def _placeholders(comparison: Comparison) -> list[Statistic]:
    """Return numbers for a table that was never published.

    Only their keys matter; the numbers differ so that nothing is divided by 0.
    """
    if comparison.layout.in_print:
        return []
    return [
        layout.statistic_of(comparison.layout, cell.printed, 1.0 + k, None)
        for k, cell in enumerate(comparison.cells.values())
    ]


def others_needed(table: Layout) -> list[str]:
    """Return the paper's other tables that claims about this one look at."""
    printed = layout.printed_statistics(table.paper)
    seen = {key[0] for claim in _about_runs(table) for key in claims.needed_cells(claim, printed)}
    return [other.name for other in layout.of_paper(table.paper) if other.name != table.name and other.table in seen]
