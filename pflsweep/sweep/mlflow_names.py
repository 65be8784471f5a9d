"""Describe a sweep for MLflow: names and tags of its trials, and the content of the sweep's own run."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import accumulate
from typing import TYPE_CHECKING

from pflsweep.report.quantities import by_round, mean_curve
from pflsweep.sweep.plan import Group, Plan, Slot, relevant
from pflsweep.sweep.search_space import Point, point_text
from pflsweep.sweep.state import SweepState
from pflsweep.sweep.status.groups import group_status
from pflsweep.tracking.logging import Labels, mlflow_text
from pflsweep.tracking.overview import GroupResult, SweepRun

if TYPE_CHECKING:
    from pflsweep.records.record import Record


def trial_labels(plan: Plan, slot: Slot, point: Point, seed: int) -> Labels:
    """Return the name and tags of a trial. A name is `fedala share=0.8 lr=0.1 seed=0`, with (search) after it for a
    trial of a search.
    """
    group = plan.groups[slot.group]
    name = [group.method, *map(_short, group.setting.split()), point_text(point), f"seed={seed}"]
    tags = {
        "role": "final" if slot.final else "search",
        "sweep": plan.name,
        "setting": setting_name(group),
        "reading": plan.reading,
    }
    return Labels(" ".join(filter(None, [*name, "" if slot.final else "(search)"])), tags)


def setting_name(group: Group) -> str:
    """Return the name of a group's setting: its column in a table or what a command varies, else its dataset and
    partition.
    """
    return group.setting or f"{group.config.choices['dataset']} {group.config.choices['partition']}"


def _short(word: str) -> str:
    """Shorten train.lr=0.1 to lr=0.1. A word without `=`, such as a column's name, stays as it is."""
    key, equals, value = word.partition("=")
    return f"{key.rpartition('.')[2]}={value}" if equals else word


def run_of_sweep(plan: Plan, command: str) -> SweepRun:
    """Return the name, params and tags of a sweep's own run. Its params are those that all trials share.

    command: as in the ledger.
    """
    configs = [relevant(group.config) for group in plan.groups]
    searched = {key for group in plan.groups for key in group.space}
    same = {
        key: value
        for key, value in configs[0].items()
        if key not in searched and all(key in other and other[key] == value for other in configs[1:])
    }
    tune = {f"tune.{key}": value for key, value in asdict(plan.tune).items() if value is not None} if searched else {}
    params = {**same, "seeds": plan.seeds, "scale": plan.scale, "reading": plan.reading, **tune}
    tags = {
        "role": "sweep",
        "sweep": plan.name,
        "reading": plan.reading,
        "method": _join(group.method for group in plan.groups),
        "dataset": _join(group.config.choices["dataset"] for group in plan.groups),
        "setting": _join(map(setting_name, plan.groups)),
        "command": mlflow_text(command),
    }
    return SweepRun(plan.name, {key: mlflow_text(value) for key, value in params.items()}, tags)


def group_results(sweep: SweepState, records: Sequence["Record"]) -> list[GroupResult]:
    """Return the result of each method in each setting. records: of final trials on this machine, for their curves."""
    known = {record.meta["identity"]: record for record in records}
    results = []
    for g, group in enumerate(sweep.plan.groups):
        now, values = group_status(sweep, g), [sweep.states[slot].value for slot in sweep.plan.compared_slots(g)]
        own = [one["identity"] for slot in sweep.plan.final_slots(g) for one in sweep.states[slot].results]
        curve: dict[int, float] = {}
        if own and all(identity in known for identity in own):
            mean = mean_curve(group.method, [by_round(known[identity]) for identity in own])
            curve = {int(at): float(value) for at, value in zip(mean.rounds, mean.mean, strict=True)}
        best = list(accumulate((value for value in values if value is not None), max))
        chosen = now.point if sweep.can_elect_winner(g) else {}
        rounds = sweep.plan.rounds(sweep.plan.final_slots(g)[0], chosen)
        results.append(
            GroupResult(group.method, setting_name(group), point_text(chosen), best, now.final, curve, rounds)
        )
    return results


def _join(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))
