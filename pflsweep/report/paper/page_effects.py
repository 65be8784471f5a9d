"""Say on a page how far each change between a paper and its authors' code moves our numbers."""

from typing import Any

from pflsweep.report.paper import verdict
from pflsweep.report.paper.effects import Effect, Shift
from pflsweep.report.paper.formats import number, points
from pflsweep.report.paper.reproduction import Reproduction

LISTED = 8  # gaps of a change


def shown(effect: Effect) -> dict[str, Any]:
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


def shifts(reproduction: Reproduction) -> list[list[str]]:
    """Return what the page lists of all changes: of each the gaps that it moves most, and agreeing cells that it loses.

    One line of texts per cell.
    """
    return [_shift(reproduction, effect, shift) for effect in reproduction.effects for shift in _listed(effect)]


def _listed(effect: Effect) -> list[Shift]:
    return [*effect.gaps[:LISTED], *(shift for shift in effect.agreeing if shift.loses)]


def _shift(reproduction: Reproduction, effect: Effect, shift: Shift) -> list[str]:
    """Return a cell of the paper's reading, without and with one change."""
    decimals = shift.base.metric.decimals
    numbers = [number(each, decimals) for each in (shift.before, shift.after)]
    place = f"{reproduction.layout.rows[shift.base.printed.row]}, {verdict.place_of(reproduction.first, shift.base)}"
    return [effect.change.name, place, *numbers, shift.base.printed.shown, _closes(shift), shift.predicted]


def _closes(shift: Shift) -> str:
    """Return the part of its gap that a change closes, and what that means."""
    if shift.loses:
        return "it agreed: lost"
    said = ", explained" if shift.explains else ", overshoots" if shift.overshoots else ""
    return f"{number(100 * shift.closes, 0)}%{said}"
