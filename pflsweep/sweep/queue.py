"""The queue of a sweep, kept in Optuna's storage: a study for each search and one for the final trials.

Each slot of the plan is enqueued as a WAITING trial of Optuna. A worker leases it by setting it RUNNING, which is
granted once, and sends heartbeats while it trains, which renew its lease. When it was silent for too long its
trial FAILs without an `error` and the slot is enqueued again; this does not count as a failure. A slot may thus have
several trials of Optuna: `state_of` says which one counts.
"""

import json
import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from pflsweep.sweep import attributes
from pflsweep.sweep.database import Database
from pflsweep.sweep.hyperband import promoted
from pflsweep.sweep.plan import Plan, Slot
from pflsweep.sweep.sampling import propose, pruner
from pflsweep.sweep.search_space import Point, distributions, params_of
from pflsweep.sweep.slot_state import (
    SETTLED,
    is_tried_again,
    rounds_in_record,
    state_of,
    winner_trained,
)
from pflsweep.sweep.state import SweepState
from pflsweep.sweep.storage import SILENCE, storage_url
from pflsweep.trial.metadata import shipped_code
from pflsweep.util.source_hash import edited_components

log = logging.getLogger(__name__)

LONGEST_NAME = 400  # characters of a group's name in a study's name, which PostgreSQL limits to 512
FINAL_SLOT = Slot(0, True, 0)  # stands for all final trials, since they share one study
# Attribute of the final trials' study: a new value makes other commands read settled searches again
RETRY_TOKEN = "retried"
CODE = "code"  # attribute of that study: digests of the code that the sweep's last command has


@dataclass(eq=False)
class Lease:
    """A slot that this worker has leased, with the point to train."""

    slot: Slot
    trial_id: int  # of its trial in Optuna
    point: Point
    renewed: float  # seconds since 1970 of the last heartbeat
    lost: bool = False  # whether the trial was found in other hands, or over
    notes: dict[str, Any] = field(default_factory=dict)  # attributes that the next heartbeat stores


class Queue:
    """The slots of a plan, as Optuna's storage has them, and all that commands and workers do to them."""

    def __init__(self, plan: Plan, worker: str = "") -> None:
        """Open the storage of a plan. Raises UserError if it cannot be used.

        worker: the name by which `record_death` finds this worker's trials.
        """
        self.plan, self.worker = plan, worker or uuid4().hex
        self.database = Database(storage_url(plan), plan.workers.heartbeat, pruner(plan.tune))
        self.sweep = SweepState(plan)
        # Names of studies that are not read again until a command retries points
        self._settled_studies: set[str] = set()
        self._retried: str | None = None  # the last value of RETRY_TOKEN that was read
        self._free: list[Slot] = []  # slots that were free at the last refresh

    def prepare(self, retry: bool = False) -> None:
        """Enqueue slots that are new, final trials whose record is lost or that had bad input, and points without a
        result.

        retry: also enqueue whatever failed or diverged.
        """
        self._settled_studies.clear()
        self.refresh()
        self._describe()
        self._compare_code()
        runs = self.plan.runs if self.plan.workers.storage is None else None
        # Slots of a command that was killed still seem to run; without this they would come last
        if any(state.status == "running" for state in self.sweep.states.values()):
            self.revive()

        def needs_a_trial(slot: Slot) -> bool:
            state = self.sweep.states[slot]
            lost = slot.final and state.status == "done" and state.record_lost(runs, self.sweep.rounds(slot))
            unsettled = state.status == "due" or is_tried_again(slot, state)
            return lost or unsettled or (retry and state.status in ("failed", "diverged"))

        anew = [slot for slot in self.plan.slots if needs_a_trial(slot)]
        self._enqueue(anew)
        # Announced last, so that a command that reads it finds the new trials
        if any(not slot.final for slot in anew):
            self.database.set_study_attr(self._study_name(FINAL_SLOT), RETRY_TOKEN, uuid4().hex)
        self.refresh()

    def _describe(self) -> None:
        """Store in each study its sweep and what its values mean, for readers of optuna-dashboard."""
        attrs = {"sweep": self.plan.name, "scale": self.plan.scale, "reading": self.plan.reading}
        for name, slots in self._slots_by_study().items():
            self.database.describe(name, self.plan.metric_name(slots[0]), attrs)

    def _compare_code(self) -> None:
        """Warn if this sweep was begun with other code of pflsweep, such as another version on another machine."""
        if self.sweep.finished:
            return
        study, mine = self._study_name(FINAL_SLOT), {}
        for group in self.plan.groups:
            for part, digest in shipped_code(group.config).items():
                mine[part if part == "engine" else f"{part}={group.config.choices[part]}"] = digest
        before = self.database.study_attrs(study).get(CODE) or {}
        if edited := edited_components(before, mine):
            log.warning(
                "%s: this sweep was begun with other code of pflsweep (%s): its trials may differ from those that are "
                "trained now. Use one version on all machines; after an update train in another folder (paths.runs).",
                self.plan.name, ", ".join(edited),
            )  # fmt: skip
        if mine != before:
            self.database.set_study_attr(study, CODE, {**before, **mine})

    def refresh(self) -> None:
        """Read the state of every slot from the database."""
        retried = self.database.study_attrs(self._study_name(FINAL_SLOT)).get(RETRY_TOKEN)
        if retried != self._retried:
            self._settled_studies.clear()
            self._retried = retried
        for name, slots in self._slots_by_study().items():
            if name not in self._settled_studies:
                self._read(name, slots)
        waiting = [slot for slot in self.plan.slots if self.sweep.states[slot].status == "waiting"]
        # Retried slots come first
        self._free = sorted(waiting, key=lambda slot: not self.sweep.states[slot].attrs.get(attributes.RETRIED))

    def revive(self) -> None:
        """Enqueue the slots of workers that were silent for too long."""
        if self.database.heartbeats_were_possible:
            self.database.fail_stale(name for name in self._slots_by_study() if name not in self._settled_studies)
        self.refresh()
        due = [slot for slot in self.plan.slots if self.sweep.states[slot].status == "due"]
        if due:
            self._enqueue(due)
            self.refresh()

    def lease_next(self, skip: Iterable[Slot] = ()) -> Lease | None:
        """Lease the next slot that is free and ready. Return None if none is known; `refresh` may find some."""
        skip = set(skip)
        for slot in list(self._free):
            if slot in skip or not (self._ready_now(slot.group) if slot.final else self.sweep.proposable(slot)):
                continue
            self._free.remove(slot)
            trial_id = self._trial_id_of(slot)
            now = time.time()
            if self.database.lease(trial_id):
                return self._new_lease(slot, trial_id, now)
        return None

    def _ready_now(self, group: int) -> bool:
        """Ask the database whether final trials can begin: another command may have retried points of the search."""
        searched = self.plan.search_slots(group)
        if searched and self.sweep.search_over(group):
            self._read(self._study_name(searched[0]), searched)
        return self.sweep.can_elect_winner(group)

    def begin(self, lease: Lease, folder: Path, before: int, done: int) -> None:
        """Store the folder of the record of a trial that begins now, so that a death can be compared with its progress.

        before: rounds of the slot's earlier seeds. done: rounds after which the trial goes on, of which another sweep
        may have trained some.
        """
        self.set_attr(lease, attributes.ROUNDS_REACHED, before + done)
        self.set_attr(lease, attributes.RECORD, {"folder": str(folder), "before": before, "done": done})

    def set_attr(self, lease: Lease, key: str, value: Any) -> None:
        """Store an attribute of a trial in the database."""
        self.database.set_attr(lease.trial_id, key, value)

    def report(self, lease: Lease, values: Mapping[int, float]) -> bool:
        """Store a point's values after some rounds, by their number. Return whether the pruner would stop it."""
        return self.database.report(self._study_name(lease.slot), lease.trial_id, values)

    def note(self, lease: Lease, attrs: dict[str, Any]) -> None:
        """Keep attributes of a trial for the next heartbeat to store. Training does not wait for the database."""
        lease.notes = attrs

    def beat(self, lease: Lease) -> None:
        """Renew the lease of a trial. Raises where the database is unavailable; the next heartbeat may reach it."""
        now = time.time()
        if self.database.beat(lease.trial_id, lease.notes):
            lease.renewed = now
        else:
            lease.lost = True

    def holds(self, lease: Lease) -> bool:
        """Return whether this worker still has the lease of a trial.

        The database is asked only where the last renewal is so old that another worker may have taken the trial over,
        for example after the process was suspended.
        """
        # Unlike time.monotonic, time.time also counts while a machine is suspended
        expired = time.time() - lease.renewed > SILENCE * self.plan.workers.heartbeat
        if expired and not lease.lost:
            # While the database is unavailable, no worker can lease the trial. Where this machine alone is cut off,
            # another may train it too: the first result counts
            with suppress(Exception):
                self.beat(lease)
        return not lease.lost

    def record_death(self, worker: str, status: str) -> int:
        """Enqueue again the slots that a worker held when it died, and count the death against each.

        status: the end of its process as the operating system reports it. Returns the number of slots.
        """
        found = 0
        for name in self._slots_by_study():
            for trial in self.database.trials(name):
                if trial.state == TrialState.RUNNING and trial.user_attrs.get(attributes.WORKER) == worker:
                    # Another worker may have taken the trial over meanwhile
                    with suppress(UpdateFinishedTrialError):
                        self._count_death(self.database.trial_id(name, trial.number), trial, status)
                    found += 1
        self.revive()
        return found

    def retry_after_death(self, lease: Lease, status: str) -> None:
        """Enqueue a slot again after a process of its worker has died, and count the death against it."""
        self._count_death(lease.trial_id, self.database.trial(lease.trial_id), status)
        self.revive()

    def _count_death(self, trial_id: int, trial: FrozenTrial, status: str) -> None:
        death = {"status": status, "rounds": rounds_in_record(trial)}
        self.database.set_attr(trial_id, attributes.DEATH, death)
        self.database.finish(trial_id, TrialState.FAIL)

    def complete(self, lease: Lease, value: float, result: dict[str, Any]) -> None:
        """Settle a slot as done. value: the accuracy that slots are compared by."""
        self.set_attr(lease, attributes.RESULT, result)
        self._end(lease, TrialState.COMPLETE, value)

    def fail(self, lease: Lease, error: str, **more: Any) -> None:
        """Settle a slot as failed. more: `diverged=True`, which counts as a result; `input=True` for an error in the
        input; `trace`, the traceback of a bug.
        """
        for key, value in (*more.items(), (attributes.ERROR, error)):
            self.set_attr(lease, key, value)
        self._end(lease, TrialState.FAIL)

    def prune(self, lease: Lease, result: dict[str, Any]) -> None:
        """Settle a slot as pruned. Its value is the one of the last report."""
        self.set_attr(lease, attributes.RESULT, result)
        steps = self.database.trial(lease.trial_id).intermediate_values
        self._end(lease, TrialState.PRUNED, steps[max(steps)] if steps else None)

    def release(self, lease: Lease) -> None:
        """Give a slot back, for another worker or a later command.

        Raises at once where the database is unavailable, since the caller is about to end. The slot's lease then
        expires, and another worker takes it over.
        """
        self.database.release(lease.trial_id)

    def _end(self, lease: Lease, trial_state: TrialState, value: float | None = None) -> None:
        """Set the final state of a leased slot's trial."""
        self.database.finish(lease.trial_id, trial_state, value)
        self.sweep.states[lease.slot] = state_of([self.database.trial(lease.trial_id)])

    def _new_lease(self, slot: Slot, trial_id: int, renewed: float) -> Lease:
        """Store this worker and the point to train with a slot that it was granted, and return the lease."""
        group = self.plan.groups[slot.group]
        self.database.set_attr(trial_id, attributes.WORKER, self.worker)
        if slot.final:
            point = self.sweep.winner(slot.group) or {}
            # Each key by itself too, for optuna-dashboard
            for key, value in {attributes.POINT: json.dumps(point), **point}.items():
                self.database.set_attr(trial_id, key, value)
            return Lease(slot, trial_id, point, renewed)
        trial = self.database.trial(trial_id)
        params = self._params(slot, trial)
        new = {key: value for key, value in params.items() if key not in trial.params}
        self.database.set_params(trial_id, new, distributions(group.space))
        return Lease(slot, trial_id, group.point_of(params), renewed)

    def _params(self, slot: Slot, trial: FrozenTrial) -> dict[str, Any]:
        """Return the point of a search's slot as Optuna's params: those of its trial, else a new proposal."""
        group = self.plan.groups[slot.group]
        if trial.params.keys() == group.space.keys():
            return trial.params
        nothing = optuna.trial.create_trial(state=TrialState.WAITING)
        rung = self.plan.rung(slot)
        if rung is not None:
            # Another command may have tried a point below again since the last refresh
            self._read(self._study_name(slot), self.plan.search_slots(slot.group))
        earlier = self.plan.search_slots(slot.group)[: slot.number]
        trials = [self.sweep.states[each].trial or nothing for each in earlier]
        if rung is not None:
            return trials[promoted(rung, trials, slot.number)].params
        return propose(self.plan.tune, group.space, group.name, trials, slot.number)

    def _study_name(self, slot: Slot) -> str:
        """Return the name of a slot's study. All final trials of a sweep share one."""
        if slot.final:
            return f"final trials {self.plan.id}"
        what = self.plan.groups[slot.group].name
        return f"{what if len(what) <= LONGEST_NAME else f'group {slot.group}'} search {self.plan.id}"

    def _slots_by_study(self) -> dict[str, list[Slot]]:
        """Return the slots by the name of their study."""
        found: dict[str, list[Slot]] = {}
        for slot in self.plan.slots:
            found.setdefault(self._study_name(slot), []).append(slot)
        return found

    def study_of(self, group: int) -> optuna.Study:
        """Return the study of a group's search, for plots."""
        return self.database.study(self._study_name(Slot(group, False, 0)))

    def _read(self, name: str, slots: list[Slot]) -> None:
        """Read the state of a study's slots, and drop duplicate trials."""
        by_slot: dict[str, list[FrozenTrial]] = {}
        for trial in self.database.trials(name):
            by_slot.setdefault(trial.user_attrs.get(attributes.SLOT, ""), []).append(trial)
        for slot in slots:
            state = self.sweep.states[slot] = self.sweep.adapt_to_search(slot, state_of(by_slot.get(_key(slot), [])))
            for number in state.duplicates:
                self._drop(self.database.trial_id(name, number))
        settled = all(self.sweep.states[slot].status in SETTLED for slot in slots)
        (self._settled_studies.add if settled else self._settled_studies.discard)(name)

    def _drop(self, trial_id: int) -> None:
        """Fail a duplicate trial, which arises where two commands enqueue a slot at the same moment."""
        try:
            self.database.set_attr(trial_id, attributes.DUPLICATE, True)
            self.database.finish(trial_id, TrialState.FAIL)
        except UpdateFinishedTrialError:
            pass

    def _enqueue(self, slots: Iterable[Slot]) -> None:
        """Add a WAITING trial for each slot, with what is known of the slot's former trial."""
        for slot in slots:
            old = self.sweep.states[slot]
            attrs: dict[str, Any] = {attributes.SLOT: _key(slot)}
            # Deaths over the point of an earlier winner do not count
            other = slot.final and winner_trained(old) not in (None, self.sweep.winner(slot.group))
            if other or old.status in ("failed", "diverged"):
                attrs[attributes.RETRIED] = True
            if old.trial is not None and old.trial.state == TrialState.COMPLETE:
                attrs[attributes.REPLACES] = old.trial.number
            else:
                attrs[attributes.ROUNDS_BEFORE] = old.rounds_reached
            params, kinds = self._known_params(slot, old.trial)
            trial = optuna.trial.create_trial(
                state=TrialState.WAITING, user_attrs=attrs, params=params, distributions=kinds
            )
            name = self._study_name(slot)
            self._settled_studies.discard(name)
            self.database.add(name, trial)

    def _known_params(self, slot: Slot, old: FrozenTrial | None) -> tuple[dict[str, Any], dict[str, BaseDistribution]]:
        """Return the params and distributions that a slot's new trial has from the beginning.

        These are the point of a search's slot where it is known, and method, setting and seed of a final trial. old:
        the slot's former trial, which may have a proposed point.
        """
        group = self.plan.groups[slot.group]
        if not slot.final:
            point = self.plan.known_point(slot)
            params = params_of(group.space, point) if point is not None else {} if old is None else old.params
            return params, {key: group.space[key].distribution for key in params}
        known = {"method": group.method, "setting": group.setting, "seed": self.plan.seeds[slot.number]}
        every: dict[str, list[Any]] = {
            "method": [each.method for each in self.plan.groups],
            "setting": [each.setting for each in self.plan.groups],
            "seed": self.plan.seeds,
        }
        if not any(every["setting"]):
            del every["setting"]
        kinds: dict[str, BaseDistribution] = {
            k: CategoricalDistribution(list(dict.fromkeys(v))) for k, v in every.items()
        }
        return {key: known[key] for key in kinds}, kinds

    def _trial_id_of(self, slot: Slot) -> int:
        trial = self.sweep.states[slot].trial
        assert trial is not None
        return self.database.trial_id(self._study_name(slot), trial.number)


def _key(slot: Slot) -> str:
    """Return the text by which a trial names its slot."""
    return f"{slot.group}/{slot.number}"
