"""What workers of one machine share, and what they store when a trial goes wrong."""

import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from sqlalchemy.exc import OperationalError

import pflsweep
from pflsweep.config.compose import Config, compose
from pflsweep.sweep import plan as worker_plan
from pflsweep.sweep import worker
from pflsweep.sweep.plan import Plan, Slot, stackable
from pflsweep.sweep.queue import Queue
from pflsweep.sweep.search_space import parse_axis
from pflsweep.sweep.worker import outcome
from pflsweep.tracking import run
from pflsweep.util import retry
from pflsweep.util.errors import UserError
from pflsweep.util.files import Locked
from tests.sweep.sweeping import age_heartbeats


@pytest.fixture
def threads() -> Any:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(("count", "share"), [(2, 4), (3, 2), (16, 1)])
def test_threads_are_divided(count: int, share: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    worker._share_machine(0, count)
    assert torch.get_num_threads() == share


def test_a_worker_refuses_code_that_was_edited_after_the_plan(plan: Plan) -> None:
    """One that starts later, for a dead one or in another job, would put a second version beside the first."""
    with pytest.raises(UserError, match=r"fedavg: your own code .* was edited after the command had begun"):
        worker.work(plan._replace(code=[["00000000"]]))


@pytest.mark.usefixtures("threads")
def test_gpus_are_assigned_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    for index in range(4):
        worker._share_machine(index, 4)
    assert taken == [0, 1, 0, 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "reason", "says"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "OutOfMemoryError: CUDA out of memory", "trace"),
        (ZeroDivisionError("a bug\nof two lines"), "ZeroDivisionError: a bug of two lines", "trace"),
        (worker.UserError("a bad value"), "a bad value", "input"),
        (worker.Diverged("no loss is finite"), "Diverged: no loss is finite", "diverged"),
    ],
)
def test_a_trial_that_fails_says_why(
    error: Exception, reason: str, says: str, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(worker, "run_trial", fails)
    queue = Queue(plan)
    queue.prepare()
    worker.work(plan)
    queue.refresh()
    state = queue.sweep.states[Slot(0, False, 0)]
    lost = says == "diverged"
    assert (state.status, state.reason) == ("diverged" if lost else "failed", reason)
    assert [key for key in ("trace", "input", "diverged") if state.attrs.get(key)] == [says]
    # Later trials in this process do not belong to this sweep
    assert run.SWEEP not in os.environ
    final = queue.sweep.states[Slot(0, True, 0)]
    if lost:
        assert final.reason == f"its search has no winner: every point has lost ({reason})"
    else:
        assert final.status == "blocked", "points without a result elect no winner"


def three(plan: Plan) -> tuple[Queue, Plan]:
    plan = plan._replace(workers=replace(plan.workers, stack=3))
    queue = Queue(plan)
    queue.prepare()
    return queue, plan


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("a second Ctrl-C, or a bug")])
def test_what_ends_a_stack_at_once_puts_its_slots_back(
    error: BaseException, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(trials: Any) -> None:
        assert len(trials) == 3
        raise error

    queue, plan = three(plan)
    monkeypatch.setattr(worker, "run_stack", ends)
    with pytest.raises(type(error)):
        worker.work(plan)
    queue.refresh()
    assert {state.status for state in queue.sweep.states.values()} == {"waiting"}


def test_a_claim_that_fails_puts_those_before_it_back(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, plan = three(plan)
    lease_next, asked = Queue.lease_next, []

    def third_fails(self: Queue, skip: Any = ()) -> Any:
        asked.append(skip)
        if len(asked) == 3:
            raise ZeroDivisionError("the database")
        return lease_next(self, skip)

    monkeypatch.setattr(Queue, "lease_next", third_fails)
    with pytest.raises(ZeroDivisionError):
        worker.work(plan)
    queue.refresh()
    assert {state.status for state in queue.sweep.states.values()} == {"waiting"}


def test_a_trial_whose_process_dies_is_tried_again_three_times(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one whose worker dies: memory may be short for a moment alone."""
    deaths = [3, 1]

    def trained(queue: Queue, lease: Any, *_: Any) -> Any:
        number = lease.slot.number
        if not lease.slot.final and number < 2 and deaths[number]:
            deaths[number] -= 1
            raise worker.WorkerDied(-9)
        return [{"value": 0.5, "identity": f"{lease.slot.final}{number}"}]

    queue, plan = three(plan)
    plan = plan._replace(workers=replace(plan.workers, stack=1))
    monkeypatch.setattr(worker, "_train", trained)
    worker.work(plan)
    queue.refresh()
    by_number = {slot.number: state for slot, state in queue.sweep.states.items() if not slot.final}
    assert [by_number[k].status for k in range(3)] == ["failed", "done", "done"]
    assert "3 times in a row at round 0; the last time: exit status -9" in by_number[0].reason


def test_a_trial_that_another_sweep_trains_is_looked_at_less_and_less_often(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, plan = three(plan)
    plan = plan._replace(workers=replace(plan.workers, stack=1))
    now, looks = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def trained(queue: Queue, lease: Any, *_: Any) -> Any:
        if not lease.slot.final and lease.slot.number == 0 and now[0] < 200:
            looks.append(now[0])
            raise worker.Locked("another process")
        return [{"value": 0.5, "identity": "one"}]

    monkeypatch.setattr(worker, "_train", trained)
    monkeypatch.setattr(worker.time, "sleep", sleep)
    monkeypatch.setattr(worker.time, "monotonic", lambda: now[0])
    worker.work(plan)
    assert looks[:8] == [0, 1, 3, 7, 15, 31, 61, 91]


@pytest.mark.slow
def test_a_stack_tells_what_became_of_each(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """One trial is pruned, one fails, one is held by another process at first and is trained in the end."""
    busy = [1]

    def trained(queue: Queue, lease: Any, *_: Any) -> Any:
        if lease.slot.final:
            return [{"value": 0.5, "identity": "final"}]
        match lease.slot.number:
            case 0:
                raise worker.Pruned("it loses")
            case 1:
                raise ZeroDivisionError("a bug")
        if busy.pop() if busy else 0:
            raise worker.Locked("another process")
        return [{"value": 0.9, "identity": "third"}]

    queue, plan = three(plan)
    monkeypatch.setattr(worker, "_train", trained)
    worker.work(plan)
    queue.refresh()
    by_number = {slot.number: state for slot, state in queue.sweep.states.items() if not slot.final}
    assert [by_number[k].status for k in range(3)] == ["pruned", "failed", "done"]
    assert "ZeroDivisionError: a bug" in by_number[1].reason
    assert "raise ZeroDivisionError" in by_number[1].attrs["trace"], "where it was raised"
    assert all(state.status == "blocked" for slot, state in queue.sweep.states.items() if slot.final), (
        "a bug is no result"
    )


def test_a_database_that_is_away_in_a_stack_loses_nothing(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results of the other trials are stored, the slot of the one that met the error is free, and the worker ends."""

    def trained(queue: Queue, lease: Any, *_: Any) -> Any:
        if lease.slot.number == 1:
            raise worker.StorageUnavailable("MLflow does not answer")
        return [{"value": 0.5 + lease.slot.number / 10, "identity": str(lease.slot.number)}]

    queue, plan = three(plan)
    monkeypatch.setattr(worker, "_train", trained)
    with pytest.raises(worker.StorageUnavailable):
        worker.work(plan)
    queue.refresh()
    by_number = {slot.number: state for slot, state in queue.sweep.states.items() if not slot.final}
    assert [by_number[k].status for k in range(3)] == ["done", "waiting", "done"]


def test_training_does_not_wait_for_the_database(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial's progress is stored with its next heartbeat, and a heartbeat may fail."""
    queue = Queue(plan)
    queue.prepare()
    lease = queue.lease_next()
    assert lease is not None
    monkeypatch.setattr(queue.database.storage, "set_trial_user_attr", _gone)
    record = SimpleNamespace(last_row={"round": 3, "personal_accuracy": 0.5}, config={"train": {"rounds": 9}})
    worker._AfterRound(queue, lease, before=9)(record)
    with pytest.raises(ConnectionError):
        queue.beat(lease)
    monkeypatch.undo()
    queue.beat(lease)
    queue.refresh()
    state = queue.sweep.states[lease.slot]
    assert (state.attrs["round"], state.attrs["reached"]) == ([3, 9], 12)


def test_a_point_is_pruned_by_its_rounds_under_all_seeds(plan: Plan) -> None:
    """The third round of the second seed, of nine rounds each, is the twelfth."""
    plan = plan._replace(tune=replace(plan.tune, prune="median"))
    queue = Queue(plan)
    queue.prepare()
    lease = queue.lease_next()
    assert lease is not None
    row = {"round": 3, "personal_accuracy": 0.9, "personal_validation_accuracy": 0.5}
    record = SimpleNamespace(last_row=row, rounds=pd.DataFrame([row]), config={"train": {"rounds": 9}})
    worker._AfterRound(queue, lease, before=9)(record)
    queue.refresh()
    trial = queue.sweep.states[lease.slot].trial
    assert trial is not None
    assert trial.intermediate_values == {12: 0.5}


@pytest.mark.parametrize("best", [0.9, 0.5])
def test_a_point_that_is_taken_over_is_pruned_by_its_best_round_of_all(plan: Plan, best: float) -> None:
    """Its new trial in the database is told of the rounds before, without which it would be behind the others."""
    tuned = replace(plan.tune, prune="median")
    rates = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
    space = {"train.lr": parse_axis("train.lr", {"grid": rates}, "a test")}
    group = plan.groups[0]._replace(
        space=space, points=[{"train.lr": rate} for rate in rates], search_slot_count=len(rates)
    )
    queue = Queue(plan._replace(tune=tuned, groups=[group]))
    queue.prepare()
    for _ in rates[1:]:
        other = queue.lease_next()
        assert other is not None
        assert not worker._AfterRound(queue, other, before=0).report(_scored(0.3, 0.6, 0.6, 0.6))
        queue.complete(other, 0.6, {})
    curve, known = _scored(0.3, best, float("nan"), 0.45), {1: 0.3, 2: best}
    # Of two workers, the first of which is silent from round 3 on
    for rounds, told in ((curve[:3], known), (curve, known | {4: 0.45})):
        lease = queue.lease_next()
        assert lease is not None
        stops = worker._AfterRound(queue, lease, before=0).report(rounds)
        queue.refresh()
        trial = queue.sweep.states[lease.slot].trial
        assert trial is not None
        assert trial.intermediate_values == told
        age_heartbeats(queue)
        queue.revive()
    assert stops == (best < 0.6)


def _scored(*validation: float) -> pd.DataFrame:
    return pd.DataFrame({"round": range(1, len(validation) + 1), "personal_validation_accuracy": validation})


def test_a_point_has_the_mean_of_its_seeds_which_train_one_after_another(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan._replace(tune=replace(plan.tune, seeds=2))
    queue, trained, values = Queue(plan), list[Any](), iter([0.4, 0.8])
    queue.prepare()
    lease = queue.lease_next()
    assert lease is not None

    def train(config: Config, _: Any, watch: Any, *rest: Any, **more: Any) -> SimpleNamespace:
        trained.append((config, watch))
        return SimpleNamespace(rounds=_scored())

    monkeypatch.setattr(worker, "run_trial", train)
    monkeypatch.setattr(worker, "outcome", lambda *_: {"value": next(values), "identity": "a"})
    assert worker._train_and_store(queue, lease, lambda: worker._train(queue, lease, lambda: False))
    rounds = plan.groups[0].config.train.rounds
    assert [(config.seed, watch.before) for config, watch in trained] == [(0, 0), (1, rounds)]
    assert queue.sweep.states[lease.slot].value == pytest.approx(0.6)


def _gone(*_: Any) -> None:
    raise ConnectionError("no database")


def test_what_may_train_at_once(plan: Plan) -> None:
    group = plan.groups[0]

    def changed(**values: Any) -> Any:
        config = worker_plan.changed(group.config, {key.replace("__", "."): value for key, value in values.items()})
        return group._replace(config=config)

    assert stackable(group, changed(train__lr=0.5, partition__alpha=0.1))
    assert not stackable(group, changed(train__momentum=0.5)), "the optimiser is one for all"
    assert not stackable(group, changed(train__batch=7))
    assert not stackable(group, changed(model__hidden=[3]))
    searched = group._replace(space={"train.batch": parse_axis("train.batch", {"grid": [8, 16]}, "a test")})
    assert not stackable(searched, searched)
    few, other = (changed(train__rounds=rounds).config for rounds in (1, 2))
    assert stackable(group._replace(search=few), group._replace(search=few))
    assert not stackable(group._replace(search=few), group._replace(search=other)), "points of other rounds"
    assert not stackable(group._replace(search=few), group)
    assert worker._of_one_point(Slot(0, True, 0), Slot(0, True, 1)), "its seeds may, whatever was searched"
    assert not worker._of_one_point(Slot(0, True, 0), Slot(0, False, 1))


def test_private_trials_train_one_by_one(plan: Plan) -> None:
    private = plan.groups[0]._replace(config=compose(["privacy=dp_sgd", f"paths.runs={plan.runs}"]))
    for group, stacked in ((plan.groups[0], 3), (private, 1)):
        queue, _ = three(plan._replace(id=f"{stacked:016}", groups=[group]))
        assert len(worker._leases(queue, set())) == stacked


@pytest.mark.usefixtures("elsewhere")
def test_points_of_another_scale_train_apart_from_final_trials(plan: Plan) -> None:
    few = worker_plan.changed(plan.groups[0].config, {"train.rounds": 1})
    over = plan.groups[0]._replace(setting="over", points=[{"train.lr": 0.1}], search_slot_count=1)
    for search, expected in ((None, {False, True}), (few, {True})):
        groups = [group._replace(search=search) for group in (plan.groups[0], over)]
        plan = plan._replace(id=f"{len(expected):016}", groups=groups, workers=replace(plan.workers, stack=4))
        queue = Queue(plan)
        queue.prepare()
        # A point of the second group, whose final trials are then ready
        point = queue.lease_next(plan.search_slots(0))
        assert point is not None
        queue.complete(point, 0.5, {"trials": []})
        queue._free.sort(key=lambda slot: not slot.final)
        assert {lease.slot.final for lease in worker._leases(queue, set())} == expected


@pytest.mark.usefixtures("elsewhere")
def test_the_best_round_counts_in_searches_alone(plan: Plan) -> None:
    """A final trial's best round would be chosen on test data."""
    best = plan._replace(tune=replace(plan.tune, round="best"))
    result = pflsweep.run(["train.rounds=1", "partition.clients=4", "tracking=none"])
    columns = {"personal_accuracy": [0.5, 0.9, 0.7], "personal_validation_accuracy": [0.3, 0.6, 0.4]}
    result.rounds = pd.concat([result.rounds] * 3).assign(**columns)
    slots = (Slot(0, False, 0), Slot(0, True, 0))
    values = [outcome(result, of, slot)["value"] for of in (plan, best) for slot in slots]
    assert values == [0.4, 0.7, 0.6, 0.7]
    tests = [outcome(result, of, slot)["test"] for of in (plan, best) for slot in slots]
    assert tests == [0.7, 0.7, 0.9, 0.7], "of the round that counts, whichever data choose it"


@pytest.mark.usefixtures("elsewhere")
def test_a_search_without_validation_rows_says_so(plan: Plan) -> None:
    result = pflsweep.run(["train.rounds=1", "partition.clients=4", "tracking=none"])
    with pytest.raises(UserError, match=r"training rows times tune\.validation \(0\.2\) round to none"):
        outcome(result, plan, Slot(0, False, 0))
    with pytest.raises(UserError, match=r"tune\.view is trained, but fedavg has no such model"):
        outcome(result, plan._replace(tune=replace(plan.tune, view="trained")), Slot(0, True, 0))


@pytest.mark.parametrize("end", [KeyboardInterrupt, Locked("another process has it")], ids=["Ctrl-C", "busy"])
def test_a_slot_that_was_taken_over_meanwhile_is_not_put_back(
    end: BaseException, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, other = Queue(plan), Queue(plan)
    queue.prepare()
    queue.refresh()
    lease = queue.lease_next()
    assert lease is not None

    def ends() -> Any:
        other.refresh()
        other.complete(lease, 0.5, {"trials": []})
        raise end

    if isinstance(end, Locked):
        assert worker._train_and_store(queue, lease, ends) is False
    else:
        with pytest.raises(KeyboardInterrupt):
            worker._train_and_store(queue, lease, ends)
    queue.refresh()
    assert queue.sweep.states[lease.slot].value == 0.5


def test_an_outcome_whose_lease_has_expired_is_not_stored(plan: Plan, caplog: pytest.LogCaptureFixture) -> None:
    queue, other = Queue(plan), Queue(plan)
    queue.prepare()
    lease = queue.lease_next()
    assert lease is not None
    age_heartbeats(queue)
    other.refresh()
    other.revive()
    assert worker._train_and_store(queue, lease, lambda: [{"value": 0.5}])
    assert "fedavg lr=0.1 (search): this worker was silent for too long" in caplog.text
    assert "the trial is enqueued again" in caplog.text
    other.refresh()
    assert other.sweep.states[lease.slot].status == "waiting"


@pytest.mark.parametrize("outcome", ["done", "failed", "pruned"])
def test_an_outcome_is_stored_though_the_databases_answer_is_lost(
    outcome: str, plan: Plan, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retry, "PAUSE", 0)
    queue, lost = Queue(plan), []
    queue.prepare()
    lease = queue.lease_next()
    assert lease is not None
    store = queue.database.storage.set_trial_state_values

    def lossy(*args: Any, **kwargs: Any) -> bool:
        answer = store(*args, **kwargs)
        if not lost:
            lost.append(answer)
            raise OperationalError("commit", {}, Exception("gone"))
        return answer

    def train() -> Any:
        if outcome != "done":
            raise {"failed": worker.UserError, "pruned": worker.Pruned}[outcome]("for a test")
        return [{"value": 0.5, "identity": "a"}]

    monkeypatch.setattr(queue.database.storage, "set_trial_state_values", lossy)
    assert worker._train_and_store(queue, lease, train)
    assert lost == [True]
    assert not caplog.text
    assert queue.sweep.states[lease.slot].status == outcome


class Recording:
    """A tracker that keeps what it receives."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def __enter__(self) -> "Recording":
        return self

    def __exit__(self, *_: object) -> None:
        self.told.append("exit")

    def log_rounds(self, record: Any) -> None:
        self.told.append(record.done)

    def finish(self, record: Any, status: str) -> None:
        self.told.append(status)


def test_a_worker_that_lost_its_lease_stops_after_its_round_and_tracks_nothing_more(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tracked, other, taken = Recording(), Queue(plan), list[Any]()
    other.prepare()
    watched = worker._AfterRound.__call__

    def suspended(watch: Any, record: Any) -> None:
        """Suspend this worker for a minute in the third round, and let another one take its trial over."""
        if record.done == 3:
            age_heartbeats(watch.queue)
            other.revive()
            taken.append(other.lease_next())
            watch.lease.renewed -= 60
        watched(watch, record)

    monkeypatch.setattr(worker._AfterRound, "__call__", suspended)
    monkeypatch.setattr(worker, "open_run", lambda *_: tracked)
    with caplog.at_level("WARNING"), pytest.raises(KeyboardInterrupt):
        worker.work(plan, stop=lambda: bool(taken))
    assert tracked.told == [1, 2]
    assert taken[0].slot == Slot(0, False, 0)
    assert "another has taken the trial over. It is stopped here" in caplog.text
    other.refresh()
    assert other.sweep.states[Slot(0, False, 0)].status == "running", "the one who lost it has not released it"
