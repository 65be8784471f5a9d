"""The plan of a sweep: all its trials with their configs, known before it runs.

A *group* is one method in one setting. Where its hyperparameters are searched, points are tried first, and its *final*
trials, one a seed, use the winner. Without a search there are final trials alone. Only the winners and the points that
TPE, CMA-ES and Hyperband derive from results are not known beforehand.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from pflsweep.config.compose import Config
from pflsweep.config.identity import RUNTIME, effective
from pflsweep.config.keys import put, under
from pflsweep.config.options import Tune, Workers
from pflsweep.sweep.hyperband import Rung, rung_of
from pflsweep.sweep.search_space import Axis, Point, Space, point_text
from pflsweep.trial.metadata import canonical
from pflsweep.util import files
from pflsweep.util.errors import counted

ROUNDS = "train.rounds"


class Group(NamedTuple):
    """One method in one setting.

    setting: its column of a table; method: its row.
    config: of final trials, without point and seed.
    space: what is searched; empty for no search.
    points: those that are known beforehand: all, or the first ones, before a sampler proposes others.
    search_slot_count: 0 without a search; by hyperband a point takes a slot in each of its rungs, otherwise one in all.
    search: the config of the search's trials, where it differs from that of final trials (tune.scale, hyperband).
    """

    setting: str
    method: str
    config: Config
    space: Space
    points: list[Point]
    search_slot_count: int
    search: Config | None = None

    @property
    def is_searched(self) -> bool:
        """Return whether hyperparameters are searched before the final trials."""
        return self.search_slot_count > 0

    @property
    def search_config(self) -> Config:
        """Return the config of the search's trials."""
        return self.config if self.search is None else self.search

    @property
    def name(self) -> str:
        """Return method and setting as one text."""
        return f"{self.method} {self.setting}".strip()

    def point_of(self, params: dict[str, Any]) -> Point:
        """Convert Optuna's params of a trial to a point, the values of config keys. Missing keys stay missing."""
        return {key: axis.value(params[key]) for key, axis in self.space.items() if key in params}


class Slot(NamedTuple):
    """A point of a search, or a seed of the final trials. number: of the point or the seed in its group, from 0."""

    group: int
    final: bool
    number: int


class Plan(NamedTuple):
    """All slots of a sweep."""

    id: str  # 16 hex digits; the same trials have the same id on all machines
    name: str
    groups: list[Group]
    seeds: list[int]
    tune: Tune
    workers: Workers
    scale: str = "paper"
    reading: str = "paper"
    code: Sequence[list[str]] = ()  # hashes of the user's own code, a list for each group

    @property
    def slots(self) -> Iterator[Slot]:
        """Yield all slots in the order in which workers take them: searches first, since final trials wait for them."""
        for g in range(len(self.groups)):
            yield from self.search_slots(g)
        for g in range(len(self.groups)):
            yield from self.final_slots(g)

    def search_slots(self, group: int) -> list[Slot]:
        """Return the slots of a group's search; none if nothing is searched."""
        return [Slot(group, False, k) for k in range(self.groups[group].search_slot_count)]

    def final_slots(self, group: int) -> list[Slot]:
        """Return the slots of a group's final trials, one a seed."""
        return [Slot(group, True, k) for k in range(len(self.seeds))]

    @property
    def runs(self) -> Path:
        """Return the folder of the trials' records."""
        return Path(self.groups[0].config.paths.runs).absolute()

    @property
    def folder(self) -> Path:
        """Return the folder of ledgers, plans and the database, beside the records."""
        return self.runs / "sweeps"

    @property
    def tuning_seeds(self) -> list[int]:
        """Return the seeds under which each point of a search is tried."""
        return self.seeds[: self.tune.seeds]

    def configs(self, slot: Slot, point: Point) -> list[Config]:
        """Return the configs of a slot's trials: the point under each tuning seed, or one final trial."""
        group = self.groups[slot.group]
        if slot.final:
            return [changed(group.config, {**point, "seed": self.seeds[slot.number]})]
        fixed = {"data.validation": self.tune.validation} if self.tune.split == "validation" else {}
        if (rung := self.rung(slot)) is not None:
            fixed[ROUNDS] = rung.rounds
        return [changed(group.search_config, {**point, **fixed, "seed": seed}) for seed in self.tuning_seeds]

    def rung(self, slot: Slot) -> Rung | None:
        """Return the rung that a slot of a search by hyperband is in, None for all others."""
        if slot.final or self.tune.sampler != "hyperband":
            return None
        group = self.groups[slot.group]
        return rung_of(slot.number, len(group.points), group.search_config.train.rounds)

    def rounds(self, slot: Slot, point: Point) -> int:
        """Return the rounds of a slot's trials. point: theirs, since a search may vary train.rounds."""
        if (rung := self.rung(slot)) is not None:
            return rung.rounds
        group = self.groups[slot.group]
        config = group.config if slot.final else group.search_config
        # `changed` composes the config again, which is slow
        varies = ROUNDS in point or ROUNDS in config.interpolations
        return changed(config, point).train.rounds if varies else config.train.rounds

    def rounds_below(self, slot: Slot) -> int:
        """Return the rounds from which a slot's trials go on: those of the rung below by hyperband, else 0."""
        rung = self.rung(slot)
        return self.rounds(Slot(slot.group, False, rung.below[0]), {}) if rung is not None and rung.below else 0

    def compared_slots(self, group: int) -> list[Slot]:
        """Return the slots of a search among which a winner is elected: those that train all rounds."""
        whole = self.groups[group].search_config.train.rounds
        return [slot for slot in self.search_slots(group) if (rung := self.rung(slot)) is None or rung.rounds == whole]

    def point_count(self, group: int) -> int:
        """Return how many points a group's search tries."""
        if self.tune.sampler == "hyperband":
            return len(self.groups[group].points)
        return self.groups[group].search_slot_count

    def known_point(self, slot: Slot) -> Point | None:
        """Return the point of a search's slot where it is known beforehand; None for others and for final trials."""
        points = [] if slot.final else self.groups[slot.group].points
        return points[slot.number] if slot.number < len(points) else None

    def metric_name(self, slot: Slot) -> str:
        """Return the name of a slot's value: the view and the data that accuracy is measured on."""
        return f"{self.tune.view} {'test' if slot.final else self.tune.split} accuracy"

    def title(self, slot: Slot, point: Point) -> str:
        """Return a slot's name for messages: group, point, and seed or (search)."""
        search = "(search)" if (rung := self.rung(slot)) is None else f"(search, {counted(rung.rounds, 'round')})"
        return " ".join(filter(None, [
            self.groups[slot.group].name, point_text(point), f"seed={self.seeds[slot.number]}" if slot.final else search
        ]))  # fmt: skip


# Keys whose numbers may differ between trials of one stacked cohort
MAY_DIFFER = ("algorithm", "ala", "attack", "train.lr", "train.lr_decay", "partition", "data.validation")


def stackable(one: Group, other: Group) -> bool:
    """Return whether the trials of two groups can train as one cohort, final ones and searches' alike.

    They may differ in seeds and, in the keys of MAY_DIFFER, in floats.
    """
    finals, searches = (one.config, other.config), (one.search_config, other.search_config)
    return _configs_stackable(one, other, *finals) and _configs_stackable(one, other, *searches)


def _configs_stackable(one: Group, other: Group, config: Config, others: Config) -> bool:
    ours, theirs = config.flat, others.flat
    if ours.keys() != theirs.keys():
        return False
    searched = [(key, value) for group in (one, other) for key, axis in group.space.items() for value in axis.grid]
    apart = [(key, side[key]) for side in (ours, theirs) for key in ours if ours[key] != theirs[key]]
    return all(isinstance(value, float) and under(key, MAY_DIFFER) for key, value in (*searched, *apart))


def changed(config: Config, values: Point) -> Config:
    """Return a copy of a config with new values of some keys, and of keys that refer to those by ${...}."""
    copy = deepcopy(config.values)
    interpolations = {key: text for key, text in config.interpolations.items() if key not in values}
    for key, value in {**interpolations, **values}.items():
        put(copy, key, value)
    if interpolations:
        copy = OmegaConf.to_container(OmegaConf.create(copy), resolve=True)  # type: ignore[assignment]
    return replace(config, values=copy, interpolations=interpolations)


def plan_id(groups: Sequence[Group], seeds: list[int], tune: Tune, code: Sequence[Any]) -> str:
    """Hash all that a sweep's trials depend on to 16 hex digits.

    code: versions and sources of methods and plug-ins, one item per group.
    """
    # tune.partial changes which trials run, not what they compute; tune.scale shows in the configs
    own = {key: value for key, value in asdict(tune).items() if key not in ("partial", "scale")}
    searched = own if any(group.is_searched for group in groups) else None
    parts = [
        [
            *(g.name, relevant(g.config), g.points, g.search_slot_count, {key: tuple(a) for key, a in g.space.items()}),
            *([] if g.search is None else [relevant(g.search)]),
        ]
        for g in groups
    ]
    varying = [varying_interpolations(group, seeds) for group in groups]
    more = [varying] if any(varying) else []
    text = json.dumps([parts, seeds, searched, list(code), *more], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def varying_interpolations(group: Group, seeds: list[int]) -> dict[str, Any]:
    """Return by full key the values with interpolations (${...}) that differ between a group's trials: those that name
    a searched key, and those that move with one or with the seed.
    """
    interpolations, now = group.config.interpolations, group.config.flat
    named = {
        key: text for key, text in interpolations.items() if any(searched in str(text) for searched in group.space)
    }
    if len(named) == len(interpolations):  # a ledger is written often, and configs take long to resolve
        return named
    others = [{"seed": seed} for seed in seeds if seed != group.config.seed]
    others += [{key: value} for key, axis in group.space.items() for value in axis.grid if value != now[key]]
    moved = {key for other in others for key, value in changed(group.config, other).flat.items() if value != now[key]}
    return {k: text for k, text in interpolations.items() if k in named or (k in moved and not under(k, RUNTIME))}


def relevant(config: Config) -> dict[str, Any]:
    """Return by full key all values that a trial's numbers depend on, apart from the seed."""
    return {k: v for k, v in effective(canonical(config)).items() if not under(k, RUNTIME) and k != "seed"}


def write_plan(plan: Plan, path: Path) -> None:
    """Write a plan as JSON, for workers in other processes. Raises OSError."""
    groups = [
        {**g._asdict(), "config": vars(g.config), "search": g.search and vars(g.search), "space": dict(g.space)}
        for g in plan.groups
    ]
    whole = {**plan._asdict(), "groups": groups, "tune": asdict(plan.tune), "workers": asdict(plan.workers)}
    files.write_json(path, whole)


def read_plan(path: Path) -> Plan:
    """Read a plan that `write_plan` has written."""
    content = files.read_json(path)
    groups = [
        Group(**{
            **group,
            "config": Config(**group["config"]),
            "search": group["search"] and Config(**group["search"]),
            "space": {key: _axis(axis) for key, axis in group["space"].items()},
        })
        for group in content["groups"]
    ]  # fmt: skip
    tune, workers = Tune.of(content["tune"]), Workers.of(content["workers"])
    return Plan(**{**content, "groups": groups, "tune": tune, "workers": workers})


def _axis(parts: list[Any]) -> Axis:
    """Build an axis from its JSON list, which has lists in place of tuples."""
    grid, span, log, source = parts
    return Axis(grid, span and tuple(span), log, source)
