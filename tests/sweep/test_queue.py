"""The queue: the state of a slot by its trials, who may lease it, winners, and two commands at once."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from socket import gethostname
from threading import Barrier
from typing import Any

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy import event

from pflsweep.records.ledger import ledgers
from pflsweep.sweep import ledger
from pflsweep.sweep import queue as queue_module
from pflsweep.sweep import storage as storages
from pflsweep.sweep.plan import Plan, Slot
from pflsweep.sweep.queue import Lease, Queue
from pflsweep.sweep.search_space import parse_axis
from pflsweep.sweep.slot_state import point_of, state_of
from pflsweep.util import files
from tests.sweep.sweeping import age_heartbeats, opened

SEARCH, FINAL = Slot(0, False, 0), Slot(0, True, 0)
KILLED: dict[str, Any] = {"status": "SIGKILL"}
COMPLETE, FAIL, PRUNED = TrialState.COMPLETE, TrialState.FAIL, TrialState.PRUNED
RUNNING, WAITING = TrialState.RUNNING, TrialState.WAITING


def frozen(state: TrialState, number: int, **attrs: Any) -> FrozenTrial:
    value = 0.5 if state == COMPLETE else None
    trial = create_trial(state=state, value=value, user_attrs=attrs)
    trial.number = number
    trial.datetime_start = datetime.now()
    return trial


@pytest.mark.parametrize(
    ("states", "status", "duplicates"),
    [
        ([], "due", ()),
        ([(WAITING, {})], "waiting", ()),
        # Two commands enqueued the slot at once
        ([(WAITING, {}), (WAITING, {})], "waiting", (1,)),
        ([(RUNNING, {}), (WAITING, {})], "running", (1,)),
        ([(COMPLETE, {}), (WAITING, {})], "done", (1,)),
        ([(FAIL, {}), (COMPLETE, {})], "done", ()),
        # Expired leases, as after a reboot, do not count as failures
        ([(FAIL, {})] * 9, "due", ()),
        ([(FAIL, {"death": KILLED | {"rounds": 0}})] * 2, "due", ()),
        ([(FAIL, {"death": KILLED | {"rounds": 0}})] * 3, "failed", ()),
        # An expired lease in between is not a further round
        ([(FAIL, {"death": KILLED | {"rounds": 7}}), (FAIL, {})] * 3, "failed", ()),
        # The record has a further round
        ([(FAIL, {"death": KILLED | {"rounds": n}}) for n in (7, 7, 8)], "due", ()),
        ([(FAIL, {"death": KILLED | {"rounds": n}}) for n in (7, 8, 8, 8)], "failed", ()),
        # What is trained a second time, from a checkpoint, is no further round
        ([(FAIL, {"death": KILLED | {"rounds": n}}) for n in (8, 7, 8)], "failed", ()),
        # A retry resets the count
        ([*[(FAIL, {"death": KILLED | {"rounds": 0}})] * 3, (FAIL, {"retried": True})], "due", ()),
        ([(FAIL, {"error": "it"})], "failed", ()),
        ([(FAIL, {"error": "it", "diverged": True})], "diverged", ()),
        # A retried slot
        ([(FAIL, {"error": "it"}), (WAITING, {})], "waiting", ()),
        ([(WAITING, {"duplicate": True}), (FAIL, {"duplicate": True})], "due", ()),
        ([(PRUNED, {})], "pruned", ()),
        ([(COMPLETE, {}), (WAITING, {"anew": 1})], "waiting", ()),
        ([(COMPLETE, {}), (COMPLETE, {"anew": 1})], "done", ()),
        # Two commands replaced a trial at once
        ([(COMPLETE, {}), (COMPLETE, {"anew": 1}), (WAITING, {"anew": 1})], "done", (2,)),
        ([(COMPLETE, {}), (COMPLETE, {"anew": 1}), (WAITING, {"anew": 2})], "waiting", ()),
    ],
)
def test_where_a_slot_stands(states: list[tuple[TrialState, dict]], status: str, duplicates: tuple[int, ...]) -> None:
    state = state_of([frozen(state, k, **attrs) for k, (state, attrs) in enumerate(states)])
    assert (state.status, state.duplicates) == (status, duplicates)


def test_searches_come_first_and_final_trials_wait_for_them(plan: Plan) -> None:
    queue = opened(plan)
    claims = [queue.lease_next() for _ in range(3)]
    assert [lease.point for lease in claims if lease] == [{"train.lr": lr} for lr in (0.1, 0.2, 0.3)]
    assert queue.lease_next() is None
    for lease, value in zip(claims, (0.4, 0.9, 0.9), strict=True):
        assert lease is not None
        queue.complete(lease, value, {})
    final = queue.lease_next()
    assert final is not None
    assert final.slot == FINAL
    # The first of equal points wins
    assert final.point == {"train.lr": 0.2}
    assert not queue.sweep.finished


def test_other_code_of_pflsweep_is_named_and_trains_on(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened(plan)
    opened(plan)
    assert not caplog.records
    edited = {"engine": "0" * 16, "algorithm": "1" * 16}
    monkeypatch.setattr(queue_module, "shipped_code", lambda config: edited)
    for said in (1, 1):
        queue = opened(plan)
        assert len(caplog.records) == said, "and the code is known then"
    assert "begun with other code of pflsweep (engine, algorithm=fedavg)" in caplog.text
    assert queue.lease_next() is not None


def test_a_slot_is_granted_once(plan: Plan) -> None:
    one, two = opened(plan), opened(plan)
    slots = [lease.slot for queue in (one, two, one, two) if (lease := queue.lease_next()) is not None]
    assert slots == [Slot(0, False, k) for k in range(3)]


def test_a_slot_is_granted_once_to_workers_that_ask_at_the_same_moment(plan: Plan) -> None:
    """Optuna reads a trial's state and then sets it, and SQLite locks nothing in between."""
    points = [{"train.lr": k / 100} for k in range(1, 31)]
    axis = parse_axis("train.lr", {"grid": [point["train.lr"] for point in points]}, "a test")
    plan = plan._replace(
        groups=[plan.groups[0]._replace(space={"train.lr": axis}, points=points, search_slot_count=len(points))]
    )
    queues = [opened(plan) for _ in range(4)]
    together = Barrier(len(queues))

    def leased(queue: Queue) -> list[Slot]:
        found = []
        for _ in range(len(points)):
            together.wait()
            if (lease := queue.lease_next()) is not None:
                found.append(lease.slot)
        return found

    with ThreadPoolExecutor(len(queues)) as pool:
        granted = [slot for found in pool.map(leased, queues) for slot in found]
    assert sorted(granted) == [Slot(0, False, k) for k in range(len(points))]


def test_two_commands_at_once_enqueue_each_slot_once(plan: Plan) -> None:
    one, two = Queue(plan), Queue(plan)
    for queue in (one, two):
        # Both see that nothing is enqueued yet
        queue.refresh()
    for queue in (one, two):
        queue._enqueue([slot for slot in plan.slots if queue.sweep.states[slot].status == "due"])
    for queue in (one, two):
        queue.refresh()
    assert [one.sweep.states[slot].trial for slot in plan.slots] == [
        two.sweep.states[slot].trial for slot in plan.slots
    ]
    trials = [t for study in one.database._studies.values() for t in study.get_trials()]
    assert sum(trial.state == WAITING for trial in trials) == len(list(plan.slots))
    assert sum(bool(trial.user_attrs.get("duplicate")) for trial in trials) == len(list(plan.slots))


def test_a_silent_worker_is_taken_over_and_that_counts_against_nobody(plan: Plan) -> None:
    queue = opened(plan)
    for _ in range(5):
        lease = queue.lease_next()
        assert lease is not None
        assert lease.slot == SEARCH
        queue.revive()
        # It still sends heartbeats
        assert queue.sweep.states[SEARCH].status == "running"
        age_heartbeats(queue)
        queue.revive()
        assert queue.sweep.states[SEARCH].status == "waiting"


def test_a_slot_that_is_taken_over_twice_knows_how_far_it_had_come(plan: Plan) -> None:
    """What is left is estimated by it, before the next worker has trained a round."""
    queue = opened(plan)
    for reached in (7, None):
        lease = queue.lease_next()
        assert lease is not None
        if reached:
            queue.set_attr(lease, "reached", reached)
        age_heartbeats(queue)
        queue.revive()
        assert queue.sweep.states[SEARCH].attrs["before"] == 7


def test_what_failed_is_tried_again_before_what_was_not_tried_yet(plan: Plan) -> None:
    queue = opened(plan)
    _, second, third = [lease for _ in range(3) if (lease := queue.lease_next()) is not None]
    queue.release(second)
    queue.fail(third, "out of memory")
    again = opened(plan)
    slots = [lease.slot for _ in range(2) if (lease := again.lease_next()) is not None]
    assert slots == [third.slot, second.slot]


def test_a_pruned_point_has_the_value_of_its_last_round_and_not_of_its_best(plan: Plan) -> None:
    queue = opened(plan)
    lease = queue.lease_next()
    assert lease is not None
    for step, value in ((1, 0.5), (2, 0.3)):
        queue.report(lease, {step: value})
    queue.prune(lease, {})
    trial = queue.sweep.states[lease.slot].trial
    assert trial is not None
    assert (trial.state, trial.value) == (PRUNED, 0.3)


def die(queue: Queue, folder: Path, rounds: int) -> None:
    """Let a worker lease the search's first slot, write some rounds of it to its record, and be killed."""
    worker = Queue(queue.plan, worker=f"worker {rounds}")
    worker.refresh()
    lease = worker.lease_next()
    assert lease is not None
    assert lease.slot == SEARCH
    worker.begin(lease, folder, before=0, done=0)
    files.write_json(folder / "status.json", {"rounds": rounds})
    assert queue.record_death(f"worker {rounds}", "SIGKILL") == 1
    assert queue.record_death(f"worker {rounds}", "SIGKILL") == 0


@pytest.mark.slow
def test_a_third_death_in_a_row_without_a_further_round_fails_a_trial(plan: Plan, tmp_path: Path) -> None:
    """Progress is what the record has, whatever heartbeats have reported."""
    queue = opened(plan)
    for rounds in (9, 12, 12, 13, 17, 17):
        die(queue, tmp_path, rounds)
        assert queue.sweep.states[SEARCH].status == "waiting"
    die(queue, tmp_path, 17)
    state = queue.sweep.states[SEARCH]
    assert state.status == "failed"
    assert state.reason == "its worker died 3 times in a row at round 17; the last time: SIGKILL"
    # The same command first tries the point without a result, with a new count of deaths
    again = opened(plan)
    assert again.sweep.states[SEARCH].status == "waiting"
    for _ in range(2):
        die(again, tmp_path, 17)
    lease = again.lease_next()
    assert lease is not None
    assert (lease.slot, lease.point) == (SEARCH, {"train.lr": 0.1})


def test_what_a_killed_command_has_left_is_in_its_place_again(plan: Plan) -> None:
    queue = opened(plan)
    lease = queue.lease_next()
    assert lease is not None
    assert opened(plan).sweep.states[lease.slot].status == "running", "it may be another machine's"
    age_heartbeats(queue)
    again = opened(plan)
    assert again.sweep.states[lease.slot].status == "waiting"
    next_one = again.lease_next()
    assert next_one is not None
    assert next_one.slot == lease.slot


def test_released_means_as_if_never_leased(plan: Plan) -> None:
    queue = opened(plan)
    first = queue.lease_next()
    assert first is not None
    queue.release(first)
    queue.refresh()
    again = queue.lease_next()
    assert again is not None
    assert (again.slot, again.point) == (first.slot, first.point)


def test_a_heartbeat_after_a_release_says_nothing_of_the_next_lease(plan: Plan) -> None:
    """The thread of heartbeats may come between the two: the slot keeps its trial, which is then WAITING."""
    queue = opened(plan)
    first = queue.lease_next()
    assert first is not None
    queue.note(first, {"round": [1, 9]})
    queue.release(first)
    queue.beat(first)
    queue.refresh()
    again = queue.lease_next()
    assert again is not None
    assert again.trial_id == first.trial_id
    assert queue.holds(again)
    assert not queue.holds(first)
    assert again.notes == {}


def test_a_claim_sends_no_heartbeat_for_another_workers_trial(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where that worker has died, the trial would be taken over later."""
    queue, other = opened(plan), opened(plan)
    taken = other.lease_next()
    assert taken is not None
    beats: list[int] = []
    monkeypatch.setattr(queue.database.storage, "record_heartbeat", beats.append)
    mine = queue.lease_next()
    assert mine is not None
    assert beats == [mine.trial_id]


def test_a_failure_is_told_though_the_last_lease_only_expired() -> None:
    trials = [frozen(FAIL, k, death=KILLED | {"rounds": 7}) for k in range(3)]
    state = state_of([*trials, frozen(FAIL, 3)])
    assert state.reason == "its worker died 3 times in a row at round 7; the last time: SIGKILL"


def test_deaths_over_the_point_of_an_earlier_winner_do_not_count(plan: Plan, tmp_path: Path) -> None:
    plan = plan._replace(tune=replace(plan.tune, partial=True), seeds=[0])
    worker = opened(plan)
    for value in (None, 0.5, 0.4):
        lease = worker.lease_next()
        assert lease is not None
        worker.fail(lease, "out of memory") if value is None else worker.complete(lease, value, {})
    folder = tmp_path / "record"
    folder.mkdir()
    files.write_json(folder / "status.json", {"rounds": 3})

    def final_dies(times: int) -> str:
        for k in range(times):
            worker = Queue(plan, worker=f"final {k}")
            worker.refresh()
            lease = worker.lease_next()
            assert lease is not None
            assert lease.slot.final
            worker.begin(lease, folder, before=0, done=0)
            worker.record_death(f"final {k}", "SIGKILL")
            worker.revive()
        return worker.sweep.states[FINAL].status

    assert final_dies(3) == "failed"
    again = opened(plan)
    lease = again.lease_next()
    assert lease is not None
    assert lease.point == {"train.lr": 0.1}
    again.complete(lease, 0.9, {})
    again.revive()
    assert final_dies(2) == "waiting"
    assert final_dies(1) == "failed"


def test_a_search_in_which_every_point_diverged_has_no_winner(plan: Plan) -> None:
    queue = opened(plan)
    for _ in range(3):
        lease = queue.lease_next()
        assert lease is not None
        queue.fail(lease, "no loss is finite", diverged=True)
    queue.refresh()
    assert queue.sweep.can_elect_winner(0)
    assert queue.sweep.winner(0) is None
    assert {state.reason for state in queue.sweep.states.values() if state.status == "diverged"} == {
        "no loss is finite"
    }
    (study,) = [s for name, s in queue.database._studies.items() if "search" in name]
    assert {trial.state for trial in study.trials} == {FAIL}
    ledger.write(queue.sweep, [])
    (written,) = ledgers(plan.runs)
    assert [group["winner"] for group in written.groups.values()] == [None]


@pytest.mark.parametrize("partial", [False, True])
def test_a_point_without_a_result_leaves_no_winner_unless_a_part_is_enough(plan: Plan, partial: bool) -> None:
    plan = plan._replace(tune=replace(plan.tune, partial=partial))
    queue = opened(plan)
    crash_last(queue)
    queue.refresh()
    assert [state.reason for state in queue.sweep.without_result(0)] == ["out of memory"]
    finals = {state.status for slot, state in queue.sweep.states.items() if slot.final}
    if not partial:
        assert finals == {"blocked"}
        assert queue.lease_next() is None
        assert queue.sweep.finished, "nothing is left that this command could train"
        queue.prepare()
        lease = queue.lease_next()
        assert lease is not None
        assert lease.point == {"train.lr": 0.3}
        queue.fail(lease, "diverged, which is a result", diverged=True)
        queue.refresh()
    lease = queue.lease_next()
    assert lease is not None
    assert (lease.slot, lease.point) == (FINAL, {"train.lr": 0.2})


def crash_last(queue: Queue) -> None:
    """Try all three points: the second is the best, the third crashes and has no result."""
    assert [done(queue, value, {}) for value in (0.4, 0.6)] == [0.1, 0.2]
    last = queue.lease_next()
    assert last is not None
    queue.fail(last, "out of memory")


@pytest.fixture
def partial(plan: Plan) -> Plan:
    """Return the plan with tune.partial, whose final trials are trained before every point has a result."""
    return plan._replace(tune=replace(plan.tune, partial=True))


def done(queue: Queue, value: float, result: dict[str, Any]) -> Any:
    """Claim a slot, store it as done, and return its point."""
    lease = queue.lease_next()
    assert lease is not None
    queue.complete(lease, value, result)
    return lease.point["train.lr"]


def final(identity: str) -> dict[str, Any]:
    """Return the result that a worker stores for a final trial."""
    return {"trials": [{"identity": identity}]}


def test_a_point_that_is_tried_again_may_win_and_supersedes_final_trials(partial: Plan) -> None:
    queue = opened(partial)
    crash_last(queue)
    assert [done(queue, 0.5, final(name)) for name in ("a", "b")] == [0.2, 0.2]
    assert queue.sweep.finished
    again = opened(partial)
    assert done(again, 0.7, {}) == 0.3
    assert not again.sweep.finished
    again.revive()
    assert [again.sweep.states[slot].superseded for slot in partial.final_slots(0)] == [("a",), ("b",)]
    assert again.sweep.superseded == ["a", "b"]
    assert [again.sweep.states[slot].results for slot in partial.final_slots(0)] == [[], []]
    # Both final trials are trained again
    for name in ("c", "d"):
        (partial.runs / name).mkdir(parents=True)
    assert [done(again, 0.6, final(name)) for name in ("c", "d")] == [0.3, 0.3]
    assert again.sweep.finished
    other = opened(partial)
    assert other.sweep.finished
    assert other.sweep.winner(0) == {"train.lr": 0.3}
    assert [other.sweep.states[slot].superseded for slot in partial.final_slots(0)] == [("a",), ("b",)]


def test_a_final_trial_that_failed_is_trained_where_another_point_wins(partial: Plan) -> None:
    queue = opened(partial)
    crash_last(queue)
    for _ in partial.final_slots(0):
        lease = queue.lease_next()
        assert lease is not None
        queue.fail(lease, "it diverges there", diverged=True)
    again = opened(partial)
    assert done(again, 0.7, {}) == 0.3
    again.revive()
    assert [done(again, 0.6, final(name)) for name in ("c", "d")] == [0.3, 0.3]
    assert again.sweep.finished
    assert [again.sweep.states[slot].superseded for slot in partial.final_slots(0)] == [(), ()]


def test_a_final_trial_that_had_bad_input_is_tried_again(partial: Plan) -> None:
    queue = opened(partial)
    assert [done(queue, value, {}) for value in (0.4, 0.6, 0.5)] == [0.1, 0.2, 0.3]
    for kinds in ({"input": True}, {}):
        lease = queue.lease_next()
        assert lease is not None
        queue.fail(lease, "no data there", **kinds)
    assert queue.sweep.finished
    again = opened(partial)
    assert again.sweep.left == 1
    assert done(again, 0.6, final("a")) == 0.2


def test_final_trials_stay_where_a_retried_point_loses(partial: Plan) -> None:
    queue = opened(partial)
    crash_last(queue)
    assert [done(queue, 0.5, {}) for _ in range(2)] == [0.2, 0.2]
    queue.prepare(retry=True)
    assert done(queue, 0.5, {}) == 0.3
    queue.revive()
    assert queue.sweep.finished


@pytest.mark.slow
def test_a_point_that_is_retried_elsewhere_may_win_here(partial: Plan) -> None:
    """A machine that saw the search's end trains no final trial of its old winner; one under way is repeated."""
    plan, here = partial, opened(partial)
    crash_last(here)
    here.refresh()
    early = here.lease_next()
    assert early is not None
    assert early.point == {"train.lr": 0.2}
    there = Queue(plan)
    there.prepare(retry=True)
    assert here.lease_next() is None
    assert done(there, 0.7, {}) == 0.3
    here.complete(early, 0.5, {})
    # Each sees what has to be trained again, which is done once
    for queue in (there, here, Queue(plan)):
        queue.revive()
    here.refresh()
    assert done(here, 0.6, {}) == 0.3
    assert not here.sweep.finished
    there.refresh()
    assert done(there, 0.6, {}) == 0.3
    here.refresh()
    assert there.sweep.finished
    assert here.sweep.finished
    (study,) = [s for name, s in here.database._studies.items() if name.startswith("final")]
    assert sum(trial.state == COMPLETE for trial in study.trials) == 3


def test_who_has_seen_all_done_hears_of_a_retry(partial: Plan) -> None:
    """A command that has seen all done reads of a retry, and so do its table and ledger at the end and idle workers."""
    plan, queue = partial, opened(partial)
    crash_last(queue)
    assert [done(queue, 0.5, final("a")) for _ in range(2)] == [0.2, 0.2]
    idle = Queue(plan)
    idle.refresh()
    command = Queue(plan)
    command.prepare(retry=True)
    assert [state.status for state in command.sweep.states.values()] == [
        "done",
        "done",
        "waiting",
        "waiting",
        "waiting",
    ]
    assert [state.results for slot, state in command.sweep.states.items() if slot.final] == [[], []]
    worker = opened(plan)
    assert done(worker, 0.7, {}) == 0.3
    assert not worker.sweep.finished
    worker.revive()
    assert [done(worker, 0.9, {}) for _ in range(2)] == [0.3, 0.3]
    assert worker.sweep.finished
    for each in (idle, command):
        each.revive()
        assert each.sweep.finished
        assert [each.sweep.states[slot].value for slot in plan.final_slots(0)] == [0.9, 0.9]


def test_a_final_trial_whose_record_was_deleted_here_is_trained_again(plan: Plan, tmp_path: Path) -> None:
    queue = opened(plan)
    gone = str(tmp_path / "gone")
    (plan.runs / "there").mkdir(parents=True)
    for _ in range(3):
        # For a search the value is enough
        done(queue, 0.5, {"trials": [{"identity": "a", "host": gethostname(), "folder": gone}]})
    # The whole folder was moved since
    done(queue, 0.5, {"trials": [{"identity": "there", "host": gethostname(), "folder": gone}]})
    done(queue, 0.5, {"trials": [{"identity": "there", "host": "another machine", "folder": gone}]})
    assert opened(plan).sweep.finished
    last = plan._replace(id="1" * 16)
    queue = opened(last)
    for host in [gethostname()] * 4 + ["the name of an earlier container"]:
        # The folder that this one was copied from still has it
        done(queue, 0.5, {"trials": [{"identity": "a", "host": host, "folder": str(tmp_path)}]})
    assert [state.status for state in opened(last).sweep.states.values()] == ["done"] * 3 + ["waiting"] * 2


@pytest.mark.parametrize(("rounds", "status"), [(29, "waiting"), (30, "done"), (31, "done"), (None, "done")])
def test_a_final_trial_whose_record_began_anew_is_trained_again(plan: Plan, rounds: int | None, status: str) -> None:
    """So does a longer trial whose checkpoint was not kept. None: a status that cannot be read, which says nothing."""
    queue = opened(plan)
    (plan.runs / "a").mkdir(parents=True)
    (plan.runs / "a" / "status.json").write_text("{" if rounds is None else json.dumps({"rounds": rounds}))
    for _ in range(4):
        done(queue, 0.5, {"trials": [{"identity": "a", "host": gethostname(), "folder": "gone"}]})
    assert opened(plan).sweep.states[FINAL].status == status


def test_a_point_is_what_the_config_gets(plan: Plan) -> None:
    queue = opened(plan)
    lease = queue.lease_next()
    assert lease is not None
    queue.refresh()
    assert point_of(plan.groups[0], queue.sweep.states[lease.slot]) == lease.point
    (config,) = plan.configs(lease.slot, lease.point)
    assert (config.values["train"]["lr"], config.values["data"]["validation"], config.values["seed"]) == (0.1, 0.2, 0)
    (final,) = plan.configs(Slot(0, True, 1), lease.point)
    assert (final.values["train"]["lr"], final.values["data"]["validation"], final.values["seed"]) == (0.1, 0.0, 1)


def test_a_value_of_a_grid_is_the_one_that_is_written_there(plan: Plan) -> None:
    """Optuna makes 1.0 of a whole number among others. Of an own option both are values of different trials."""
    axis = parse_axis("train.lr", {"grid": [1, 0.5]}, "a test")
    plan = plan._replace(
        groups=[plan.groups[0]._replace(space={"train.lr": axis}, points=[{"train.lr": 1}], search_slot_count=1)]
    )
    queue = opened(plan)
    assert repr(done(queue, 0.5, {})) == "1"
    assert repr(queue.sweep.winner(0)) == "{'train.lr': 1}"
    final = queue.lease_next()
    assert final is not None
    # As the database of an older version has it
    queue.set_attr(final, "point", '{"train.lr": 1.0}')
    queue.complete(final, 0.5, {})
    queue.refresh()
    assert queue.sweep.states[FINAL].status == "done"


def test_a_method_of_ones_own_may_be_called_final(plan: Plan) -> None:
    queue = opened(plan._replace(groups=[plan.groups[0]._replace(method="final")]))
    assert [done(queue, value, {}) for value in (0.4, 0.6, 0.5, 0.5, 0.5)] == [0.1, 0.2, 0.3, 0.2, 0.2]
    assert queue.sweep.finished


def test_a_point_below_that_was_tried_again_elsewhere_is_promoted_here(halving: Plan) -> None:
    """This worker has not read the queue since the point had crashed."""
    partial = halving._replace(tune=replace(halving.tune, partial=True))
    queue = opened(partial)
    leases = [lease for _ in range(5) if (lease := queue.lease_next()) is not None]
    queue.fail(leases[0], "out of memory")
    for lease, value in zip(leases[1:], (0.4, 0.5, 0.6, 0.7), strict=True):
        queue.complete(lease, value, {})
    other = opened(partial)
    again = other.lease_next()
    assert again is not None
    assert again.slot == leases[0].slot
    other.complete(again, 0.9, {})
    promoted = queue.lease_next()
    assert promoted is not None
    assert (promoted.slot.number, promoted.point) == (5, leases[0].point)


@pytest.mark.slow
def test_many_slots_are_one_study(plan: Plan) -> None:
    group = plan.groups[0]._replace(space={}, points=[], search_slot_count=0)
    many = plan._replace(id="1" * 16, groups=[group], seeds=list(range(300)))
    queue = opened(many)
    for _ in range(20):
        lease = queue.lease_next()
        assert lease is not None
        queue.complete(lease, 0.5, {"trials": []})
    again = Queue(many)
    again.refresh()
    assert sum(state.status == "done" for state in again.sweep.states.values()) == 20
    assert optuna.get_all_study_names(queue.database.storage) == [f"final trials {many.id}"]


def test_a_worker_that_was_suspended_has_lost_its_lease(plan: Plan) -> None:
    """A trial can be taken over only after five missed heartbeats: before that the database is not asked."""
    queue, other = opened(plan), opened(plan)
    lease = queue.lease_next()
    assert lease is not None
    queries: list[str] = []
    event.listen(queue.database.storage.engine, "before_cursor_execute", lambda *told: queries.append(told[2]))
    assert queue.holds(lease)
    assert not queries
    _suspend(lease)
    assert queue.holds(lease), "it was silent, but nobody has taken the trial over"
    assert queries
    queries.clear()
    assert queue.holds(lease)
    assert not queries, "the lease is renewed"
    _suspend(lease)
    age_heartbeats(queue)
    other.revive()
    assert not queue.holds(lease)
    taken = other.lease_next()
    assert taken is not None
    assert taken.slot == lease.slot
    assert not queue.holds(lease)
    assert other.holds(taken)


def test_a_heartbeat_that_comes_too_late_renews_nothing(plan: Plan) -> None:
    queue, other = opened(plan), opened(plan)
    lease = queue.lease_next()
    assert lease is not None
    age_heartbeats(queue)
    other.revive()
    queue.beat(lease)
    assert not queue.holds(lease)


def _suspend(lease: Lease) -> None:
    """Make the last renewal a minute old, as if this process had been suspended."""
    lease.renewed -= 60


def test_what_is_seen_in_optuna_dashboard(plan: Plan) -> None:
    """Studies and values have names for readers of optuna-dashboard, and each trial says what it is."""
    groups = [plan.groups[0]._replace(setting="cifar10"), plan.groups[0]._replace(setting="mnist", method="mine")]
    queue = opened(plan._replace(groups=groups))
    studies = {study.study_name: study for study in optuna_studies(queue)}
    assert set(studies) == {
        f"{name} {plan.id}" for name in ("fedavg cifar10 search", "mine mnist search", "final trials")
    }
    assert {study.user_attrs["sweep"] for study in studies.values()} == {"a test"}
    search, final = studies[f"fedavg cifar10 search {plan.id}"], studies[f"final trials {plan.id}"]
    assert (search.metric_names, final.metric_names) == (["personal validation accuracy"], ["personal test accuracy"])
    assert [trial.params for trial in search.trials] == [{"train.lr": lr} for lr in (0.1, 0.2, 0.3)]
    assert [trial.params for trial in final.trials] == [
        {"method": method, "setting": setting, "seed": seed}
        for method, setting in (("fedavg", "cifar10"), ("mine", "mnist"))
        for seed in (0, 1)
    ]
    for _ in range(7):
        done(queue, 0.5, {})
    assert [trial.user_attrs.get("train.lr") for trial in final.trials] == [0.1, None, None, None]


def optuna_studies(queue: Queue) -> list[optuna.Study]:
    storage = storages.open_storage(queue.database.storage.url, 60)
    return [optuna.load_study(study_name=name, storage=storage) for name in optuna.get_all_study_names(storage)]
