"""Runs side by side: grouped by setting, one row per method, seeds averaged, clients paired with a baseline."""

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pflsweep.config.identity import (
    NEUTRAL,
    RUNTIME,
    effective,
    has_own_rows,
    is_shipped,
    method_name,
    raised,
    with_neutral,
    without_neutral,
)
from pflsweep.config.keys import PLUGS, as_override, flat, under
from pflsweep.records.record import Record
from pflsweep.records.select import comparable, finished
from pflsweep.report import naming
from pflsweep.report.quantities import (
    Curve,
    Summary,
    by_round,
    client_accuracy,
    mean_curve,
    new_clients_accuracy,
    summary,
)
from pflsweep.report.stats import Interval, interval, over_seeds
from pflsweep.util.errors import UserError, nearest

Array = NDArray[np.float64]
PARTIAL = " †"  # marks a row whose winner was elected although points of its search have no result

# Rows of one table may differ in the method, what is plugged into it, the seed, in what is scored beside the accuracy,
# and in what changes no number, as a study of the trial
MAY_DIFFER = ("algorithm", *PLUGS, "seed", "metrics", "study", *RUNTIME)
# Keys of metrics that change the accuracy itself: rows with other values are in other tables
SCORED = ("metrics.rows", "metrics.clients", "metrics.personal")
FILES = ("dataset.path", "partition.path")


def separates_settings(key: str, searched: Collection[str] = ()) -> bool:
    """Return whether rows with other values of a key do not belong into one table. searched: as in `settings`."""
    return key in SCORED or not under(key, (*MAY_DIFFER, *searched))


def _interval(values: Array) -> tuple[float, float]:
    return over_seeds(values)[1:3]


def band_of(rows: "Iterable[Row]") -> str:
    """Return what the bands of some rows' curves are; "" if none has one."""
    kinds = dict.fromkeys(row.interval.kind for row in rows if len(row.records) > 1)
    return f"band: {' or '.join(kinds)}" if kinds else ""


@dataclass(frozen=True)
class Row:
    """One method with one set of hyperparameters, under one or several seeds."""

    label: str
    records: list[Record]  # finished, by seed
    missing: list[Record] = field(default_factory=list)  # failed, interrupted or still running: named, not averaged
    tuned: dict[str, Any] = field(default_factory=dict)  # values of searched keys outside `algorithm`, such as train.lr
    # Finished, with a study; in `records` only where a seed has no other
    studied: list[Record] = field(default_factory=list)

    @cached_property
    def accuracies(self) -> dict[int, pd.Series]:
        """Seed -> accuracy by client, in the last evaluated round."""
        return {r.meta["seed"]: client_accuracy(r.clients_in(r.evaluated[-1])) for r in self.records}

    @cached_property
    def summaries(self) -> list[Summary]:
        return [summary(record) for record in self.records]

    @cached_property
    def interval(self) -> Interval:
        return interval([accuracy.to_numpy() for accuracy in self.accuracies.values()])

    def mean(self, name: str) -> float:
        """Return a field of Summary, averaged over the seeds."""
        return float(np.mean([getattr(each, name) for each in self.summaries]))

    def curve(self) -> Curve:
        """Return the mean over seeds of the rounds that all of them evaluated; the band is their interval (see
        `over_seeds`).
        """
        return mean_curve(self.label, [by_round(record) for record in self.records], _interval)

    def new_clients(self) -> Curve | None:
        """Return the mean over seeds of the clients that took part in no round, by epoch of fine-tuning; None if
        there are none.
        """
        curves = [curve for record in self.records if len(curve := new_clients_accuracy(record))]
        return mean_curve(self.label, curves, _interval) if curves else None

    def gains(self, baseline: "Row") -> list[Array]:
        """Return per-client differences to the baseline, one array for each seed in which both have scored a client."""
        common = [seed for seed in self.accuracies if seed in baseline.accuracies]
        pairs = [(self.accuracies[seed] - baseline.accuracies[seed]).dropna() for seed in common]
        return [differences.to_numpy(dtype=float) for differences in pairs if len(differences)]


@dataclass(frozen=True)
class Setting:
    """Runs that may stand in one table: equal in all but method, hyperparameters and seed."""

    name: str  # unique among the settings of a report
    config: dict[str, Any]  # flat: what they share
    differing_keys: list[str]  # the keys in which settings of the same report differ
    records: list[Record]  # finished or not
    rows: list[Row]  # with a finished run each

    @property
    def new_clients(self) -> list[Curve]:
        """The curve of each row that has new clients."""
        return [curve for row in self.rows if (curve := row.new_clients()) is not None]

    def baseline(self, method: str | None) -> Row | None:
        """Return the row called so (by its label, else by its method).

        Without a name it is the first row of naming.REFERENCES, or the first of all.
        """
        if method is None:
            usual = [row for name in naming.REFERENCES for row in self.rows if method_of(row.records[0]) == name]
            return next(iter([*usual, *self.rows]), None)
        named = [row for row in self.rows if row.label == method]
        named += [row for row in self.rows if method == method_of(row.records[0])]
        return named[0] if named else None


def settings(records: Iterable[Record], searched: Collection[str] = (), partial: Collection[str] = ()) -> list[Setting]:
    """Return the runs by setting, in the order in which they come. searched: keys that are hyperparameters as the
    methods' own are, since a sweep has searched them. partial: identities of final trials whose search elected a winner
    although points had no result; their rows are marked.
    """
    given = [(record, setting_of(record, searched)) for record in records]
    given += list(_at_earlier_ends(given))
    repeated = _repeated(given)
    groups: dict[str, list[Record]] = {}
    for record, config in given:
        if has_own_rows(config) and _key(_without_data(config)) not in repeated:
            config = _without_data(config)
        groups.setdefault(_key(config), []).append(record)
    rows = {key: _rows(group, searched, partial) for key, group in groups.items()}
    configs = {key: {**json.loads(key), **_shared_files(group)} for key, group in groups.items()}
    differing = naming.differing_keys([config for key, config in configs.items() if rows[key]])
    options = [tuple(str(group[0].meta[each]) for each in naming.OPTIONS) for group in groups.values()]
    names = dict(zip(groups, naming.names(options, list(configs.values())), strict=True))
    return [Setting(names[key], configs[key], differing, group, rows[key]) for key, group in groups.items()]


def _at_earlier_ends(given: list[tuple[Record, dict[str, Any]]]) -> Iterator[tuple[Record, dict[str, Any]]]:
    """Yield each continued trial once more as of an earlier end, if other trials of its setting ended at that round or
    it is not finished now: training one trial further does not take it out of a comparison.
    """
    keys = [_key({**config, "train.rounds": None}) for _, config in given]
    lengths: dict[str, set[int]] = {}
    for key, (_, config) in zip(keys, given, strict=True):
        lengths.setdefault(key, set()).add(config["train.rounds"])
    for key, (record, config) in zip(keys, given, strict=True):
        sessions = record.meta.get("sessions", [])
        ended = {session["from"] - 1 for session in sessions} & lengths[key]
        if not finished(record):
            # Its latest result, which an interruption does not have
            ended.add(max((each["from"] - 1 for each in sessions if each.get("after") == "finished"), default=0))
        for rounds in sorted(ended):
            if rounds < config["train.rounds"] and rounds in record.scored:
                past = Record.as_of(record.place, rounds)
                # Pages say how many rounds it has by now
                past.status |= {"target": record.status["target"]}
                yield past, {**config, "train.rounds": rounds}


def _shared_files(group: list[Record]) -> dict[str, str]:
    """Return the files from which all of some runs were read, by key. Settings are told apart by what is in the files,
    and named by them.
    """
    first, *others = [files_of(record) for record in group]
    return {key: file for key, file in first.items() if all(other.get(key) == file for other in others)}


def _repeated(given: Iterable[tuple[Record, dict[str, Any]]]) -> set[str]:
    """Return the settings, without their data, of which one seed was trained on several data."""
    data: dict[tuple[str, int], set[str]] = {}
    for record, config in given:
        key = _key(_without_data(config)), record.meta["seed"]
        data.setdefault(key, set()).add(str(config["data_checksum"]))
    return {key for (key, _), found in data.items() if len(found) > 1}


def _without_data(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key != "data_checksum"}


def _key(config: dict[str, Any]) -> str:
    return json.dumps(config, sort_keys=True)


def check_baseline(found: list[Setting], method: str | None, flag: str = "--baseline ") -> None:
    """Raise UserError if no setting knows the baseline. flag: what stood before it, for the message."""
    if method is None or any(setting.baseline(method) for setting in found):
        return
    known = sorted({row.label for setting in found for row in setting.rows})
    raise UserError(
        f"{flag}{method}: no chosen run has this method.{nearest(method, known)} There are: {', '.join(known)}."
    )


def setting_of(record: Record, searched: Collection[str] = ()) -> dict[str, Any]:
    """Return the flat config without what rows may differ in; rounds as trained (a run may have been extended).

    Options of the user's own have the names of their files, since the config has those of their functions, which may
    all be `build`.
    """
    kept = {k: v for k, v in with_neutral(record.values).items() if separates_settings(k, searched)}
    kept |= {group: record.meta[group] for group in naming.OPTIONS if group in kept and not is_shipped(kept[group])}
    checksum = {"data_checksum": record.meta.get("data_checksum")}
    return {**kept, **checksum, "train.rounds": record.status.get("target", kept.get("train.rounds"))}


def files_of(record: Record) -> dict[str, str]:
    """Return by key the user's own files from which a run's data and partition were read.

    They are not among the keys that identify a run, which have checksums instead.
    """
    given = flat(record.config)
    found = [key for key in FILES if given.get(key) and (under(key, RUNTIME) or key not in effective(given))]
    return {key: str(given[key]) for key in found}


def method_of(record: Record) -> str:
    """Return the method's name, with what is plugged into it."""
    return method_name(record.meta)


def _rows(records: list[Record], searched: Collection[str], partial: Collection[str]) -> list[Row]:
    """Return a row for each method and its hyperparameters, where at least one run has finished."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(json.dumps([method_of(record), _hyper(record, searched)], sort_keys=True), []).append(record)
    rows = []
    for group in groups.values():
        done = [r for r in group if comparable(r)]
        siblings = [other[0] for other in groups.values() if method_of(other[0]) == method_of(group[0])]
        if done:
            seeds = {r.meta["seed"] for r in done}
            missing = [r for r in group if r.meta["seed"] not in seeds]
            studied = [r for r in done if _study(r)]
            mark = PARTIAL if any(r.meta["identity"] in partial for r in done) else ""
            label, tuned = _label(group[0], siblings, searched) + mark, _tuned(group[0], searched)
            rows.append(Row(label, _by_seed(done), missing, tuned, studied))
    return rows


def _by_seed(done: list[Record]) -> list[Record]:
    """Return one record per seed, in the order of seeds.

    A study or further metrics change none of a trial's numbers. A trial with a study is used only for a seed that has
    no trial without one.
    """
    found: dict[int, Record] = {}
    for record in sorted(done, key=lambda r: (r.meta["seed"], _study(r))):
        found.setdefault(record.meta["seed"], record)
    return list(found.values())


def _study(record: Record) -> bool:
    return bool(record.config.get("study"))


def _label(record: Record, siblings: list[Record], searched: Collection[str]) -> str:
    """Return the method, with the hyperparameters in which its rows differ."""
    aged = sorted(siblings, key=lambda each: each.meta["created"])  # the oldest source is source 1
    mine, others = _hyper(record, searched), [_hyper(each, searched) for each in aged]
    apart = [key for key in mine if any(other.get(key) != mine[key] for other in others)]
    sources = list(dict.fromkeys(str(other.get("code")) for other in others))
    detail = [
        # hashes of source of the user's own, which nobody can read
        f"source {sources.index(str(mine[key])) + 1}" if key == "code"
        else f"{key.removeprefix('algorithm.')}={as_override(mine[key])}"
        for key in apart
    ]  # fmt: skip
    return method_of(record) + (f" ({', '.join(detail)})" if detail else "")


def _hyper(record: Record, searched: Collection[str]) -> dict[str, Any]:
    """Return the keys that make a row: the method's hyperparameters, its plug-ins', what was searched beside them, the
    versions of their code or the code; and what is scored beside the accuracy, so that a row's runs all have it.
    """
    own = {k: v for k, v in record.values.items() if under(k, ("algorithm", *PLUGS))}
    own |= _tuned(record, searched)
    versions = {k: v for k, v in (record.meta.get("plugin_versions") or {}).items() if k != "study"}
    # code: of classes that are not pflsweep's
    others = {"plugin_versions": versions, "numerics": raised(record.meta["numerics"]), "code": record.meta.get("code")}
    own |= {"version": record.meta.get("method_version"), **{k: v for k, v in others.items() if v}}
    return {**own, **score_keys(record)}


def _tuned(record: Record, searched: Collection[str]) -> dict[str, Any]:
    """Return the values of what was searched, but for the method's and its plug-ins' own."""
    values = {**NEUTRAL, **record.values}
    return {k: v for k, v in values.items() if k in searched and not under(k, ("algorithm", *PLUGS))}


def score_keys(record: Record) -> dict[str, Any]:
    """Return the keys of metrics.* that ask for a further score."""
    # A key with its neutral value, or without an effect, asks for nothing
    values = effective(without_neutral(record.values, NEUTRAL))
    idle = SCORED if values.get("metrics.subset") else (*SCORED, "metrics.subset_size")
    return {key: value for key, value in values.items() if under(key, ("metrics",)) and value and key not in idle}
