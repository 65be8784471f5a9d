"""The results of sweeps: their ledgers, and the records of the trials that these name, read as of a round."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from pflsweep.config.identity import RUNTIME, has_own_rows, raised, with_neutral
from pflsweep.config.keys import flat, under
from pflsweep.records.archive import places
from pflsweep.records.edges import find_edges
from pflsweep.records.ledger import Ledger
from pflsweep.records.record import Record
from pflsweep.report.markdown import code, inline
from pflsweep.util.archive import Folder
from pflsweep.util.errors import UserError

UNTRAINED = "not trained yet"
# what seeds of one cell may differ in; records are cut to the rounds asked for
MAY_DIFFER = ("seed", "train.rounds", *RUNTIME)
# keys about the machine on which a command ran: a page that offers it to others leaves them out
LOCAL = ("device", "data.root", "paths", "checkpoint", "train.threads", "train.workers", "train.chunk")


@dataclass(frozen=True)
class FinishedTrial:
    """A finished trial as of the round that was asked for. Of its tables a page reads what it shows: there may be many
    trials, and of many rounds.
    """

    record: Record = field(repr=False)
    config: dict[str, Any]  # flat
    last: int  # the last evaluated round
    best: int  # that with the highest mean accuracy

    @cached_property
    def rounds(self) -> pd.DataFrame:
        return self.record.rounds

    @cached_property
    def clients(self) -> pd.DataFrame:
        """The clients' rows of the last evaluated round."""
        return self.record.clients_in(self.last)

    @cached_property
    def clients_best(self) -> pd.DataFrame:
        """The clients' rows of the best round."""
        return self.record.clients_in(self.best)

    @cached_property
    def new_clients(self) -> pd.DataFrame:
        return self.record.new_clients

    @cached_property
    def partition(self) -> pd.DataFrame:
        return self.record.partition

    @cached_property
    def study(self) -> pd.DataFrame:
        """The table that its study has left, as the class in pflsweep/studies says; empty without one."""
        return self.record.study

    @property
    def matrices(self) -> dict[str, Any]:
        return self.record.matrices

    @property
    def folder(self) -> Folder:
        return self.record.place

    @property
    def meta(self) -> dict[str, Any]:
        return self.record.meta

    @property
    def identity(self) -> str:
        return str(self.meta["identity"])

    @property
    def name(self) -> str:
        """How messages name the trial: not escaped, as a page needs it."""
        return f"{self.meta['name']} `{self.identity}`"


@dataclass(frozen=True)
class CellTrials:
    """The trials behind a cell, and their search: of one method in one setting."""

    setting: str
    method: str
    finished: dict[int, FinishedTrial]  # by seed
    seeds: list[int]  # that were asked for
    open: dict[int, str]  # seed -> why there is no number yet, in markdown
    failed: dict[int, str]  # seed -> reason
    commands: list[str]  # that fill it
    group: dict[str, Any] = field(default_factory=dict)  # its group in the ledger with most results; {} without one
    split: str = ""  # on which data the winner was chosen; "" if nothing was searched
    view: str = ""  # by the accuracy of whose models
    searched_at: str = ""  # the scale of its search where tune.scale was given
    without_code: bool = False  # its reading is of code that is not public

    @property
    def algorithm(self) -> str:
        """The option of `algorithm=` of the cell's trials. Before any is trained it is the sweep's; "" without one."""
        config = next((trial.config for trial in self.finished.values()), self.group.get("config", {}))
        return str(config.get("algorithm", ""))

    @property
    def winner(self) -> dict[str, Any] | None:
        return self.group.get("winner")

    @property
    def edges(self) -> dict[str, str]:
        """Return by key "largest" or "smallest" where the winner's value is an end of what was tried."""
        return find_edges(self.group)

    @property
    def winner_value(self) -> float | None:
        return self.group.get("winner_value")

    @property
    def tried(self) -> list[tuple[dict[str, Any], float]]:
        """Return the points of the search that have a result, each with its accuracy."""
        return [(each["point"], each["value"]) for each in self.group.get("tried", [])]

    @property
    def tested(self) -> list[tuple[float, float]]:
        """Return the score and the test accuracy of those points; none if a worker has not recorded the latter."""
        found = [(each["value"], each["test"]) for each in self.group.get("tried", []) if "test" in each]
        return found if len(found) == len(self.tried) else []

    @property
    def failed_points(self) -> list[str]:
        """Return why points of the search diverged, a reason for each."""
        return list(self.group.get("failed_points", []))

    @property
    def without_result(self) -> list[str]:
        """Return why points of the search neither won nor lost, a reason for each."""
        return list(self.group.get("without_result", []))

    @property
    def partial(self) -> bool:
        """Return whether a winner was elected although points of its search have no result."""
        return bool(self.without_result) and self.winner is not None

    @property
    def complete(self) -> bool:
        return bool(self.seeds) and len(self.finished) == len(self.seeds)


class TrialReader:
    """The trials of a folder of runs and of the archives in it. Each archive is opened once, each trial read once."""

    def __init__(self, runs: Path) -> None:
        self.runs, self.places = runs, places(runs)
        self._known: dict[tuple[str, int], FinishedTrial | str] = {}

    def read(self, identity: str, rounds: int) -> FinishedTrial | str:
        """Return a trial, or why it cannot be read."""
        if (identity, rounds) not in self._known:
            self._known[identity, rounds] = _read(self._folder(identity), rounds)
        return self._known[identity, rounds]

    def holds(self, identity: str) -> bool:
        """Return whether anything of a trial is there."""
        return any((place / identity).exists() for place in self.places)

    def _folder(self, identity: str) -> Folder:
        """Return where the record of a trial lies: of several the one with the most rounds; of none, where it would."""
        there = [place / identity for place in self.places if (place / identity / "meta.json").exists()]
        if len(there) > 1:
            return max(there, key=lambda folder: Record(folder).done)
        return there[0] if there else self.runs / identity


class Store:
    """The ledgers of one scale and reading, and the trials they name."""

    def __init__(self, trials: TrialReader, scale: str, every: list[Ledger], reading: str = "paper") -> None:
        self.trials, self.scale, self.reading = trials, scale, reading
        self.ledgers = [ledger for ledger in every if ledger.scale == scale and ledger.reading == reading]

    def of(self, sweeps: Iterable[str]) -> list[Ledger]:
        return [ledger for ledger in self.ledgers if ledger.sweep in sweeps]

    def cell_trials(self, sweeps: list[str], setting: str, method: str) -> CellTrials:
        """Return the trials behind a cell. Raise UserError if they do not belong together."""
        groups = [(ledger, g) for ledger in self.of(sweeps) if (g := ledger.groups.get((setting, method))) is not None]
        groups.sort(key=lambda each: settled(each[1]))  # the last one has most results, then it is the newest
        finished: dict[int, FinishedTrial] = {}
        open_: dict[int, str] = {}
        failed: dict[int, str] = {}
        for ledger, group in groups:
            # A search may have chosen the rounds
            rounds = int({**group["config"], **(group["winner"] or {})}["train.rounds"])
            for seed in ledger.seeds:
                if str(seed) in group["failed"]:
                    failed[seed] = str(group["failed"][str(seed)])
                identity = group["trials"].get(str(seed))
                found = UNTRAINED if identity is None else self.trials.read(identity, rounds)
                if isinstance(found, str):
                    open_[seed] = found
                    continue
                _check_asked(found, group, ledger)
                if seed in finished and finished[seed].identity != found.identity:
                    raise _mixed([finished[seed], found], groups, f"seed {seed} has two runs")
                finished[seed] = found
        _check_alike(list(finished.values()), groups)
        finished = dict(sorted(finished.items()))
        seeds = sorted({seed for ledger, _ in groups for seed in ledger.seeds})
        last = groups[-1][1] if groups else {}
        tune = groups[-1][0].tune if last.get("points") else {}
        return CellTrials(
            setting, method, finished, seeds,
            {seed: why for seed, why in open_.items() if seed not in finished and seed not in failed},
            {seed: why for seed, why in failed.items() if seed not in finished},
            _commands((ledger for ledger, _ in reversed(groups)), self.trials.runs),
            last, tune.get("split", ""), tune.get("view", ""), tune.get("scale") or "",
        )  # fmt: skip


def settled(group: dict[str, Any]) -> int:
    """Return the number of a ledger group's trials that are done or have failed."""
    return len(group["trials"]) + len(group["failed"]) + int(group["points_settled"])


def _commands(ledgers: Iterable[Ledger], runs: Path) -> list[str]:
    """Return as few of the ledgers' commands as train every seed; of equals the first. runs: where the records are."""
    needed = list(ledgers)
    for ledger in reversed(needed.copy()):
        others = {seed for other in needed if other is not ledger for seed in other.seeds}
        if others.issuperset(ledger.seeds):
            needed.remove(ledger)
    return list(dict.fromkeys(_portable(ledger.command, runs) for ledger in needed))


def _portable(command: str, runs: Path) -> str:
    """Return a command without keys of LOCAL, except for paths.runs where it is the folder of the records."""
    words = shlex.split(command)
    kept = [word for word in words if word == f"paths.runs={runs}" or not under(word.partition("=")[0], LOCAL)]
    return shlex.join(kept)


def _read(folder: Folder, rounds: int) -> FinishedTrial | str:
    """Return a trial, or as markdown why there is none. Raises UserError if its record is damaged."""
    if not (folder / "meta.json").exists():
        return inline(f"its record {folder.name} is not in {folder.parent}")
    record = Record(folder)
    named = f"{inline(record.meta['name'])} {code(folder.name)}"
    if record.done < rounds:
        return f"{named} is {inline(record.status['status'])} at round {record.done} of {rounds}"
    if record.done > rounds:  # more has been trained since, at a larger scale
        record.restrict_to(rounds)
    table, at = record.rounds, record.evaluated
    if rounds not in at:
        return f"{named} has more rounds and is not evaluated after round {rounds}"
    best = at[int(table["personal_accuracy"].dropna().argmax())]
    return FinishedTrial(record, with_neutral(record.values), rounds, best)


def _check_asked(trial: FinishedTrial, group: dict[str, Any], ledger: Ledger) -> None:
    """Raise UserError on a record that is not of the config that its ledger names."""
    asked = with_neutral({**group["config"], **(group["winner"] or {})})
    for key, value in asked.items():
        if not under(key, MAY_DIFFER) and trial.config.get(key, value) != value:
            raise UserError(
                f"{trial.name} in {trial.folder} is not the trial that the sweep names: {key} is {trial.config[key]} "
                f"there and {value} in {ledger.path}. Move the wrong one away; the sweep's command makes it anew."
            )


def _check_alike(trials: list[FinishedTrial], groups: list[tuple[Ledger, dict[str, Any]]]) -> None:
    """Raise UserError if seeds differ in more than the seed."""
    for other in trials[1:]:
        first, second = _shared_values(trials[0]), _shared_values(other)
        # A key with its neutral value is missing in one of them
        apart = [key for key in {**first, **second} if first.get(key) != second.get(key)]
        if apart:
            key = apart[0]
            values = [_value(trial, key) for trial in (trials[0], other)]
            shown = f"{key} is {values[0]} and {values[1]}"
            raise _mixed([trials[0], other], groups, f"they differ in {', '.join(apart)}: {shown}")


def _shared_values(trial: FinishedTrial) -> dict[str, Any]:
    """Return the config values and metadata in which all trials of a cell must agree."""
    own = {key: value for key, value in trial.config.items() if not under(key, MAY_DIFFER)}
    keys = ("method_version", "plugin_versions", "data_checksum", "code")
    meta = {key: trial.meta.get(key) or None for key in keys} | {"numerics": raised(trial.meta["numerics"])}
    if has_own_rows(own):
        del meta["data_checksum"]
    return {**own, **meta, "train.rounds": trial.last}


def _value(trial: FinishedTrial, key: str) -> Any:
    """Return what `_shared_values` has for a key, or the neutral value in the trial's config."""
    return _shared_values(trial).get(key, flat(trial.record.config).get(key))


def _mixed(trials: list[FinishedTrial], groups: list[tuple[Ledger, dict[str, Any]]], why: str) -> UserError:
    _, group = groups[0]
    runs = " and ".join(f"{trial.name} ({trial.folder})" for trial in trials)
    by_age = sorted((ledger for ledger, _ in groups), key=lambda ledger: ledger.written)
    files = "; ".join(f"{ledger.path} (of {_moment(ledger.written)}, `{ledger.command}`)" for ledger in by_age)
    return UserError(
        f"The cell {group['method']} {group['setting']} would mix configs: {runs}; {why}. They are named in these "
        f"ledgers, the oldest first: {files}. Move the ledger of the sweep that is not meant away (no run is lost), "
        "such as that of a sweep file which you have changed since, or report on another scale."
    )


def _moment(seconds: float) -> str:
    """Return a moment as text, to the minute, in UTC. seconds: since 1970."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
