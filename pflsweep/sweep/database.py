"""The database of a sweep: studies and trials in Optuna's storage.

While the database is unavailable, calls wait for it, see `Retrying`; those that do not wait say so.
"""

import time
import warnings
from collections.abc import Iterable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.pruners import BasePruner
from optuna.trial import FrozenTrial, TrialState

from pflsweep.sweep.storage import SILENCE, Retrying, open_storage, place_of
from pflsweep.util import files
from pflsweep.util.retry import PAUSE


class Database:
    """The studies of a sweep, by name, and their trials, by id."""

    def __init__(self, url: str, heartbeat: int, pruner: BasePruner) -> None:
        """Open the storage at a URL. Raises UserError if it cannot be used.

        heartbeat: seconds between two heartbeats of a worker. pruner: of every study.
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.storage = open_storage(url, heartbeat)
        place = place_of(url)
        self._heartbeat, self._pruner, self._call = heartbeat, pruner, Retrying(place)
        # Optuna reads a trial's state and then sets it. A server locks the row meanwhile; SQLite has no such lock, and
        # would grant a trial to several workers
        self._granting = partial(files.locked, place) if isinstance(place, Path) else nullcontext
        self._studies: dict[str, optuna.Study] = {}  # each caches the trials that are over
        self._ids: dict[tuple[str, int], int] = {}  # of trials, by their study and number

    def wait_no_more(self) -> None:
        """Let each call raise from now on where the database is unavailable, instead of waiting for it."""
        self._call.wait = False

    @property
    def heartbeats_were_possible(self) -> bool:
        """Whether live workers have had time for a heartbeat since the database was last unavailable."""
        return time.monotonic() - self._call.missed > PAUSE + SILENCE * self._heartbeat

    def study(self, name: str) -> optuna.Study:
        """Return a study, which is created where there is none of that name."""
        if name not in self._studies:
            self._studies[name] = self._call(
                optuna.create_study,
                storage=self.storage,
                study_name=name,
                direction="maximize",
                load_if_exists=True,
                pruner=self._pruner,
            )
        return self._studies[name]

    def study_attrs(self, name: str) -> dict[str, Any]:
        study = self.study(name)
        return self._call(lambda: study.user_attrs)

    def set_study_attr(self, name: str, key: str, value: Any) -> None:
        self._call(self.study(name).set_user_attr, key, value)

    def describe(self, name: str, metric: str, attrs: Mapping[str, Any]) -> None:
        """Store the name of a study's metric and attributes of the study, once."""
        study = self.study(name)
        if self._call(lambda: study.metric_names) is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # metric names are experimental
                self._call(study.set_metric_names, [metric])
            for key, value in attrs.items():
                self.set_study_attr(name, key, value)

    def fail_stale(self, names: Iterable[str]) -> None:
        """Fail the trials of some studies whose worker has sent no heartbeat for too long. Does not wait."""
        # An unavailable database is left to the next call, which waits; Optuna warns that this one is experimental
        with suppress(optuna.exceptions.StorageInternalError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in names:
                optuna.storages.fail_stale_trials(self.study(name))

    def trials(self, name: str) -> list[FrozenTrial]:
        """Return the trials of a study, which are not to be changed."""
        return self._call(self.study(name).get_trials, deepcopy=False)

    def add(self, name: str, trial: FrozenTrial) -> None:
        """Add a trial to a study."""
        self._call(self.study(name).add_trial, trial)

    def trial_id(self, name: str, number: int) -> int:
        """Return the id of a study's trial by its number."""
        if (name, number) not in self._ids:
            study = self._call(self.storage.get_study_id_from_name, name)
            self._ids[name, number] = self._call(self.storage.get_trial_id_from_study_id_trial_number, study, number)
        return self._ids[name, number]

    def trial(self, trial_id: int) -> FrozenTrial:
        return self._call(self.storage.get_trial, trial_id)

    def set_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Store an attribute of a trial. Raises UpdateFinishedTrialError if the trial is over."""
        self._call(self.storage.set_trial_user_attr, trial_id, key, value)

    def set_params(self, trial_id: int, params: dict[str, Any], kinds: dict[str, BaseDistribution]) -> None:
        """Store params that a trial lacks. kinds: their distributions."""
        for key, value in params.items():
            self._call(self.storage.set_trial_param, trial_id, key, kinds[key].to_internal_repr(value), kinds[key])

    def report(self, name: str, trial_id: int, values: Mapping[int, float]) -> bool:
        """Store a trial's intermediate values, by step. Return whether the pruner would stop the trial."""
        for step, value in values.items():
            self._call(self.storage.set_trial_intermediate_value, trial_id, step, value)
        study = self.study(name)
        return self._call(study.pruner.prune, study, self.trial(trial_id))

    def lease(self, trial_id: int) -> bool:
        """Set a trial from WAITING to RUNNING. Return whether it was granted, as it is to one worker alone."""
        # A heartbeat would make the worker seem alive that has leased the trial meanwhile
        if self.trial(trial_id).state != TrialState.WAITING:
            return False
        # Heartbeat first, so that a worker that dies right after it has the lease is found to be silent
        self._call(self.storage.record_heartbeat, trial_id)
        try:
            with self._granting():
                return self._call(self.storage.set_trial_state_values, trial_id, state=TrialState.RUNNING)
        except UpdateFinishedTrialError:
            return False

    def beat(self, trial_id: int, attrs: Mapping[str, Any]) -> bool:
        """Send a heartbeat of a trial and store attributes with it. Return whether the trial still runs.

        Does not wait: raises where the database is unavailable.
        """
        try:
            self.storage.record_heartbeat(trial_id)
            for key, value in attrs.items():
                self.storage.set_trial_user_attr(trial_id, key, value)
            return self.storage.get_trial(trial_id).state == TrialState.RUNNING
        except UpdateFinishedTrialError:
            return False
        except Exception as error:
            # Other workers could not send heartbeats either, see `heartbeats_were_possible`
            self._call.noticed(error)
            raise

    def release(self, trial_id: int) -> None:
        """Set a trial back to WAITING. Does not wait: raises where the database is unavailable."""
        self.storage.set_trial_state_values(trial_id, state=TrialState.WAITING)

    def finish(self, trial_id: int, state: TrialState, value: float | None = None) -> None:
        """Set the final state of a trial. Raises UpdateFinishedTrialError if it has another one."""
        values = None if value is None else [value]
        try:
            self._call(self.storage.set_trial_state_values, trial_id, state=state, values=values)
        except UpdateFinishedTrialError:
            # A first attempt may have been stored and its answer lost
            trial = self.trial(trial_id)
            if (trial.state, trial.values) != (state, values):
                raise
