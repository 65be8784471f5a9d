"""Trials as one DataFrame, one row per trial, and their figures: what notebooks work with."""

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pandas as pd

from pflsweep.config.identity import RUNTIME, with_neutral
from pflsweep.config.keys import PLUGS, flat, under
from pflsweep.records.record import Record
from pflsweep.records.searches import find_searches
from pflsweep.records.select import Chosen
from pflsweep.report import figures, naming
from pflsweep.report.compare import Setting, band_of, check_baseline, files_of, method_of, settings
from pflsweep.report.quantities import summary
from pflsweep.util.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger(__name__)
NAMES = ("method", "dataset", "partition", "model", "seed")
RESULTS = (
    *("role", "accuracy", "best", "best_round", "std_over_clients", "worst10", "global_accuracy"),
    *("rounds", "seconds", "floats_sent", "record"),
)
MAIN = ("accuracy", "best", "std_over_clients", "rounds", "seconds")  # results that are shown
WIDE = 20  # columns; a table of more is shown by its main ones


class Trials(pd.DataFrame):
    """A DataFrame of trials, which shows the columns that tell them apart and their main results; it has them all."""

    @property
    def _constructor(self) -> type["Trials"]:
        return Trials

    def _shown(self) -> pd.DataFrame:
        if len(self.columns) <= WIDE:
            return pd.DataFrame(self)
        keys = [*NAMES, *self._naming_keys(), *MAIN]
        return pd.DataFrame(self)[[key for key in dict.fromkeys(keys) if key in self]].round(4)

    def _naming_keys(self) -> list[str]:
        """Return the keys that tell these trials apart, but for what the method's name says."""
        rows = [{str(k): v for k, v in row.items() if not pd.isna(v)} for row in self.to_dict("records")]
        roles = ["role"] if len(set(self.get("role", ()))) > 1 else []
        said = {*NAMES, *RESULTS, "algorithm", *PLUGS, "train.rounds"}
        return [*roles, *(key for key in naming.differing_keys(rows) if key not in said)]

    def __repr__(self) -> str:
        return self._shown().to_string(max_rows=pd.options.display.max_rows, na_rep="-")

    def _repr_html_(self) -> str:
        return self._shown().to_html(max_rows=pd.options.display.max_rows, na_rep="-", border=0)


def trials(records: Iterable[Record], searching: Iterable[str] = ()) -> Trials:
    """Return one row per trial: names, then its config by full key, then its results. Accuracies are in [0, 1].

    A key that a trial's options do not have is missing there. searching: identities of trials that a search has tried,
    whose `role` is search; that of all others is final.
    """
    found, lines = set(searching), []
    for record in records:
        meta, got = record.meta, summary(record)
        config = {
            key: _cell(value) for key, value in with_neutral(flat(record.config)).items() if not under(key, RUNTIME)
        }
        lines.append({
            **{name: meta[name] for name in NAMES},
            "method": method_of(record),
            **{key: value for key, value in {**config, **files_of(record)}.items() if key not in NAMES},
            **dict(zip(RESULTS, (
                "search" if meta["identity"] in found else "final",
                *(got.last, got.best, got.best_round, got.std, got.worst10, got.global_last),
                *(record.done, got.seconds, got.floats_down + got.floats_up, record.place),
            ), strict=True)),
        })  # fmt: skip
    table = Trials(lines)
    if not lines:
        return table
    return Trials(table[[*(key for key in table if key not in RESULTS), *RESULTS]])


def of_chosen(chosen: Chosen, searches: bool) -> Trials:
    """Return the finished trials among some runs. What cannot be read is a warning.

    searches: also those of searches, whose tables are not read otherwise.
    """
    for line in chosen.damaged:
        log.warning("left out: %s", line)
    found = find_searches(chosen.records, chosen.places).trials
    return trials((each for each in chosen.finished if searches or each.meta["identity"] not in found), found)


def plot(table: pd.DataFrame) -> "Figure":
    """Return accuracy by round of trials of one setting: one line per method, mean and band over its seeds."""
    setting = _setting(table)
    return figures.accuracy(
        [row.curve() for row in setting.rows], f"Personal models, {setting.name}", band_of(setting.rows)
    )


def plot_gains(table: pd.DataFrame, baseline: str | None = None) -> "Figure":
    """Return how much each client gains over a baseline method, by default the first, after the last round. Raises
    UserError where no other method has a seed of the baseline.
    """
    setting = _setting(table)
    check_baseline([setting], baseline, "plot_gains: baseline=")
    base = setting.baseline(baseline)
    assert base is not None, "it has been checked"
    pairs = {row.label: row.gains(base) for row in setting.rows if row is not base}
    pairs = {label: gains for label, gains in pairs.items() if gains}
    if not pairs:
        raise UserError(f"plot_gains: no other method has a seed of {base.label}, which gains are over.")
    return figures.gains(pairs, base.label, [row.label for row in setting.rows], f"Gains, {setting.name}")


def _setting(table: pd.DataFrame) -> Setting:
    """Return the one setting of some trials. Raises UserError if they are of several, or none."""
    if not {"record", "rounds"} <= set(table) or table.empty:
        raise UserError("plot: these are no trials: give it what pflsweep.run_sweep or pflsweep.load returns.")
    records = [Record.as_of(place, int(n)) for place, n in zip(table["record"], table["rounds"], strict=True)]
    searches = find_searches(records)
    found = settings(records, searches.keys, searches.partial)
    if len(found) > 1:
        names = "; ".join(setting.name for setting in found)
        raise UserError(
            f"plot: these trials are of {len(found)} settings, which are never averaged together: {names}. Choose one, "
            'as in trials[trials["partition"] == "shards"].'
        )
    if not found[0].rows:
        raise UserError("plot: no client of these trials was ever scored, so that there is no accuracy to plot.")
    return found[0]


def _cell(value: Any) -> Any:
    """Return a config's value as a table can group by it."""
    return str(value) if isinstance(value, list | dict) else value
