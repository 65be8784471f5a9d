"""The board: what a slot's trials say of it, who may claim, winners, and what two commands at once leave."""

from datetime import datetime
from pathlib import Path
from socket import gethostname
from typing import Any

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState, create_trial

from pflsweep.sweep.board import Board, _standing, point_of
from pflsweep.sweep.plan import Job, Plan

SEARCH, FINAL = Job(0, False, 0), Job(0, True, 0)
COMPLETE, FAIL, PRUNED = TrialState.COMPLETE, TrialState.FAIL, TrialState.PRUNED
RUNNING, WAITING = TrialState.RUNNING, TrialState.WAITING


def opened(plan: Plan) -> Board:
    board = Board(plan)
    board.prepare()
    return board


def frozen(state: TrialState, number: int, **attrs: Any) -> FrozenTrial:
    value = 0.5 if state == COMPLETE else None
    trial = create_trial(state=state, value=value, user_attrs=attrs)
    trial.number = trial._trial_id = number
    trial.datetime_start = datetime.now()
    return trial


@pytest.mark.parametrize(
    ("states", "status", "extra"),
    [
        ([], "lost", ()),
        ([(WAITING, {})], "waiting", ()),
        ([(WAITING, {}), (WAITING, {})], "waiting", (1,)),  # two commands enqueued it at once
        ([(RUNNING, {}), (WAITING, {})], "running", (1,)),
        ([(COMPLETE, {}), (WAITING, {})], "done", (1,)),
        ([(FAIL, {}), (COMPLETE, {})], "done", ()),
        ([(FAIL, {})], "lost", ()),  # its worker died
        ([(FAIL, {"deaths": 0}), (FAIL, {"deaths": 1})], "lost", ()),
        ([(FAIL, {"deaths": 2})], "failed", ()),  # the third
        ([(FAIL, {"deaths": 2, "before": 7, "reached": 7})], "failed", ()),
        ([(FAIL, {"deaths": 2, "before": 7, "reached": 8})], "lost", ()),  # a reboot in a long trial
        ([(FAIL, {"error": "it"})], "failed", ()),
        ([(FAIL, {"error": "it"}), (WAITING, {})], "waiting", ()),  # retried
        ([(WAITING, {"duplicate": True}), (FAIL, {"duplicate": True})], "lost", ()),
        ([(PRUNED, {})], "pruned", ()),
        ([(COMPLETE, {}), (WAITING, {"anew": 1})], "waiting", ()),
        ([(COMPLETE, {}), (COMPLETE, {"anew": 1})], "done", ()),
        ([(COMPLETE, {}), (COMPLETE, {"anew": 1}), (WAITING, {"anew": 1})], "done", (2,)),  # two commands
        ([(COMPLETE, {}), (COMPLETE, {"anew": 1}), (WAITING, {"anew": 2})], "waiting", ()),
    ],
)
def test_where_a_slot_stands(states: list[tuple[TrialState, dict]], status: str, extra: tuple[int, ...]) -> None:
    slot = _standing([frozen(state, k, **attrs) for k, (state, attrs) in enumerate(states)])
    assert (slot.status, slot.extra) == (status, extra)


def test_searches_come_first_and_final_trials_wait_for_them(plan: Plan) -> None:
    board = opened(plan)
    claims = [board.claim() for _ in range(3)]
    assert [claim.point for claim in claims if claim] == [{"train.lr": lr} for lr in (0.1, 0.2, 0.3)]
    assert board.claim() is None
    for claim, value in zip(claims, (0.4, 0.9, 0.9), strict=True):
        assert claim is not None
        board.tell(claim, value, {})
    final = board.claim()
    assert final is not None
    assert final.job == FINAL
    assert final.point == {"train.lr": 0.2}  # the first of equals
    assert not board.finished


def test_a_slot_is_granted_once(plan: Plan) -> None:
    one, two = opened(plan), opened(plan)
    jobs = [claim.job for board in (one, two, one, two) if (claim := board.claim()) is not None]
    assert jobs == [Job(0, False, k) for k in range(3)]


def test_two_commands_at_once_enqueue_each_slot_once(plan: Plan) -> None:
    one, two = Board(plan), Board(plan)
    for board in (one, two):
        board.refresh()  # both see that nothing is there
    for board in (one, two):
        board._enqueue([job for job in plan.jobs if board.slots[job].status == "lost"])
    for board in (one, two):
        board.refresh()
    assert [one.slots[job].trial for job in plan.jobs] == [two.slots[job].trial for job in plan.jobs]
    trials = [t for study in one._studies.values() for t in study.get_trials()]
    assert sum(trial.state == WAITING for trial in trials) == len(list(plan.jobs))
    assert sum(bool(trial.user_attrs.get("duplicate")) for trial in trials) == len(list(plan.jobs))


def test_who_died_is_taken_over_and_after_three_deaths_the_slot_has_failed(plan: Plan) -> None:
    board = opened(plan)
    for death in range(3):
        claim = board.claim()
        assert claim is not None
        assert claim.job == SEARCH
        board.revive()
        assert board.slots[SEARCH].status == "running"  # it beats still
        _age_heartbeats(board)
        board.revive()
        assert board.slots[SEARCH].status == ("waiting" if death < 2 else "failed")
    assert "died 3 times" in board.slots[SEARCH].reason
    board.prepare(retry=True)
    assert board.slots[SEARCH].status == "waiting"
    claim = board.claim()
    assert claim is not None
    assert claim.point == {"train.lr": 0.1}


def test_deaths_between_which_rounds_were_trained_do_not_count(plan: Plan) -> None:
    board = opened(plan)
    for reached in (12, 17, 20, 20, 20):
        claim = board.claim()
        assert claim is not None
        claim.trial.set_user_attr("reached", reached)
        _age_heartbeats(board)
        assert board.slots[SEARCH].status != "failed"
        board.revive()
    assert board.slots[SEARCH].status == "failed"  # three times at round 20
    assert "died 3 times" in board.slots[SEARCH].reason


def test_what_a_killed_command_has_left_is_in_its_place_again(plan: Plan) -> None:
    board = opened(plan)
    claim = board.claim()
    assert claim is not None
    assert opened(plan).slots[claim.job].status == "running", "it may be another machine's"
    _age_heartbeats(board)
    again = opened(plan)
    assert again.slots[claim.job].status == "waiting"
    next_one = again.claim()
    assert next_one is not None
    assert next_one.job == claim.job


def _age_heartbeats(board: Board) -> None:
    """As if nobody had beaten for a minute."""
    import sqlite3

    file = board.storage.url.removeprefix("sqlite:///")
    with sqlite3.connect(file) as connection:
        connection.execute("update trial_heartbeats set heartbeat = datetime('now', '-60 seconds')")


def test_released_means_as_if_never_claimed(plan: Plan) -> None:
    board = opened(plan)
    first = board.claim()
    assert first is not None
    board.release(first)
    board.refresh()
    again = board.claim()
    assert again is not None
    assert (again.job, again.point) == (first.job, first.point)


def test_a_failed_search_leaves_no_winner(plan: Plan) -> None:
    board = opened(plan)
    for _ in range(3):
        claim = board.claim()
        assert claim is not None
        board.fail(claim, "it diverged")
    board.refresh()
    assert board.ready(0)
    assert board.winner(0) is None
    assert {slot.reason for slot in board.slots.values() if slot.status == "failed"} == {"it diverged"}
    (study,) = [s for name, s in board._studies.items() if not name.endswith("final")]
    assert {trial.state for trial in study.trials} == {FAIL}


def done(board: Board, value: float, result: dict[str, Any]) -> Any:
    """The point of the next claim, which is told as done."""
    claim = board.claim()
    assert claim is not None
    board.tell(claim, value, result)
    return claim.point["train.lr"]


def test_a_point_that_is_retried_may_win(plan: Plan) -> None:
    board = opened(plan)
    assert [done(board, value, {}) for value in (0.4, 0.6)] == [0.1, 0.2]
    last = board.claim()
    assert last is not None
    board.fail(last, "the disk was full")
    assert [done(board, 0.5, {}) for _ in range(2)] == [0.2, 0.2]
    assert board.finished
    again = Board(plan)
    again.prepare()
    assert again.finished
    again.prepare(retry=True)
    assert done(again, 0.7, {}) == 0.3
    assert not again.finished
    again.revive()
    assert [done(again, 0.6, {}) for _ in range(2)] == [0.3, 0.3]  # both final trials anew
    assert again.finished
    other = opened(plan)
    assert other.finished
    assert other.winner(0) == {"train.lr": 0.3}


def test_final_trials_stay_where_a_retried_point_loses(plan: Plan) -> None:
    board = opened(plan)
    assert [done(board, value, {}) for value in (0.4, 0.6)] == [0.1, 0.2]
    last = board.claim()
    assert last is not None
    board.fail(last, "the disk was full")
    assert [done(board, 0.5, {}) for _ in range(2)] == [0.2, 0.2]
    board.prepare(retry=True)
    assert done(board, 0.5, {}) == 0.3
    board.revive()
    assert board.finished


def test_a_point_that_is_retried_elsewhere_may_win_here(plan: Plan) -> None:
    """A machine that has seen the search's end trains no final trial of its old winner; one under way is done anew."""
    here = opened(plan)
    assert [done(here, value, {}) for value in (0.4, 0.6)] == [0.1, 0.2]
    last = here.claim()
    assert last is not None
    here.fail(last, "the disk was full")
    here.refresh()
    early = here.claim()
    assert early is not None
    assert early.point == {"train.lr": 0.2}
    there = Board(plan)
    there.prepare(retry=True)
    assert here.claim() is None
    assert done(there, 0.7, {}) == 0.3
    here.tell(early, 0.5, {})
    for board in (there, here, Board(plan)):  # both see what is to be done anew, which it is once
        board.revive()
    here.refresh()
    assert done(here, 0.6, {}) == 0.3
    assert not here.finished
    there.refresh()
    assert done(there, 0.6, {}) == 0.3
    here.refresh()
    assert there.finished
    assert here.finished
    (study,) = [s for name, s in here._studies.items() if name.endswith("final")]
    assert sum(trial.state == COMPLETE for trial in study.trials) == 3


def test_who_has_seen_all_done_hears_of_a_retry(plan: Plan) -> None:
    """So do the command's own table and ledger at its end, and a worker that is idle meanwhile."""
    board = opened(plan)
    assert [done(board, value, {}) for value in (0.4, 0.6)] == [0.1, 0.2]
    last = board.claim()
    assert last is not None
    board.fail(last, "the disk was full")
    assert [done(board, 0.5, {"trials": [{}]}) for _ in range(2)] == [0.2, 0.2]
    idle = opened(plan)
    command = Board(plan)
    command.prepare(retry=True)
    assert [slot.status for slot in command.slots.values()] == ["done", "done", "waiting", "waiting", "waiting"]
    assert [slot.trials for job, slot in command.slots.items() if job.final] == [[], []]
    worker = opened(plan)
    assert done(worker, 0.7, {}) == 0.3
    assert not worker.finished
    worker.revive()
    assert [done(worker, 0.9, {}) for _ in range(2)] == [0.3, 0.3]
    assert worker.finished
    for each in (idle, command):
        each.revive()
        assert each.finished
        assert [each.slots[job].value for job in plan.final(0)] == [0.9, 0.9]


def test_a_final_trial_whose_record_was_deleted_here_is_trained_anew(plan: Plan, tmp_path: Path) -> None:
    board = opened(plan)
    there, gone = str(tmp_path), str(tmp_path / "gone")
    for _ in range(3):
        done(board, 0.5, {"trials": [{"host": gethostname(), "folder": gone}]})  # of searches the value is enough
    done(board, 0.5, {"trials": [{"host": gethostname(), "folder": there}]})
    done(board, 0.5, {"trials": [{"host": "another machine", "folder": gone}]})
    assert opened(plan).finished
    last = plan._replace(id="1" * 16)
    board = opened(last)
    for _ in range(5):
        done(board, 0.5, {"trials": [{"host": gethostname(), "folder": gone}]})
    assert [slot.status for slot in opened(last).slots.values()] == ["done"] * 3 + ["waiting"] * 2


def test_a_point_is_what_the_config_gets(plan: Plan) -> None:
    board = opened(plan)
    claim = board.claim()
    assert claim is not None
    board.refresh()
    assert point_of(plan.groups[0], board.slots[claim.job]) == claim.point
    (config,) = plan.configs(claim.job, claim.point)
    assert (config.values["train"]["lr"], config.values["data"]["validation"], config.values["seed"]) == (0.1, 0.2, 0)
    (final,) = plan.configs(Job(0, True, 1), claim.point)
    assert (final.values["train"]["lr"], final.values["data"]["validation"], final.values["seed"]) == (0.1, 0.0, 1)


def test_a_method_of_ones_own_may_be_called_final(plan: Plan) -> None:
    board = opened(plan._replace(groups=[plan.groups[0]._replace(method="final")]))
    assert [done(board, value, {}) for value in (0.4, 0.6, 0.5, 0.5, 0.5)] == [0.1, 0.2, 0.3, 0.2, 0.2]
    assert board.finished


def test_many_slots_are_one_study(plan: Plan) -> None:
    group = plan.groups[0]._replace(space={}, points=[], tries=0)
    many = plan._replace(id="1" * 16, groups=[group], seeds=list(range(300)))
    board = opened(many)
    for _ in range(20):
        claim = board.claim()
        assert claim is not None
        board.tell(claim, 0.5, {"trials": []})
    again = Board(many)
    again.refresh()
    assert sum(slot.status == "done" for slot in again.slots.values()) == 20
    assert optuna.get_all_study_names(board.storage.url) == [f"{many.id} final"]
