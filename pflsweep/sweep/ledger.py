"""Write a sweep's ledger: what was asked and which trials answer it, as one JSON file beside the records.

Reports read the ledger and the records alone. They need neither Optuna's storage nor the files of options.
"""

import hashlib
import shlex
import time
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from pflsweep.config.reading import PAPER
from pflsweep.records.content import FORMAT
from pflsweep.records.record import storable
from pflsweep.sweep.plan import Group, Plan, following, relevant
from pflsweep.sweep.search_space import ranges
from pflsweep.sweep.slots import SETTLED, SlotState, point_of
from pflsweep.sweep.state import SweepState
from pflsweep.sweep.status.groups import group_status
from pflsweep.util import files
from pflsweep.util.errors import without_password


def path(plan: Plan) -> Path:
    """Return the file of a sweep's ledger.

    Its name has the reading, since one that changes no trial has the same plan id as the paper's. A sweep of another
    name or scale that has the same trials, and came first, keeps its file: then the name ends in a hash of both.
    """
    reading = "" if plan.reading == PAPER else f"-{plan.reading}"
    file = plan.folder / f"{plan.id}{reading}.json"
    try:
        other = files.read_json(file)
    except (OSError, ValueError):  # there is none, or one that cannot be read
        return file
    if (other.get("sweep"), other.get("scale")) == (plan.name, plan.scale):
        return file
    mark = hashlib.blake2b(f"{plan.name} {plan.scale}".encode(), digest_size=4).hexdigest()
    return plan.folder / f"{plan.id}{reading}-{mark}.json"


def write(state: SweepState, command: list[str]) -> None:
    """Write the ledger of a sweep as it is now. Raises UserError if the disk is full or read-only."""
    plan = state.plan
    content = {
        "format": FORMAT,
        "sweep": plan.name,
        "scale": plan.scale,
        "reading": plan.reading,
        "command": without_password(shlex.join(["pflsweep", "-m", *command])),
        "written": round(time.time(), 3),
        "seeds": plan.seeds,
        "tune": asdict(plan.tune),
        "tracking": storable(plan.groups[0].config.values)["tracking"],
        "groups": [_group(state, g) for g in range(len(plan.groups))],
    }
    file = path(plan)
    with files.writing(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        # `record import` may merge a ledger into the same file
        with files.locked(file.parent):
            files.write_json(file, content)


def _group(state: SweepState, group: int) -> dict[str, Any]:
    """Return a group's part of the ledger: its config, its search, and the identities of its final trials by seed."""
    of, now = state.plan.groups[group], group_status(state, group)
    finals = {seed: state.slots[job] for seed, job in zip(state.plan.seeds, state.plan.final(group), strict=True)}
    compared = [state.slots[job] for job in state.plan.compared(group)]
    searched = [state.slots[job] for job in state.plan.searched(group)]
    # What follows the seed or a searched key differs between the group's trials
    apart = following(of, state.plan.seeds)
    configs = {"config": of.config, **({} if of.search is None else {"search_config": of.search})}
    return {
        "setting": of.setting,
        "method": of.method,
        **{name: {k: v for k, v in relevant(each).items() if k not in apart} for name, each in configs.items()},
        "space": {key: axis.grid for key, axis in of.space.items()},
        **({"ranges": drawn} if (drawn := ranges(of.space, state.plan.tune.sampler)) else {}),
        "points": state.plan.points(group),
        "points_settled": sum(slot.status in SETTLED for slot in searched),
        "tried": [_tried(of, slot) for slot in compared if slot.value is not None],
        "winner": now.point if of.tries and state.electable(group) else None,
        "winner_value": now.best,
        "trials": {str(seed): results[0]["identity"] for seed, slot in finals.items() if (results := slot.trials)},
        "failed": {str(seed): slot.reason for seed, slot in finals.items() if slot.status in ("diverged", "failed")},
        "failed_points": [slot.reason for slot in searched if slot.status == "diverged"],
        "without_result": [slot.reason for slot in state.without_result(group)],
        "superseded": sorted({identity for slot in finals.values() for identity in slot.superseded}),
    }


def _tried(group: Group, slot: SlotState) -> dict[str, Any]:
    """Return a point of a search with its score, and the mean test accuracy of its trials where workers reported it."""
    test = [result["test"] for result in slot.trials if "test" in result]
    return {"point": point_of(group, slot), "value": slot.value, **({"test": fmean(test)} if test else {})}
