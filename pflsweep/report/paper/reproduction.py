"""A paper's table under each reading that is trained, how far each is from the published one, and what explains it."""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from statistics import fmean
from typing import Any, NamedTuple

from pflsweep.config.reading import CODE, PAPER
from pflsweep.records.ledger import Ledger
from pflsweep.report.paper import deviations, layout
from pflsweep.report.paper.claims import Ruling
from pflsweep.report.paper.comparison import Cell, Comparison
from pflsweep.report.paper.effects import Effect, Shift, effects
from pflsweep.report.paper.layout import Layout
from pflsweep.report.paper.rulings import others_needed, rulings
from pflsweep.report.paper.store import FinishedTrial, Store, TrialReader
from pflsweep.util.errors import UserError

DECIDED = {True: "holds", "partly": "holds in part", False: "does not hold"}
COUNTED = DECIDED | {None: "cannot be decided yet"}
VERDICTS = {**COUNTED, "undecidable": "cannot be decided"}
READINGS = (PAPER, CODE)  # of a table; other readings of the code are single changes
Ruled = list[tuple[dict[str, Any], Ruling]]


class Verdict(NamedTuple):
    """How far a table under one reading is from the published numbers. Rows without public code count nowhere."""

    agree: int  # cells, as agreement.py says
    compared: int  # that have our number and a printed one
    difference: float  # mean absolute difference of the accuracies among them, in points; NaN without any
    tau: float  # Kendall's, mean over the columns (or rows) that have one; NaN without any
    claims: dict[str, int]  # verdict -> claims
    so_far: dict[str, int]  # the same of open claims that the settings whose cells are all there decide


class Stores:
    """The sweeps of a folder of runs, by scale and reading."""

    def __init__(self, trials: TrialReader, every: list[Ledger]) -> None:
        self.trials, self.every = trials, every
        self._known: dict[tuple[str, str], Store] = {}

    def store(self, scale: str, reading: str) -> Store:
        if (scale, reading) not in self._known:
            self._known[scale, reading] = Store(self.trials, scale, self.every, reading)
        return self._known[scale, reading]

    def best_scale(self, sweeps: Iterable[str]) -> str:
        """Return the paper's own scale where some sweeps have a finished trial of it, else that of the newest of them.

        Without any of them it is that of the newest sweep there is. Sweeps of single changes do not count.
        """
        tables = [ledger for ledger in self.every if ledger.reading in READINGS]
        own = [ledger for ledger in tables if ledger.sweep in sweeps]
        if any(ledger.scale == "paper" and any(group["trials"] for group in ledger.groups.values()) for ledger in own):
            return "paper"
        newest = (own or tables)[-1:]
        return newest[0].scale if newest else "paper"

    def readings(self, sweeps: Iterable[str], scale: str) -> list[str]:
        """Return the readings, paper and code, in which some sweeps were begun at a scale; the paper's without any."""
        begun = {ledger.reading for ledger in self.every if ledger.sweep in sweeps and ledger.scale == scale}
        return [reading for reading in READINGS if reading in begun] or [PAPER]


@dataclass(frozen=True)
class Reproduction:
    """A table at one scale. The readings have the same rows and columns."""

    readings: dict[str, Comparison]
    ruled: dict[str, Ruled]  # by reading: the claims, judged
    effects: list[Effect]

    @property
    def layout(self) -> Layout:
        return self.first.layout

    @property
    def first(self) -> Comparison:
        return next(iter(self.readings.values()))

    @property
    def scale(self) -> str:
        return self.first.store.scale

    @property
    def trials(self) -> list[FinishedTrial]:
        """The trials behind its numbers, those of single changes too."""
        moved = [trial for effect in self.effects for trial in effect.trials]
        found = [trial for comparison in self.readings.values() for trial in comparison.trials]
        return list({trial.identity: trial for trial in (*found, *moved)}.values())

    @cached_property
    def verdicts(self) -> dict[str, Verdict]:
        return {reading: _verdict(comparison, self.ruled[reading]) for reading, comparison in self.readings.items()}

    @cached_property
    def fewer_rounds(self) -> set[tuple[int, int]]:
        """The rounds of our trials and those that the paper states, for each setting in which ours are fewer.

        A reading of the code may state fewer rounds than the paper: at the scale `paper` it is no smaller for that.
        """
        tables = [
            comparison for reading, comparison in self.readings.items() if self.scale != "paper" or reading == PAPER
        ]
        return set[tuple[int, int]]().union(*map(deviations.fewer_rounds, tables))

    @property
    def explained(self) -> dict[str, set[tuple[str, ...]]]:
        """The gaps of the paper's reading that a change alone explains, by change, of sweeps at the page's scale."""
        return self._moved(lambda shift: shift.explains)

    @property
    def lost(self) -> dict[str, set[tuple[str, ...]]]:
        """The cells of reading `paper` that agree, but no longer do with a single change, by change."""
        return self._moved(lambda shift: shift.loses)

    def _moved(self, how: Callable[[Shift], bool]) -> dict[str, set[tuple[str, ...]]]:
        """Return the keys of the cells that a change moves in some way, by change; changes without any are left out."""
        at = [effect for effect in self.effects if effect.scale == self.scale]
        found = {effect.change.name: {shift.base.printed.key for shift in effect.shifts if how(shift)} for effect in at}
        return {change: cells for change, cells in found.items() if cells}


def reproduction(name: str, stores: Stores, scale: str) -> Reproduction:
    """Return a table under each reading that is trained. Raises UserError if its trials do not belong together."""
    plain = layout.read(name)
    names = stores.readings(plain.sweeps, scale)
    asked = [cell for each in names for ledger in stores.store(scale, each).of(plain.sweeps) for cell in ledger.groups]
    table = layout.with_own(plain, asked)

    @cache  # each change is compared with the same table of the paper's reading
    def compared(scale: str, reading: str) -> Comparison:
        return Comparison(table, stores.store(scale, reading))

    readings = {reading: compared(scale, reading) for reading in names}
    ruled = {reading: _ruled(each) for reading, each in readings.items()}
    return Reproduction(readings, ruled, effects(table, stores.every, scale, compared))


def _ruled(comparison: Comparison) -> Ruled:
    others = [Comparison(layout.read(other), comparison.store) for other in others_needed(comparison.layout)]
    return list(rulings(comparison, [other for other in others if _sound(other)]))


def _sound(comparison: Comparison) -> bool:
    """Return whether a table can be made; where not, its own report says why."""
    try:
        return bool(comparison.cells)
    except UserError:
        return False


def _verdict(comparison: Comparison, ruled: Ruled) -> Verdict:
    agree = [cell.agrees for cell in comparison.paper_cells if cell.agrees is not None]
    points = [abs(cell.points) for cell in comparison.paper_cells if cell.points is not None]
    taus = [each.tau for each in comparison.taus() if not math.isnan(each.tau)]
    said = Counter(VERDICTS[ruling.holds] for _, ruling in ruled)
    so_far = Counter(VERDICTS[ruling.so_far] for _, ruling in ruled if ruling.settings)
    mean, tau = (fmean(numbers) if numbers else math.nan for numbers in (points, taus))
    claims = {word: said[word] for word in COUNTED.values()}
    return Verdict(sum(agree), len(agree), mean, tau, claims, {word: so_far[word] for word in DECIDED.values()})


def furthest(comparison: Comparison) -> list[Cell]:
    """Return the accuracies that do not agree with the published number, the largest difference first."""
    apart = [cell for cell in comparison.paper_cells if cell.agrees is False and cell.points is not None]
    return sorted(apart, key=lambda cell: -abs(cell.points or 0.0))
