"""The effect of each difference between a paper and its authors' code, from sweeps that change it alone.

Such a sweep (`reading=NAME`) is compared with one of the paper's reading at the same scale, by cell, over the seeds
that both have.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from pflsweep.config import reading
from pflsweep.config.keys import as_override
from pflsweep.config.reading import PAPER, Change
from pflsweep.records.ledger import Ledger
from pflsweep.report.paper.agreement import in_points, tolerance
from pflsweep.report.paper.comparison import Cell, Comparison
from pflsweep.report.paper.layout import Layout
from pflsweep.report.paper.metrics import mean_over_seeds
from pflsweep.report.paper.store import CellTrials, FinishedTrial

# A change explains a gap if it closes between half of it and one and a half times it: at most half is then left, on
# either side
CLOSES = (0.5, 1.5)


class Shift(NamedTuple):
    """A cell with and without one change, in the printed unit."""

    base: Cell  # under the paper's reading
    before: float  # mean over the common seeds
    after: float
    tolerance: float  # of `before` to the published number, by the rule of agreement.py
    seeds: int
    predicted: str  # up, down, or "" if nothing is said
    chosen: str  # what its search chose otherwise than without the change, as text; "" if that is the same

    @property
    def points(self) -> float:
        """The move of the cell by the change, in points."""
        return in_points(self.after - self.before, self.base.printed.unit) or 0.0

    @property
    def closes(self) -> float:
        """The part of the gap to the published number that the change closes; NaN if there is none."""
        printed = self.base.printed.value
        if printed is None or self.agrees:
            return math.nan
        return (self.after - self.before) / (printed - self.before)

    @property
    def agrees(self) -> bool:
        """True if the cell agrees with the published number without the change, in the seeds that both have."""
        printed = self.base.printed.value
        return printed is not None and abs(self.before - printed) <= self.tolerance

    @property
    def explains(self) -> bool:
        """True if at most half of the gap is left, and the cell moves as was predicted, where something was."""
        against = {"up": self.points < 0, "down": self.points > 0}.get(self.predicted, False)
        return CLOSES[0] <= self.closes <= CLOSES[1] and not against

    @property
    def overshoots(self) -> bool:
        """True if the change goes beyond the published number by more than half of the gap."""
        return self.closes > CLOSES[1]

    @property
    def loses(self) -> bool:
        """True if the cell agrees with the published number without the change and not with it."""
        printed = self.base.printed.value
        return printed is not None and self.agrees and abs(self.after - printed) > self.tolerance


class Effect(NamedTuple):
    """The effect of a change on the cells in which it was tried alone."""

    change: Change
    scale: str  # of the sweeps that were compared; "" if there are none
    shifts: list[Shift]  # the largest first
    trials: list[FinishedTrial]  # with the change and without
    commands: list[str]  # that trained those with the change

    @property
    def size(self) -> float:
        """The mean move in points, whichever way; NaN if nothing was measured."""
        return fmean(abs(shift.points) for shift in self.shifts) if self.shifts else math.nan

    @property
    def chosen(self) -> list[tuple[str, str]]:
        """Return each method with what a search of it chose otherwise than without the change, as text."""
        found = ((shift.base.printed.method, shift.chosen) for shift in self.shifts if shift.chosen)
        return list(dict.fromkeys(found))

    @property
    def gaps(self) -> list[Shift]:
        """The cells that do not agree with the published number without the change."""
        return [shift for shift in self.shifts if not math.isnan(shift.closes)]

    @property
    def agreeing(self) -> list[Shift]:
        """The cells that agree with the published number without it."""
        return [shift for shift in self.shifts if shift.agrees]


def effects(
    layout: Layout, every: list[Ledger], scale: str, compared: Callable[[str, str], Comparison]
) -> list[Effect]:
    """Return the effect of each change that a reading of a table's code makes, the largest first, what was not measured
    last. scale: the one to prefer. compared: makes the table at a scale under a reading.
    """
    known = reading.read(layout.paper)
    changes = known.of(Path(layout.sweeps[0]).stem).values() if known is not None else ()
    found = [_effect(change, _scale(layout, every, change.name, scale), compared) for change in changes]
    return sorted(found, key=lambda effect: math.inf if math.isnan(effect.size) else -effect.size)


def _scale(layout: Layout, every: list[Ledger], name: str, preferred: str) -> str:
    """Return the scale at which a change and its base were both swept; the newest of several; "" without any."""
    own = [ledger for ledger in every if ledger.sweep in layout.sweeps]
    bases = {ledger.scale for ledger in own if ledger.reading == PAPER}
    both = [ledger.scale for ledger in own if ledger.reading == name and ledger.scale in bases]
    return preferred if preferred in both else both[-1] if both else ""


def _effect(change: Change, scale: str, compared: Callable[[str, str], Comparison]) -> Effect:
    if not scale:
        return Effect(change, "", [], [], [])
    base, changed = compared(scale, PAPER), compared(scale, change.name)
    shifts = sorted(_shifts(change, base, changed), key=lambda shift: -abs(shift.points))
    commands = dict.fromkeys(command for cell in changed.trials_by_cell for command in cell.commands)
    return Effect(change, scale, shifts, [*base.trials, *changed.trials], list(commands))


def _shifts(change: Change, base: Comparison, changed: Comparison) -> Iterator[Shift]:
    """Yield each accuracy of the paper's rows that both have, but where both are of the same trials and the same."""
    for cell in base.paper_cells:
        before, after = base.by_seed(cell.printed), changed.by_seed(cell.printed)
        common = sorted(before.keys() & after.keys())
        if not common or in_points(0.0, cell.printed.unit) is None:
            continue
        mean, moved = (fmean(values[seed] for seed in common) for values in (before, after))
        other = changed.cell_trials(cell.trials.setting, cell.trials.method)
        same = all(cell.trials.finished[seed].identity == other.finished[seed].identity for seed in common)
        if not (same and mean == moved) and math.isfinite(moved - mean):
            predicted = change.expected.get(cell.printed.method, {}).get(cell.printed.metric, "")
            std = mean_over_seeds([before[seed] for seed in common]).std
            near = tolerance(cell.printed, cell.metric.decimals, std, len(common))
            yield Shift(cell, mean, moved, near, len(common), predicted, _chosen(cell.trials, other))


def _chosen(before: CellTrials, after: CellTrials) -> str:
    """Return what a search chose otherwise with a change than without it, as text; "" if that is the same."""
    old, new = (trials.winner or {} for trials in (before, after))
    return ", ".join(
        f"{key.rpartition('.')[2]} {as_override(new[key])} in place of {as_override(old[key])}"
        for key in new
        if key in old and new[key] != old[key]
    )
