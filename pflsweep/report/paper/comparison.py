"""A table made anew: each printed number beside ours, and the order of both."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from itertools import groupby
from statistics import fmean
from typing import Any, NamedTuple

import pandas as pd

from pflsweep.config import reading
from pflsweep.report.paper import layout, metrics
from pflsweep.report.paper.agreement import POINTS, in_points, kendall, tolerance
from pflsweep.report.paper.claims import Statistic
from pflsweep.report.paper.layout import Layout, Metric
from pflsweep.report.paper.metrics import Value
from pflsweep.report.paper.published import Column, Printed
from pflsweep.report.paper.store import CellTrials, FinishedTrial, Store
from pflsweep.report.stats import Interval, gain, rounded


class Cell(NamedTuple):
    """A printed number and ours."""

    printed: Printed
    metric: Metric
    trials: CellTrials
    value: Value  # in the printed unit
    rank: int  # 1: the best of its column, 2: the second; 0: neither
    against: list[CellTrials]  # of the other rows that it is measured against
    std_over_seeds: float | None  # the std over seeds of what stands there, whatever its own is over

    @property
    def has_number(self) -> bool:
        return not math.isnan(self.value.mean)

    @property
    def lacking(self) -> list[CellTrials]:
        """The trials that the cell still needs: its own seeds, then the same seeds of what it is measured against."""
        if self.trials.without_code:
            return []
        if not self.trials.complete:
            return [self.trials]
        return [other for other in self.against if not other.finished.keys() >= set(self.trials.seeds)]

    @property
    def why_empty(self) -> str:
        """The reason for which a cell has no number: no code, none, failed, or missing."""
        if self.trials.without_code:
            return "no code"
        return "none" if self.unfillable else "failed" if self.trials.failed else "missing"

    @property
    def complete(self) -> bool:
        """True if it rests on all seeds that were asked for, its own and those of what it is measured against."""
        return self.has_number and not self.lacking

    @property
    def unfillable(self) -> bool:
        """True if everything is trained and there is no such number: the method has none."""
        return not self.has_number and not self.lacking

    @property
    def difference(self) -> float | None:
        """Ours minus the printed one."""
        if not self.has_number or self.printed.value is None:
            return None
        return 0.0 if self.value.mean == self.printed.value else self.value.mean - self.printed.value

    @property
    def agrees(self) -> bool | None:
        """True if it agrees with the published number, by the rule of agreement.py; None if either is missing."""
        return None if self.difference is None else abs(self.difference) <= self.tolerance

    @property
    def tolerance(self) -> float:
        """The largest difference from the published number at which the cell agrees, by the rule of agreement.py."""
        return tolerance(self.printed, self.metric.decimals, self.std_over_seeds, self.value.n)

    @property
    def points(self) -> float | None:
        """The difference from the published number in points; None if it is not an accuracy, or has no number."""
        return None if self.difference is None else in_points(self.difference, self.printed.unit)


class PairedTest(NamedTuple):
    """The paper's own method minus another one, client by client under the same seed."""

    column: int
    method: str
    gain: Interval
    p: list[float]  # by seed: Wilcoxon's signed ranks over clients; NaN if none differs


class Tau(NamedTuple):
    """Kendall's tau of our order and the published one, over pairs that the paper separates by more than a point."""

    line: str  # the column or row
    tau: float  # NaN if the paper separates no pair
    n: int  # over how many numbers
    of: int  # of how many that there can be


class Comparison:
    """A layout filled from a store."""

    def __init__(self, table: Layout, store: Store) -> None:
        cells = [cell for ledger in store.of(table.sweeps) for cell in ledger.groups]
        self.reading = reading.table_reading(table.sweeps[0], store.reading)
        read = table._replace(views=table.views | self.reading.views, rounds=table.rounds | self.reading.rounds)
        self.layout, self.store = layout.with_own(read, cells), store
        self._cell_trials: dict[tuple[str, str], CellTrials] = {}  # by setting and method: all that were asked for
        self._accuracies: dict[tuple[Any, ...], pd.Series] = {}

    @cached_property
    def cells(self) -> dict[tuple[int, int], Cell]:
        """The cells by row and by the number of the column."""
        found = {}
        for printed in self.layout.printed:
            column = self.layout.column_of(printed)
            if column is not None:
                metric = self.layout.metrics[printed.metric]
                place = (printed.row, self.layout.columns.index(column))
                trials = self.cell_trials(self.layout.setting_of(printed), printed.method)
                std = self.std_over_seeds(printed)
                found[place] = Cell(printed, metric, trials, self.value(printed), 0, self._against(printed), std)
        return self._ranked(found)

    def by_column(self) -> Iterator[tuple[int, Cell]]:
        """Yield each cell with the number of its column, in the order of columns and rows."""
        for (_, column), cell in sorted(self.cells.items(), key=lambda each: each[0][::-1]):
            yield column, cell

    @cached_property
    def own_rows(self) -> set[int]:
        """The rows that the published table does not have: a user's own methods."""
        there = {printed.row for printed in self.layout.printed if printed.text}
        return set(self.layout.rows) - there if self.layout.in_print else set()

    @property
    def paper_cells(self) -> list[Cell]:
        """The cells of the paper's rows."""
        return [cell for cell in self.cells.values() if cell.printed.row not in self.own_rows]

    @property
    def complete(self) -> int:
        """How many of the paper's cells rest on all seeds that were asked for."""
        return sum(cell.complete for cell in self.paper_cells)

    @property
    def fillable(self) -> int:
        """How many of the paper's cells can be filled."""
        return sum(not cell.unfillable for cell in self.paper_cells)

    @property
    def trials_by_cell(self) -> list[CellTrials]:
        """The trials of each cell of its sweeps, also of those that gains are measured against."""
        _ = self.cells
        return list(self._cell_trials.values())

    @property
    def trials(self) -> list[FinishedTrial]:
        """All trials that are behind the cells."""
        found = {trial.identity: trial for trials in self.trials_by_cell for trial in trials.finished.values()}
        return list(found.values())

    def trials_of(self, setting: str) -> list[FinishedTrial]:
        """Return the trials of all methods in a setting."""
        own = [trials for trials in self.trials_by_cell if trials.setting == setting]
        return [trial for trials in own for trial in trials.finished.values()]

    def first_trials(self, has: Callable[[FinishedTrial], bool], method: str = "") -> dict[str, FinishedTrial]:
        """Return the first trial (of a method) for which `has` is true, by the sweep's setting, in the order of columns
        and rows.
        """
        found: dict[str, FinishedTrial] = {}
        for _, cell in self.by_column():
            for trial in cell.trials.finished.values() if method in ("", cell.trials.method) else ():
                if cell.trials.setting not in found and has(trial):
                    found[cell.trials.setting] = trial
        return found

    def cell_trials(self, setting: str, method: str) -> CellTrials:
        if (setting, method) not in self._cell_trials:
            known = self.store.cell_trials(self.layout.sweeps, setting, method)
            self._cell_trials[setting, method] = replace(known, without_code=not self.reading.has_code(method))
        return self._cell_trials[setting, method]

    def seeds(self, setting: str) -> list[int]:
        """Return the seeds asked for of a setting."""
        return sorted(
            {seed for (name, _), trials in self._cell_trials.items() if name == setting for seed in trials.seeds}
        )

    def _against(self, printed: Printed) -> list[CellTrials]:
        """Return the trials of the other rows that a number is measured against."""
        metric = self.layout.metrics[printed.metric]
        if metric.relative == "slowest":
            methods = [row.method for row in self._rivals(printed)]
        else:
            plain = printed.method.removesuffix(metric.minus) if metric.minus else ""
            methods = [metric.relative, metric.options.get("baseline", ""), plain]
        setting = self.layout.setting_of(printed)
        return [self.cell_trials(setting, each) for each in methods if each not in ("", printed.method)]

    def _rivals(self, printed: Printed) -> list[Printed]:
        """Return the paper's rows of which the slowest is looked for."""
        place = (printed.setting, printed.metric)
        same = [each for each in self.layout.printed if (each.setting, each.metric) == place]
        return [each for each in same if each.row not in self.own_rows]

    def value(self, printed: Printed) -> Value:
        """Return our number for a printed one, in its unit."""
        metric = self.layout.metrics[printed.metric]
        factor = _factor(metric, printed)
        if metric.relative:
            return self._relative(metric, printed)
        own = self._gain(metric, printed) if metric.minus else self._plain(metric, printed, printed.method)
        return Value(factor * own.mean, None if own.std is None else factor * own.std, own.n)

    def std_over_seeds(self, printed: Printed) -> float | None:
        """Return the std over seeds of our number for a printed one, whatever the shown std is over; None if the
        number is measured against another row.
        """
        return metrics.mean_over_seeds(list(self.by_seed(printed).values())).std

    def by_seed(self, printed: Printed) -> dict[int, float]:
        """Return our number for a printed one, of each seed alone; empty if it is measured against another row."""
        metric = self.layout.metrics[printed.metric]
        if metric.relative or metric.minus:
            return {}
        values = self._by_seed(metric, printed, printed.method)
        return {seed: _factor(metric, printed) * value for seed, value in values.items()}

    def _gain(self, metric: Metric, printed: Printed) -> Value:
        """Return how far a row is above the row without the suffix of its name, over the seeds that both have."""
        mine, theirs, seeds = self._both(metric, printed, printed.method.removesuffix(metric.minus))
        return Value(mine - theirs, None, seeds)

    def _both(self, metric: Metric, printed: Printed, other: str) -> tuple[float, float, int]:
        """Return the means of a row and of another one over the seeds that both have, and how many these are."""
        pair = [self._by_seed(metric, printed, method) for method in (printed.method, other)]
        seeds = [seed for seed in pair[0] if seed in pair[1]]
        mine, theirs = (metrics.mean_over_seeds([by_seed[seed] for seed in seeds]).mean for by_seed in pair)
        return mine, theirs, len(seeds)

    def _relative(self, metric: Metric, printed: Printed) -> Value:
        """Return a number relative to another row's, over the seeds that both have, or that of the column's slowest row
        relative to it, where every row has its number.
        """
        factor = metric.times * (100 if printed.unit == "percent" else 1)
        if metric.relative != "slowest":
            mine, theirs, seeds = self._both(metric, printed, metric.relative)
            return Value(factor * _ratio(mine, theirs), None, seeds)
        own = self._plain(metric, printed, printed.method)
        numbers = [self._plain(metric, printed, row.method).mean for row in self._rivals(printed)]
        there = [number for number in numbers if math.isfinite(number)]
        slowest = max(there) if there and not any(map(math.isnan, numbers)) else math.nan
        return Value(factor * _ratio(slowest, own.mean), None, own.n)

    def _plain(self, metric: Metric, printed: Printed, method: str) -> Value:
        """Return a quantity over seeds or clients, before it is related to others."""
        if metric.over == "clients" and metric.quantity not in metrics.NUMBERS:
            trials = self.cell_trials(self.layout.setting_of(printed), method)
            return metrics.mean_over_clients(list(self._by_client(metric, printed, trials).values()))
        value = metrics.mean_over_seeds(list(self._by_seed(metric, printed, method).values()))
        return value if metric.over == "seeds" else value._replace(std=None)

    def _by_seed(self, metric: Metric, printed: Printed, method: str) -> dict[int, float]:
        """Return a quantity of each seed."""
        trials = self.cell_trials(self.layout.setting_of(printed), method)
        if metric.quantity in metrics.NUMBERS:
            quantity, own = metrics.NUMBERS[metric.quantity], {**metric.options, "row": method}
            return {seed: quantity(trial, own) for seed, trial in trials.finished.items()}
        if metric.options.get("by") == "samples":
            view, options = self.layout.view(metric, method), self._options(metric, trials.method)
            return {s: metrics.accuracy_by_samples(trial, options, view) for s, trial in trials.finished.items()}
        take = "min" if metric.options.get("take") == "min" else "mean"
        return {seed: float(values.agg(take)) for seed, values in self._by_client(metric, printed, trials).items()}

    def by_client(self, cell: Cell) -> list[pd.Series]:
        """Return the clients' numbers of which a cell is the mean, a series per seed."""
        return list(self._by_client(cell.metric, cell.printed, cell.trials).values())

    def _options(self, metric: Metric, method: str) -> dict[str, Any]:
        """Return a metric's options as a method's rows have them."""
        rounds = self.layout.rounds
        return {**metric.options, **({"round": rounds[method]} if method in rounds else {})}

    def _by_client(self, metric: Metric, printed: Printed, trials: CellTrials) -> dict[int, pd.Series]:
        """Return accuracies or gains by client, for each seed that has them."""
        options = self._options(metric, trials.method)
        if options.get("group") == "setting":
            options["group"] = printed.setting.partition("=")[2]

        def accuracy(trial: FinishedTrial, method: str) -> pd.Series:
            view = self.layout.view(metric, method)
            # Two columns may be of one record, as of different rounds
            key = (trial.identity, trial.last, view, *(options.get(name) for name in ("target", "group", "round")))
            if key not in self._accuracies:
                self._accuracies[key] = metrics.accuracy(trial, options, view)
            return self._accuracies[key]

        own = {seed: accuracy(trial, trials.method) for seed, trial in trials.finished.items()}
        if metric.quantity == "accuracy":
            return own
        base = self.cell_trials(trials.setting, options["baseline"])
        both = {seed: values for seed, values in own.items() if seed in base.finished}
        return {seed: (v - accuracy(base.finished[seed], base.method)).dropna() for seed, v in both.items()}

    def _ranked(self, found: dict[tuple[int, int], Cell]) -> dict[tuple[int, int], Cell]:
        """Return all cells, with the ranks of the best and the second of each column, or of each row; equal as shown is
        equal.
        """
        ranked = dict(found)
        for places in self._compared_places(found):
            if found[places[0]].metric.best != "none":
                sign = -1 if found[places[0]].metric.best == "low" else 1
                known = [p for p in places if not math.isnan(found[p].value.mean)]
                # A goal that is never reached is a result, but none that may be marked: infinite, or 0 relative to the
                # slowest row
                never = (math.inf, 0.0) if found[places[0]].metric.relative == "slowest" else (math.inf,)
                there = {p: found[p] for p in known if abs(found[p].value.mean) not in never}
                shown = {p: sign * rounded(m.value.mean, m.metric.decimals) for p, m in there.items()}
                top = sorted(set(shown.values()), reverse=True)[:2]
                enough = len(known) > (1 if len(known) == len(places) else 2)  # of the first two rows one says nothing
                for place, number in shown.items():
                    if number in top and enough:
                        ranked[place] = found[place]._replace(rank=1 + top.index(number))
        return ranked

    def _compared_places(self, found: dict[tuple[int, int], Cell]) -> list[list[tuple[int, int]]]:
        """Return the places that are compared with each other."""
        along = 1 if self.layout.compare == "columns" else 0
        places = sorted(found, key=lambda place: place[along])
        return [list(group) for _, group in groupby(places, key=lambda place: place[along])]

    def taus(self) -> Iterator[Tau]:
        """Yield Kendall's tau of each column or row with at least three numbers to compare."""
        for places in self._compared_places(self.cells):
            fillable = [m for p in places if (m := self.cells[p]).printed.value is not None and not m.unfillable]
            pairs = [(m.value.mean, m.printed.value) for m in fillable if m.has_number and m.printed.value is not None]
            if len(pairs) > 2:
                tau = kendall(pairs, POINTS.get(fillable[0].printed.unit, 0.0))
                yield Tau(self._line_name(places[0]), tau, len(pairs), len(fillable))

    def _line_name(self, place: tuple[int, int]) -> str:
        row, column = place
        return title(self.layout.columns[column]) if self.layout.compare == "columns" else self.layout.rows[row]

    def statistics(self) -> list[Statistic]:
        """Return our numbers of the paper's rows as claims see them, with the EMDs that FedFomo prints in heads of
        columns.
        """
        cells = [
            layout.statistic_of(
                self.layout, cell.printed, cell.value.mean, cell.value.std, std_over_seeds=cell.std_over_seeds
            )
            for cell in self.paper_cells
            if cell.complete
        ]
        return cells + self.heads()

    def heads(self) -> list[Statistic]:
        """Return the EMD of our partitions where a column's head prints one, over the trials of its setting."""
        found = []
        for head in layout.heads(self.layout):
            trials = self.trials_of(f"{head.dataset}/{head.setting}")
            emds = [trial.meta["statistics"]["emd_code"] for trial in trials if "statistics" in trial.meta]
            if emds:
                found.append(head._replace(value=fmean(emds)))
        return found

    def by_samples(self) -> Iterator[tuple[int, Cell, Value]]:
        """Yield accuracies on own test data where each sample counts the same, with the number of the column."""
        for column, cell in self.by_column():
            options = self._options(cell.metric, cell.trials.method)
            elsewhere = (
                cell.metric.minus
                or cell.metric.relative
                or options.get("target", "own") != "own"
                or options.keys() & {"group", "take", "by"}
            )
            if cell.has_number and cell.metric.quantity == "accuracy" and not elsewhere:
                view = self.layout.view(cell.metric, cell.trials.method)
                trials, factor = cell.trials.finished.values(), _factor(cell.metric, cell.printed)
                found = [factor * metrics.accuracy_by_samples(trial, options, view) for trial in trials]
                yield column, cell, metrics.mean_over_seeds(found)

    def paired(self) -> Iterator[PairedTest]:
        """Yield the paper's method against each other one, where accuracies are the clients' own."""
        for column, cell in self.by_column():
            own = self.cell_trials(cell.trials.setting, self.layout.own)
            clients = cell.metric.of_clients and not cell.metric.minus and not cell.printed.setting.endswith("=mean")
            if clients and cell.trials.method != self.layout.own:
                theirs, ours = (self._by_client(cell.metric, cell.printed, trials) for trials in (cell.trials, own))
                pairs = [(ours[seed] - theirs[seed]).dropna() for seed in ours if seed in theirs]
                if pairs and all(map(len, pairs)):
                    mean = gain([each.to_numpy(dtype=float) for each in pairs])
                    tests = [_wilcoxon(differences) for differences in pairs]
                    yield PairedTest(column, cell.printed.method, mean, tests)


def _factor(metric: Metric, printed: Printed) -> float:
    """Return the factor from a quantity to the printed unit."""
    return metric.times * (100 if printed.unit == "percent" and metric.quantity in metrics.SHARES else 1)


def _ratio(number: float, base: float) -> float:
    """Return a number divided by another; NaN if that is 0: nothing can be said relative to it."""
    return number / base if base else math.nan


def _wilcoxon(differences: pd.Series) -> float:
    """Return Wilcoxon's p over the clients of one seed: under another seed a client has another share of the data."""
    from scipy.stats import wilcoxon

    # Quotients of counts differ in their last bit where they are equal: these are ties, which share a rank
    differences = differences.round(9)
    apart = differences[differences != 0]
    return float(wilcoxon(apart).pvalue) if len(apart) else math.nan


def title(column: Column) -> str:
    """Return a column's header with the one above it."""
    return ", ".join(filter(None, [column.group, column.header]))
