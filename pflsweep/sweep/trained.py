"""Find which trials of a plan are trained already, by the records and ledgers in the plan's folder of runs."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from pflsweep.config.compose import Config
from pflsweep.config.schema import typed
from pflsweep.records.content import FORMAT
from pflsweep.records.ledger import Ledger, ledgers, search_config
from pflsweep.sweep import cost
from pflsweep.sweep.plan import Group, Plan, Slot, changed, relevant
from pflsweep.sweep.search_space import Point
from pflsweep.trial.metadata import digest_of, own_code_hashes
from pflsweep.util import files
from pflsweep.util.errors import UserError

# Finished records by the digest of their config: rounds and checksum of the data of each
Finished = dict[str, list[tuple[int, str]]]


def finished_records(runs: Path) -> Finished:
    """Return what the finished records of a folder have trained. Damaged ones are left out; training reports them."""
    found: Finished = {}
    for file in runs.glob("*/meta.json"):
        try:
            meta, status = files.read_json(file), files.read_json(file.with_name("status.json"))
            if meta["format"] == FORMAT and status["status"] == "finished":
                found.setdefault(meta["config_digest"], []).append((int(status["rounds"]), meta["data_checksum"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found


class Untrained(NamedTuple):
    """The configs of a group's trials that are not trained yet: those of its search and the final ones."""

    search: list[Config]
    final: list[Config]

    @property
    def all(self) -> list[Config]:
        """Return both together."""
        return [*self.search, *self.final]


def untrained(plan: Plan, finished: Finished, ledgers: Iterable[Ledger]) -> Iterator[Untrained]:
    """Yield for each group of a plan the trials that are not trained yet.

    A final trial can only be looked up where a ledger names the winner of the same search.
    """
    ledgers = list(ledgers)
    for g, group in enumerate(plan.groups):
        code = own_code_hashes(group.config)
        won = _winner(plan, g, ledgers) if group.is_searched else {}

        def configs(points: Iterable[tuple[Slot, Point | None]], code: list[str] = code) -> list[Config]:
            return [
                config
                for slot, point in points
                # A point that is not known yet (proposed later, or the winner) costs as much as the default values
                for config in (plan.configs(slot, point) if point is not None else _stand_ins(plan, slot))
                if point is None or not _is_trained(config, code, finished)
            ]

        points = [(slot, plan.known_point(slot)) for slot in plan.search_slots(g)]
        search = configs((slot, point) for slot, point in points if point is not None)
        # With the others of a search that is over, the points that it proposed later are trained too
        if won is None or search:
            search += configs((slot, None) for slot, point in points if point is None)
        yield Untrained(search, configs((slot, won) for slot in plan.final_slots(g)))


def _stand_ins(plan: Plan, slot: Slot) -> list[Config]:
    """Return configs with default values, which cost as much as those of a point that is not known yet.

    In a higher rung of hyperband they have only the rounds that are left to train.
    """
    configs, before = plan.configs(slot, {}), plan.rounds_below(slot)
    return [changed(each, {"train.rounds": each.train.rounds - before}) for each in configs] if before else configs


def ledgers_of(plan: Plan) -> list[Ledger]:
    """Return the ledgers beside a plan's records; none if one is damaged, which the sweep itself will report."""
    try:
        return ledgers(plan.runs)
    except UserError:
        return []


def searched_with_other_config(plan: Plan, group: Group, ledgers: Iterable[Ledger]) -> bool:
    """Return whether the last search for a group at the same scale, by the ledgers, had another config."""
    scale = plan.tune.scale or plan.scale
    cell = (group.setting, group.method)
    done = [
        known
        for ledger in ledgers
        if (ledger.sweep, ledger.tune.get("scale") or ledger.scale) == (plan.name, scale)
        if (known := ledger.groups.get(cell)) is not None and known["points_settled"]
    ]
    return bool(done) and search_config(done[-1]) != relevant(group.search_config)


def _winner(plan: Plan, number: int, ledgers: Iterable[Ledger]) -> Point | None:
    """Return the winner of a group's last search with the same points and config; None if there was none."""
    group = plan.groups[number]
    space = {key: axis.grid for key, axis in group.space.items()}
    asked = {"space": space, "points": plan.point_count(number)}
    found: Point | None = None
    for ledger in ledgers:
        known = ledger.groups.get((group.setting, group.method))
        if known is None or any(known[key] != value for key, value in asked.items()) or known["winner"] is None:
            continue
        # The scale shows in the config, and whether the search was partial does not matter
        same = {**ledger.tune, "partial": plan.tune.partial, "scale": plan.tune.scale} == asdict(plan.tune)
        if same and search_config(known) == relevant(group.search_config):
            found = known["winner"]
    return found


def _is_trained(config: Config, code: list[str], finished: Finished) -> bool:
    """Return whether a finished record has at least a trial's rounds.

    Both digests are looked up, the one for trials that more rounds continue and the one for others. Only the latter
    depends on the number of rounds, so neither is found by mistake.
    """
    if not finished:
        return False
    own, rounds = typed(config), config.train.rounds
    data = cost.partition_size(config).checksum  # "" for data that cannot change
    digests = (digest_of(own, resumable, code) for resumable in (True, False))
    records = (record for digest in digests for record in finished.get(digest, []))
    # A partition that is learnt adds a checksum of its own
    return any(trained >= rounds and checksum.startswith(data) for trained, checksum in records)
