"""The state of a slot: which of its trials in Optuna counts, and what they say together."""

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from socket import gethostname
from typing import Any, NamedTuple

from optuna.trial import FrozenTrial, TrialState

from pflsweep.sweep import attributes
from pflsweep.sweep.plan import Group, Slot
from pflsweep.sweep.search_space import Point
from pflsweep.util import files

DEATHS = 3  # a slot fails after so many deaths of its workers in a row without a further round
OPEN = (TrialState.WAITING, TrialState.RUNNING)
SETTLED = ("done", "pruned", "diverged", "failed")  # all but "failed" are results, by which a point wins or loses


class SlotState(NamedTuple):
    """The state of a slot.

    status: waiting, running, done, pruned, diverged, failed, blocked (no winner), or due: it has to be enqueued, since
        it is new, its lease has expired, or another point has won since it was trained.
    trial: the trial of Optuna that counts; None before the first.
    deaths: workers that died over it in a row, without a further round in its record.
    duplicates: numbers of further trials of it, which arise where two commands enqueue a slot at once.
    superseded: identities of its former final trials, whose points do not win any more.
    """

    status: str
    trial: FrozenTrial | None
    deaths: int = 0
    duplicates: tuple[int, ...] = ()
    superseded: tuple[str, ...] = ()

    @property
    def value(self) -> float | None:
        """Return the accuracy that slots are compared by, in [0, 1]; None unless the slot is done."""
        return self.trial.value if self.trial is not None and self.status == "done" else None

    @property
    def attrs(self) -> dict[str, Any]:
        """Return what commands and workers have stored with the trial in Optuna."""
        return {} if self.trial is None else self.trial.user_attrs

    @property
    def rounds_reached(self) -> int:
        """Return how many rounds the slot has reached over all its seeds, as of its last heartbeat."""
        return int(self.attrs.get(attributes.ROUNDS_REACHED, self.attrs.get(attributes.ROUNDS_BEFORE, 0)))

    @property
    def results(self) -> list[dict[str, Any]]:
        """Return the results of a done slot's trials, one a seed, as `worker.outcome` makes them."""
        return self.attrs.get(attributes.RESULT, {}).get("trials", []) if self.status == "done" else []

    def record_lost(self, runs: Path | None, rounds: int) -> bool:
        """Return whether a record that should be on this machine is gone or has fewer rounds, since it began anew.

        runs: the folder of runs that the database lies in, if it does: then all records are in it, whatever the name of
        the machine was, which changes with each container. A copy of that folder is a sweep of its own.
        """
        if runs is not None:
            folders = [runs / one["identity"] for one in self.results]
        else:
            folders = [Path(one["folder"]) for one in self.results if one.get("host") == gethostname()]
        # A damaged one is left to whoever reads it
        found = ((folder, rounds_on_disk(folder)) for folder in folders)
        return any(not folder.exists() if done is None else done < rounds for folder, done in found)

    @property
    def reason(self) -> str:
        """Return why the slot diverged or failed; "" for all others."""
        if self.status not in ("diverged", "failed"):
            return ""
        if attributes.ERROR in self.attrs:
            return str(self.attrs[attributes.ERROR])
        death = self.attrs[attributes.DEATH]
        return (
            f"its worker died {self.deaths} times in a row at round {death['rounds']}; the last time: {death['status']}"
        )


def rounds_on_disk(folder: Path) -> int | None:
    """Return how many rounds the record in a folder has; None where its status cannot be read."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return int(files.read_json(folder / "status.json")["rounds"])
    return None


def point_of(group: Group, state: SlotState) -> Point:
    """Return the point that a slot trains, which is the winner for a final trial; {} where it is not known yet."""
    if state.trial is None:
        return {}
    if (won := winner_trained(state)) is not None:
        return {key: won[key] for key in group.space if key in won}
    return group.point_of(state.trial.params)


def winner_trained(state: SlotState) -> Point | None:
    """Return the winner that a final trial was begun with; None for one that was not begun, and for other slots."""
    text = state.attrs.get(attributes.POINT)
    return None if text is None else json.loads(text)


def is_tried_again(slot: Slot, state: SlotState) -> bool:
    """Return whether a failed slot is tried again by the next command, without retry=true.

    A point of a search is. So is a final trial that had bad input, which may be mended by a key that is not part of the
    plan, such as data.root.
    """
    return state.status == "failed" and (not slot.final or attributes.INPUT in state.attrs)


def state_of(trials: list[FrozenTrial]) -> SlotState:
    """Return the state of a slot from its trials in Optuna, in the order of their numbers.

    Where a done trial was replaced, only the trials from its first replacement on count. Among those, a trial that is
    over settles the slot. Else the first open trial counts, and other waiting ones are `duplicates`. Else the last
    trial says whether the slot failed or is due.
    """
    trials = [trial for trial in trials if not trial.user_attrs.get(attributes.DUPLICATE)]
    finished = {identity: None for trial in trials for identity in identities(trial)}
    replaced = [trial.user_attrs.get(attributes.REPLACES) for trial in trials]
    newest = next((old for old in reversed(replaced) if old is not None), None)
    trials = trials if newest is None else trials[replaced.index(newest) :]
    if not trials:
        return SlotState("due", None)
    running = [trial for trial in trials if trial.state in OPEN]
    for trial_state, status in ((TrialState.COMPLETE, "done"), (TrialState.PRUNED, "pruned")):
        over = [trial for trial in trials if trial.state == trial_state]
        if over:
            duplicates = tuple(t.number for t in running if t.state == TrialState.WAITING)
            counted = identities(over[0])
            return SlotState(status, over[0], 0, duplicates, tuple(each for each in finished if each not in counted))
    superseded = tuple(finished)
    if running:
        first = running[0]
        duplicates = tuple(t.number for t in running[1:] if t.state == TrialState.WAITING)
        return SlotState(first.state.name.lower(), first, 0, duplicates, superseded)
    last, deaths = trials[-1], _deaths(trials)
    if attributes.ERROR in last.user_attrs:
        return SlotState(
            "diverged" if last.user_attrs.get(attributes.DIVERGED) else "failed", last, superseded=superseded
        )
    if deaths < DEATHS:
        return SlotState("due", last, deaths, superseded=superseded)
    died = next(trial for trial in reversed(trials) if attributes.DEATH in trial.user_attrs)
    return SlotState("failed", died, deaths, superseded=superseded)


def _deaths(trials: Iterable[FrozenTrial]) -> int:
    """Return how many workers died in a row over a slot's trials without a further round in the record."""
    count, furthest = 0, -1
    for trial in trials:
        if trial.user_attrs.get(attributes.RETRIED):
            count, furthest = 0, -1
        if death := trial.user_attrs.get(attributes.DEATH):
            count = 1 if death["rounds"] > furthest else count + 1
            furthest = max(furthest, death["rounds"])
    return count


def rounds_in_record(trial: FrozenTrial) -> int:
    """Return how many rounds of a slot are on the disk; without its record here, those of its earlier seeds alone."""
    record = trial.user_attrs.get(attributes.RECORD)
    if record is None:
        return 0
    return int(record["before"]) + (rounds_on_disk(Path(record["folder"])) or 0)


def identities(trial: FrozenTrial | None) -> tuple[str, ...]:
    """Return the identities of the finished trials that a trial of Optuna stands for; () where none is finished."""
    results = [] if trial is None else trial.user_attrs.get(attributes.RESULT, {}).get("trials", [])
    return tuple(result["identity"] for result in results)
