"""What the sweeps beside some runs have searched: its keys are hyperparameters, and its trials belong in no table."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pflsweep.config.identity import RUNTIME, whole
from pflsweep.config.keys import PLUGS, under
from pflsweep.records.ledger import Ledger, ledgers, tried_config
from pflsweep.records.record import Record
from pflsweep.util.archive import Folder


class Searches(NamedTuple):
    keys: frozenset[str] = frozenset()  # that were searched for some method, such as train.lr
    trials: frozenset[str] = frozenset()  # identities of a search's trials that are nobody's final trial now
    won: Mapping[str, str] = {}  # identity of a final trial -> how its hyperparameters were chosen
    partial: frozenset[str] = frozenset()  # identities of final trials of searches of which some points have no result
    superseded: frozenset[str] = frozenset()  # identities of final trials of points that do not win any more
    order: Mapping[str, tuple[str, int]] = {}  # identity of a final trial -> its ledger, and its place in there


def beside(records: Iterable[Record], places: Iterable[Folder] = ()) -> Searches:
    """Return what was searched, by the ledgers that lie beside these records, and in further places: folders of runs
    or archives. Raises UserError on a damaged ledger.
    """
    records = list(records)
    folders: dict[Folder, None] = dict.fromkeys([*(record.place.parent for record in records), *places])
    told = [(ledger, group) for ledger in ledgers(*folders) for group in ledger.groups.values()]
    searched = [(ledger, group) for ledger, group in told if group["points"]]
    finals = {identity for _, group in told for identity in group["trials"].values()}
    trials = {
        record.meta["identity"]
        for record in records
        if record.meta["identity"] not in finals and any(_tried(record, *each) for each in searched)
    }
    won = {identity: _chosen(*each) for each in searched for identity in each[1]["trials"].values()}
    partial = {identity for _, group in searched if group["without_result"] for identity in group["trials"].values()}
    superseded = {identity for _, group in searched for identity in group["superseded"]} - finals
    named = [(ledger.id, identity) for ledger, group in told for identity in group["trials"].values()]
    order = {identity: (ledger, at) for at, (ledger, identity) in enumerate(named)}
    keys = frozenset(key for _, group in searched for key in group["space"])
    return Searches(keys, frozenset(trials | superseded), won, frozenset(partial), frozenset(superseded), order)


def trials_of(told: Iterable[Ledger], records: Iterable[Record]) -> set[str]:
    """Return the identities of the trials of some sweeps: those that their ledgers name, and of these records those by
    which their searches have chosen.
    """
    groups = [(ledger, group) for ledger in told for group in ledger.groups.values()]
    named = {identity for _, group in groups for identity in (*group["trials"].values(), *group["superseded"])}
    searched = [(ledger, group) for ledger, group in groups if group["points"]]
    return named | {record.meta["identity"] for record in records if any(_tried(record, *each) for each in searched)}


def _chosen(ledger: Ledger, group: dict[str, Any]) -> str:
    data = {"validation": "validation data", "test": "TEST data"}[ledger.tune["split"]]
    scale = f" at scale {ledger.tune['scale']}" if ledger.tune.get("scale") else ""
    return f"the best of {group['points']} points{scale} on {data}"


def _tried(record: Record, ledger: Ledger, group: dict[str, Any]) -> bool:
    """Whether a trial belongs to the search of a group. A ledger names final trials alone: others are known by their
    config, so that those that failed, were stopped or still run are known, too.
    """
    config, tune, space = whole(record.values), ledger.tune, group["space"]
    held = {"data.validation": tune["validation"]} if tune["split"] == "validation" else {}
    asked = {**whole(tried_config(group)), **held}
    # a study may take over what is searched, and how a trial runs changes none of its numbers
    own = (*space, "study", *RUNTIME)
    if record.meta["seed"] not in ledger.seeds[: tune["seeds"]] or any(
        config.get(key, value) != value for key, value in asked.items() if not under(key, own)
    ):
        return False
    if _plugged(config) != _plugged(asked):
        return False
    point = {key: config.get(key) for key in space}  # on test data, anybody's single run is like the search's
    tried = [each["point"] for each in group.get("tried", [])]
    return bool(held) or point in tried or all(point[key] in space[key] for key in space)


def _plugged(config: dict[str, Any]) -> set[str]:
    """Return the keys of what is plugged in; a group of which nothing is chosen is {}."""
    return {key for key, value in config.items() if under(key, PLUGS) and value != {}}
