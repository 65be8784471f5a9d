"""The queue of a sweep, kept in Optuna's storage: a study for each search and one for the final trials.

Each slot of the plan is enqueued as a WAITING trial of Optuna. A worker claims it by setting it RUNNING, which is
granted once, and sends heartbeats while it trains, which renew its lease. When it was silent for too long its
trial FAILs without an `error` and the slot is enqueued again; this does not count as a failure. A slot may thus have
several trials of Optuna: `state_of` says which one counts. While the database is unavailable, calls wait for it, see
`Retrying`.
"""

import json
import time
import warnings
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from pflsweep.sweep.hyperband import promoted
from pflsweep.sweep.plan import Plan, Slot
from pflsweep.sweep.sampling import propose, pruner
from pflsweep.sweep.search_space import Point, distributions, params_of
from pflsweep.sweep.slot_state import (
    POINT,
    SETTLED,
    is_tried_again,
    rounds_in_record,
    state_of,
    winner_trained,
)
from pflsweep.sweep.state import SweepState
from pflsweep.sweep.storage import SILENCE, Retrying, open_storage, place_of, storage_url
from pflsweep.util import files
from pflsweep.util.retry import PAUSE

LONGEST_NAME = 400  # characters of a group's name in a study's name, which PostgreSQL limits to 512
FINAL_SLOT = Slot(0, True, 0)  # stands for all final trials, since they share one study
# Attribute of the final trials' study: a new value makes other commands read settled searches again
RETRIED = "retried"


@dataclass(eq=False)
class Lease:
    """A slot that this worker has claimed, with the point to train."""

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
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.plan, self.worker = plan, worker or uuid4().hex
        url = storage_url(plan)
        self.storage = open_storage(url, plan.workers.heartbeat)
        place = place_of(url)
        self._call = Retrying(place)
        # Optuna reads a trial's state and then sets it. A server locks the row meanwhile; SQLite has no such lock, and
        # would grant a trial to several workers
        self._granting = partial(files.locked, place) if isinstance(place, Path) else nullcontext
        self.sweep = SweepState(plan)
        self._studies: dict[str, optuna.Study] = {}  # each caches the trials that are over
        self._ids: dict[tuple[str, int], int] = {}  # of trials, by their study and number
        # Names of studies that are not read again until a command retries points
        self._settled_studies: set[str] = set()
        self._retried: str | None = None  # the last value of RETRIED that was read
        self._free: list[Slot] = []  # slots that were free at the last refresh

    def wait_no_more(self) -> None:
        """Let each call raise from now on where the database is unavailable, instead of waiting for it."""
        self._call.wait = False

    def prepare(self, retry: bool = False) -> None:
        """Enqueue slots that are new, final trials whose record was deleted or that had bad input, and points without a
        result.

        retry: also enqueue whatever failed or diverged.
        """
        self._settled_studies.clear()
        self.refresh()
        self._describe()
        runs = self.plan.runs if self.plan.workers.storage is None else None
        # Slots of a command that was killed still seem to run; without this they would come last
        if any(state.status == "running" for state in self.sweep.states.values()):
            self.revive()

        def needs_a_trial(slot: Slot) -> bool:
            state = self.sweep.states[slot]
            deleted = slot.final and state.status == "done" and state.record_deleted(runs)
            unsettled = state.status == "due" or is_tried_again(slot, state)
            return deleted or unsettled or (retry and state.status in ("failed", "diverged"))

        anew = [slot for slot in self.plan.slots if needs_a_trial(slot)]
        self._enqueue(anew)
        # Announced last, so that a command that reads it finds the new trials
        if any(not slot.final for slot in anew):
            self._call(self._study(self._study_name(FINAL_SLOT)).set_user_attr, RETRIED, uuid4().hex)
        self.refresh()

    def _describe(self) -> None:
        """Store in each study its sweep and what its values mean, for readers of optuna-dashboard."""
        attrs = {"sweep": self.plan.name, "scale": self.plan.scale, "reading": self.plan.reading}
        for name, slots in self._slots_by_study().items():
            study = self._study(name)
            if self._call(lambda study=study: study.metric_names) is None:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # metric names are experimental
                    self._call(study.set_metric_names, [self.plan.metric_name(slots[0])])
                for key, value in attrs.items():
                    self._call(study.set_user_attr, key, value)

    def refresh(self) -> None:
        """Read the state of every slot from the database."""
        final = self._study(self._study_name(FINAL_SLOT))
        retried = self._call(lambda: final.user_attrs).get(RETRIED)
        if retried != self._retried:
            self._settled_studies.clear()
            self._retried = retried
        for name, slots in self._slots_by_study().items():
            if name not in self._settled_studies:
                self._read(name, slots)
        waiting = [slot for slot in self.plan.slots if self.sweep.states[slot].status == "waiting"]
        # Retried slots come first
        self._free = sorted(waiting, key=lambda slot: not self.sweep.states[slot].result.get("retried"))

    def revive(self) -> None:
        """Enqueue the slots of workers that were silent for too long."""
        if self._could_be_heard():
            # An unavailable database is left to `refresh`, which waits; Optuna warns that the call is experimental
            with suppress(optuna.exceptions.StorageInternalError), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for name in self._slots_by_study():
                    if name not in self._settled_studies:
                        optuna.storages.fail_stale_trials(self._study(name))
        self.refresh()
        due = [slot for slot in self.plan.slots if self.sweep.states[slot].status == "due"]
        if due:
            self._enqueue(due)
            self.refresh()

    def _could_be_heard(self) -> bool:
        """Return whether live workers have had time for a heartbeat since the database was last unavailable."""
        heartbeat = self.plan.workers.heartbeat
        return time.monotonic() - self._call.missed > PAUSE + SILENCE * heartbeat

    def claim(self, skip: Iterable[Slot] = ()) -> Lease | None:
        """Claim the next slot that is free and ready. Return None if none is known; `refresh` may find some."""
        skip = set(skip)
        for slot in list(self._free):
            if slot in skip or not (self._ready_now(slot.group) if slot.final else self.sweep.proposable(slot)):
                continue
            self._free.remove(slot)
            trial_id = self._trial_id_of(slot)
            # A heartbeat would make the worker seem alive that has claimed the trial meanwhile
            if self._call(self.storage.get_trial, trial_id).state != TrialState.WAITING:
                continue
            now = time.time()
            # Heartbeat before claim, so that a worker that dies right after the claim is found to be silent
            self._call(self.storage.record_heartbeat, trial_id)
            try:
                with self._granting():
                    granted = self._call(self.storage.set_trial_state_values, trial_id, state=TrialState.RUNNING)
            except UpdateFinishedTrialError:
                granted = False
            if granted:
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
        self.set_attr(lease, "reached", before + done)
        self.set_attr(lease, "record", {"folder": str(folder), "before": before, "done": done})

    def set_attr(self, lease: Lease, key: str, value: Any) -> None:
        """Store an attribute of a trial in the database."""
        self._call(self.storage.set_trial_user_attr, lease.trial_id, key, value)

    def report(self, lease: Lease, step: int, value: float) -> bool:
        """Store a point's value after `step` rounds. Return whether the pruner would stop it."""
        self._call(self.storage.set_trial_intermediate_value, lease.trial_id, step, value)
        trial = self._call(self.storage.get_trial, lease.trial_id)
        study = self._study(self._study_name(lease.slot))
        return self._call(study.pruner.prune, study, trial)

    def note(self, lease: Lease, **attrs: Any) -> None:
        """Keep attributes of a trial for the next heartbeat to store. Training does not wait for the database."""
        lease.notes = attrs

    def beat(self, lease: Lease) -> None:
        """Renew the lease of a trial. Raises where the database is unavailable; the next heartbeat may reach it."""
        trial_id, now = lease.trial_id, time.time()
        try:
            self.storage.record_heartbeat(trial_id)
            for key, value in lease.notes.items():
                self.storage.set_trial_user_attr(trial_id, key, value)
            trial_state = self.storage.get_trial(trial_id).state
        except UpdateFinishedTrialError:
            trial_state = TrialState.FAIL
        except Exception as error:
            # Other workers could not send heartbeats either, see `_could_be_heard`
            self._call.noticed(error)
            raise
        if trial_state == TrialState.RUNNING:
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
            # Of a database that is away nobody claims the trial. Where this machine alone is cut off, another may train
            # it too: the first result counts
            with suppress(Exception):
                self.beat(lease)
        return not lease.lost

    def record_death(self, worker: str, status: str) -> int:
        """Enqueue again the slots that a worker held when it died, and count the death against each.

        status: the end of its process as the operating system reports it. Returns the number of slots.
        """
        found = 0
        for name in self._slots_by_study():
            for trial in self._trials(name):
                if trial.state == TrialState.RUNNING and trial.user_attrs.get("worker") == worker:
                    # Another worker may have taken the trial over meanwhile
                    with suppress(UpdateFinishedTrialError):
                        self._count_death(self._find_trial_id(name, trial.number), trial, status)
                    found += 1
        self.revive()
        return found

    def retry_after_death(self, lease: Lease, status: str) -> None:
        """Enqueue a slot again after a process of its worker has died, and count the death against it."""
        self._count_death(lease.trial_id, self._call(self.storage.get_trial, lease.trial_id), status)
        self.revive()

    def _count_death(self, trial_id: int, trial: FrozenTrial, status: str) -> None:
        death = {"status": status, "rounds": rounds_in_record(trial)}
        self._call(self.storage.set_trial_user_attr, trial_id, "death", death)
        self._finish(trial_id, TrialState.FAIL)

    def tell(self, lease: Lease, value: float, result: dict[str, Any]) -> None:
        """Settle a slot as done. value: the accuracy that slots are compared by."""
        self.set_attr(lease, "result", result)
        self._end(lease, TrialState.COMPLETE, value)

    def fail(self, lease: Lease, error: str, **more: Any) -> None:
        """Settle a slot as failed. more: `diverged=True`, which counts as a result; `input=True` for an error in the
        input; `trace`, the traceback of a bug.
        """
        for key, value in (*more.items(), ("error", error)):
            self.set_attr(lease, key, value)
        self._end(lease, TrialState.FAIL)

    def prune(self, lease: Lease, result: dict[str, Any]) -> None:
        """Settle a slot as pruned. Its value is the one of the last report."""
        self.set_attr(lease, "result", result)
        steps = self._call(self.storage.get_trial, lease.trial_id).intermediate_values
        self._end(lease, TrialState.PRUNED, steps[max(steps)] if steps else None)

    def release(self, lease: Lease) -> None:
        """Give a slot back, for another worker or a later command.

        Raises at once where the database is unavailable, since the caller is about to end. The slot's lease then
        expires, and another worker takes it over.
        """
        self.storage.set_trial_state_values(lease.trial_id, state=TrialState.WAITING)

    def _end(self, lease: Lease, trial_state: TrialState, value: float | None = None) -> None:
        """Set the final state of a claimed slot's trial."""
        self._finish(lease.trial_id, trial_state, None if value is None else [value])
        self.sweep.states[lease.slot] = state_of([self._call(self.storage.get_trial, lease.trial_id)])

    def _finish(self, trial_id: int, trial_state: TrialState, values: list[float] | None = None) -> None:
        """Set the final state of a trial. Raises UpdateFinishedTrialError if it has another one."""
        try:
            self._call(self.storage.set_trial_state_values, trial_id, state=trial_state, values=values)
        except UpdateFinishedTrialError:
            # A first attempt may have been stored and its answer lost
            trial = self._call(self.storage.get_trial, trial_id)
            if (trial.state, trial.values) != (trial_state, values):
                raise

    def _new_lease(self, slot: Slot, trial_id: int, renewed: float) -> Lease:
        """Store this worker and the point to train with a slot that it was granted, and return the lease."""
        group = self.plan.groups[slot.group]
        self._call(self.storage.set_trial_user_attr, trial_id, "worker", self.worker)
        if slot.final:
            point = self.sweep.winner(slot.group) or {}
            # Each key by itself too, for optuna-dashboard
            for key, value in {POINT: json.dumps(point), **point}.items():
                self._call(self.storage.set_trial_user_attr, trial_id, key, value)
            return Lease(slot, trial_id, point, renewed)
        trial = self._call(self.storage.get_trial, trial_id)
        params, kinds = self._params(slot, trial), distributions(group.space)
        for key in (key for key in params if key not in trial.params):
            drawn = kinds[key].to_internal_repr(params[key])
            self._call(self.storage.set_trial_param, trial_id, key, drawn, kinds[key])
        return Lease(slot, trial_id, group.point_of(params), renewed)

    def _params(self, slot: Slot, trial: FrozenTrial) -> dict[str, Any]:
        """Return the point of a search's slot as Optuna's params: those of its trial, else a new proposal."""
        group = self.plan.groups[slot.group]
        if trial.params.keys() == group.space.keys():
            return trial.params
        nothing = optuna.trial.create_trial(state=TrialState.WAITING)
        earlier = self.plan.search_slots(slot.group)[: slot.number]
        trials = [self.sweep.states[each].trial or nothing for each in earlier]
        if (rung := self.plan.rung(slot)) is not None:
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

    def _study(self, name: str) -> optuna.Study:
        """Return a study, which is created where there is none of that name."""
        if name not in self._studies:
            self._studies[name] = self._call(
                optuna.create_study,
                storage=self.storage,
                study_name=name,
                direction="maximize",
                load_if_exists=True,
                pruner=pruner(self.plan.tune),
            )
        return self._studies[name]

    def _trials(self, name: str) -> list[FrozenTrial]:
        return self._call(self._study(name).get_trials, deepcopy=False)

    def study_of(self, group: int) -> optuna.Study:
        """Return the study of a group's search, for plots."""
        return self._study(self._study_name(Slot(group, False, 0)))

    def _read(self, name: str, slots: list[Slot]) -> None:
        """Read the state of a study's slots, and drop duplicate trials."""
        by_slot: dict[str, list[FrozenTrial]] = {}
        for trial in self._trials(name):
            by_slot.setdefault(trial.user_attrs.get("slot", ""), []).append(trial)
        for slot in slots:
            state = self.sweep.states[slot] = self.sweep.adapt_to_search(slot, state_of(by_slot.get(_label(slot), [])))
            for number in state.duplicates:
                self._drop(self._find_trial_id(name, number))
        settled = all(self.sweep.states[slot].status in SETTLED for slot in slots)
        (self._settled_studies.add if settled else self._settled_studies.discard)(name)

    def _drop(self, trial_id: int) -> None:
        """Fail a duplicate trial, which arises where two commands enqueue a slot at the same moment."""
        try:
            self._call(self.storage.set_trial_user_attr, trial_id, "duplicate", True)
            self._finish(trial_id, TrialState.FAIL)
        except UpdateFinishedTrialError:
            pass

    def _enqueue(self, slots: Iterable[Slot]) -> None:
        """Add a WAITING trial for each slot, with what is known of the slot's former trial."""
        for slot in slots:
            old = self.sweep.states[slot]
            attrs: dict[str, Any] = {"slot": _label(slot)}
            # Deaths over the point of an earlier winner do not count
            other = slot.final and winner_trained(old) not in (None, self.sweep.winner(slot.group))
            if other or old.status in ("failed", "diverged"):
                attrs["retried"] = True
            if old.trial is not None and old.trial.state == TrialState.COMPLETE:
                attrs["anew"] = old.trial.number
            else:
                attrs["before"] = old.result.get("reached", old.result.get("before", 0))
            params, kinds = self._known_params(slot, old.trial)
            trial = optuna.trial.create_trial(
                state=TrialState.WAITING, user_attrs=attrs, params=params, distributions=kinds
            )
            name = self._study_name(slot)
            self._settled_studies.discard(name)
            self._call(self._study(name).add_trial, trial)

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
        return self._find_trial_id(self._study_name(slot), trial.number)

    def _find_trial_id(self, name: str, number: int) -> int:
        if (name, number) not in self._ids:
            study = self._call(self.storage.get_study_id_from_name, name)
            self._ids[name, number] = self._call(self.storage.get_trial_id_from_study_id_trial_number, study, number)
        return self._ids[name, number]


def _label(slot: Slot) -> str:
    """Return the text by which a trial names its slot."""
    return f"{slot.group}/{slot.number}"
