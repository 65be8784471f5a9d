"""Find out what sweeps have searched, by their ledgers: which keys they searched over, and which trials were tried.

Reports treat the keys as hyperparameters and leave the search's trials out of their tables.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pflsweep.config.identity import RUNTIME, with_neutral
from pflsweep.config.keys import PLUGS, is_number, under
from pflsweep.records.edges import describe_edges, describe_equal
from pflsweep.records.ledger import Ledger, ledgers, search_config
from pflsweep.records.record import Record
from pflsweep.util.archive import Folder


class Searches(NamedTuple):
    """The searches of some sweeps. Trials are named by their identities.

    keys: keys that were searched over for some method, such as train.lr.
    trials: trials of a search that are no sweep's final trial now.
    won: for each final trial, how its hyperparameters were chosen.
    partial: final trials of searches in which some points have no result.
    superseded: former final trials, of points that do not win any more, or whose search is not over now.
    order: for each final trial, its ledger and its position among the trials of all ledgers.
    ledgers: by their ids.
    """

    keys: frozenset[str] = frozenset()
    trials: frozenset[str] = frozenset()
    won: Mapping[str, str] = {}
    partial: frozenset[str] = frozenset()
    superseded: frozenset[str] = frozenset()
    order: Mapping[str, tuple[str, int]] = {}
    ledgers: Mapping[str, Ledger] = {}


def find_searches(records: Iterable[Record], places: Iterable[Folder] = ()) -> Searches:
    """Return what was searched, by the ledgers beside these records and in further places: folders of runs or archives.

    Raises UserError if a ledger is damaged.
    """
    records = list(records)
    folders: dict[Folder, None] = dict.fromkeys([*(record.place.parent for record in records), *places])
    groups = [(ledger, group) for ledger in ledgers(*folders) for group in ledger.groups.values()]
    searched = [(ledger, group) for ledger, group in groups if group["points"]]
    finals = {identity for _, group in groups for identity in group["trials"].values()}
    trials = _tried((record for record in records if record.meta["identity"] not in finals), searched)
    won = {identity: _chosen(*each) for each in searched for identity in each[1]["trials"].values()}
    partial = {identity for _, group in searched if group["without_result"] for identity in group["trials"].values()}
    superseded = {identity for _, group in searched for identity in group["superseded"]} - finals
    named = [(ledger.id, identity) for ledger, group in groups for identity in group["trials"].values()]
    order = {identity: (ledger, at) for at, (ledger, identity) in enumerate(named)}
    keys = frozenset(key for _, group in searched for key in group["space"])
    by_id = {ledger.id: ledger for ledger, _ in groups}
    return Searches(keys, frozenset(trials | superseded), won, frozenset(partial), frozenset(superseded), order, by_id)


def trials_of(sweeps: Iterable[Ledger], records: Iterable[Record]) -> set[str]:
    """Return the identities of all trials of some sweeps: final ones, which ledgers name, and those of `records` that
    their searches have tried.
    """
    groups = [(ledger, group) for ledger in sweeps for group in ledger.groups.values()]
    named = {identity for _, group in groups for identity in (*group["trials"].values(), *group["superseded"])}
    searched = [(ledger, group) for ledger, group in groups if group["points"]]
    return named | _tried(records, searched)


def _chosen(ledger: Ledger, group: dict[str, Any]) -> str:
    """Say how the hyperparameters of a group's final trials were chosen."""
    data = {"validation": "validation data", "test": "TEST data"}[ledger.tune["split"]]
    scale = f" at scale {ledger.tune['scale']}" if ledger.tune.get("scale") else ""
    seeds = ", ".join(map(str, ledger.seeds[: ledger.tune["seeds"]]))
    value = group["winner_value"]
    best = "" if value is None else f", {100 * value:.1f}%{describe_equal(group)}"
    return "; ".join(
        [f"the best of {group['points']} points{scale} on {data} of seed {seeds}{best}", *describe_edges(group)]
    )


def _tried(records: Iterable[Record], searched: Iterable[tuple[Ledger, dict[str, Any]]]) -> set[str]:
    """Return the identities of the records that belong to the search of any of these groups.

    A ledger names final trials alone. A search's trials are recognised by their configs, also those that failed, were
    stopped or still run.
    """
    searches = [_Search(*each) for each in searched]
    found = set()
    for record in records:
        config, seed = with_neutral(record.values), record.meta["seed"]
        if any(search.has(config, seed) for search in searches):
            found.add(record.meta["identity"])
    return found


class _Search:
    """The search of a ledger's group, prepared once to recognise its trials among many."""

    def __init__(self, ledger: Ledger, group: dict[str, Any]) -> None:
        tune, self._space = ledger.tune, group["space"]
        self._seeds = ledger.seeds[: tune["seeds"]]
        self._on_validation = tune["split"] == "validation"
        held = {"data.validation": tune["validation"]} if self._on_validation else {}
        asked = {**with_neutral(search_config(group)), **held}
        # A study may change what is searched, and runtime keys change none of a trial's numbers
        own = (*self._space, "study", *RUNTIME)
        self._asked = {key: value for key, value in asked.items() if not under(key, own)}
        # The trials of hyperband's lower rungs are of fewer rounds
        self._most = self._asked.pop("train.rounds", None) if tune.get("sampler") == "hyperband" else None
        self._plugged = _plugged(asked)
        self._points = [each["point"] for each in group.get("tried", [])]
        self._ranges = group.get("ranges", {})
        # The ledger of a sampler that draws from ranges has them, unless it is an old one
        self._unknown = self._on_validation and tune.get("sampler") != "grid" and "ranges" not in group

    def has(self, config: dict[str, Any], seed: int) -> bool:
        """Return whether a trial of this flat config and seed belongs to the search."""
        if seed not in self._seeds or any(config.get(key) != value for key, value in self._asked.items()):
            return False
        if _plugged(config) != self._plugged or (self._most is not None and config["train.rounds"] > self._most):
            return False
        # A single run by hand looks the same, so the point has to be one that the search may have tried. On test data,
        # where any run is one without validation data, that is a value of the grid, or a point that the ledger names.
        point = {key: config.get(key) for key in self._space}
        return self._unknown or point in self._points or all(self._may_try(key, point[key]) for key in self._space)

    def _may_try(self, key: str, value: Any) -> bool:
        """Return whether a value is of a key's grid, or of the range that the sampler draws from."""
        if value in self._space[key]:
            return True
        if not self._on_validation or key not in self._ranges or not is_number(value):
            return False
        low, high, _ = self._ranges[key]
        return bool(low <= value <= high)


def _plugged(config: dict[str, Any]) -> set[str]:
    """Return the keys of the plug-ins in a config. The value {} means that no plug-in of that group is chosen."""
    return {key for key, value in config.items() if under(key, PLUGS) and value != {}}
