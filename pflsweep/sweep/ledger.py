"""Write a sweep's ledger: what was asked and which trials answer it, as one JSON file beside the records.

Reports read the ledger and the records alone. They need neither Optuna's storage nor the files of options.
"""

import shlex
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pflsweep.records.content import FORMAT
from pflsweep.records.ledger import file_of
from pflsweep.records.writer import storable
from pflsweep.sweep.plan import Plan, relevant, varying_interpolations
from pflsweep.sweep.slot_state import SETTLED, SlotState, identities
from pflsweep.sweep.state import SweepState
from pflsweep.sweep.status.groups import search_of
from pflsweep.util import files
from pflsweep.util.errors import without_password


def path(plan: Plan) -> Path:
    """Return the file of a sweep's ledger."""
    return file_of(plan.folder, plan.id, plan.reading, plan.name, plan.scale)


def command_text(words: list[str]) -> str:
    """Return a sweep's command as one line for a shell, without passwords. words: its arguments."""
    return without_password(shlex.join(["pflsweep", "-m", *words]))


def write(sweep: SweepState, words: list[str]) -> None:
    """Write the ledger of a sweep as it is now. words: its command's arguments. Raises UserError if the disk is full or
    read-only.
    """
    plan = sweep.plan
    content = {
        "format": FORMAT,
        "sweep": plan.name,
        "scale": plan.scale,
        "reading": plan.reading,
        "command": command_text(words),
        "written": round(time.time(), 3),
        "seeds": plan.seeds,
        "tune": asdict(plan.tune),
        "tracking": storable(plan.groups[0].config.values)["tracking"],
        "groups": [_group(sweep, g) for g in range(len(plan.groups))],
    }
    file = path(plan)
    with files.writing(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        # `record import` may merge a ledger into the same file
        with files.locked(file.parent):
            files.write_json(file, content)


def _group(sweep: SweepState, group: int) -> dict[str, Any]:
    """Return a group's part of the ledger: its config, its search, and the identities of its final trials by seed."""
    plan = sweep.plan
    planned = plan.groups[group]
    finals = {seed: sweep.states[slot] for seed, slot in zip(plan.seeds, plan.final_slots(group), strict=True)}
    searched = [sweep.states[slot] for slot in plan.search_slots(group)]
    # What follows the seed or a searched key differs between the group's trials
    apart = varying_interpolations(planned, plan.seeds)
    configs = {"config": planned.config, **({} if planned.search is None else {"search_config": planned.search})}
    return {
        "setting": planned.setting,
        "method": planned.method,
        **{name: {k: v for k, v in relevant(each).items() if k not in apart} for name, each in configs.items()},
        **search_of(sweep, group),
        "points": plan.point_count(group),
        "points_settled": sum(state.status in SETTLED for state in searched),
        "trials": {str(seed): results[0]["identity"] for seed, state in finals.items() if (results := state.results)},
        "failed": {str(seed): state.reason for seed, state in finals.items() if state.status in ("diverged", "failed")},
        "failed_points": [state.reason for state in searched if state.status == "diverged"],
        "without_result": [state.reason for state in sweep.without_result(group)],
        "superseded": sorted({identity for state in finals.values() for identity in _superseded(state)}),
    }


def _superseded(state: SlotState) -> tuple[str, ...]:
    """Return the identities of a slot's final trials that do not count, for good or until its search is over again."""
    return state.superseded if state.status == "done" else (*state.superseded, *identities(state.trial))
