"""What a user sees of a sweep: the live page, lines in a log, tables and pictures."""

import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from pflsweep.sweep import cost, pictures
from pflsweep.sweep.mlflow_names import group_results
from pflsweep.sweep.plan import Plan, Slot, changed
from pflsweep.sweep.queue import Queue
from pflsweep.sweep.search_space import parse_axis
from pflsweep.sweep.status import groups, live, summary
from pflsweep.sweep.status.live import LiveStatus
from pflsweep.util import files, retry
from pflsweep.util.errors import UserError
from tests.report.records import finished


def told(value: float, folder: str = "gone", seconds: float = 0.0) -> dict:
    return {"trials": [{"identity": "a", "folder": folder, "host": "gpu1", "value": value, "seconds": seconds}]}


def advance(queue: Queue, values: list[float | str]) -> None:
    """Settle the next slots, each with a value or a reason of failure; `nan` means that the trial diverged."""
    for value in values:
        lease = queue.lease_next()
        assert lease is not None
        if isinstance(value, str):
            queue.fail(lease, value, **({"diverged": True} if value == "nan" else {}))
        else:
            queue.complete(lease, value, told(value))
    queue.refresh()


@pytest.fixture
def queue(plan: Plan) -> Queue:
    queue = Queue(plan)
    queue.prepare()
    return queue


def page(view: LiveStatus) -> str:
    view.console.width = 100
    with view.console.capture() as shown:
        view.console.print(view._page())
    return shown.get()


def test_names_are_shown_as_they_are(plan: Plan) -> None:
    """Rich reads [..] as markup."""
    plan = plan._replace(name="dataset.files=[/data/a.csv]", groups=[plan.groups[0]._replace(method="fedavg [own]")])
    queue = Queue(plan)
    queue.prepare()
    assert queue.lease_next() is not None
    view = LiveStatus(plan)
    view._look()
    seen = page(view)
    assert "dataset.files=[/data/a.csv]: 1 running" in seen
    assert "running fedavg [own] lr=0.1" in seen
    assert "│ fedavg [own] │" in seen


def test_a_database_that_is_away_when_the_live_status_begins_is_waited_for(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "PAUSE", 0)
    real, away = Queue.refresh, [OperationalError("select", {}, Exception("gone"))]

    def refresh(self: Queue) -> None:
        self.database._call(lambda: away and _raise(away.pop()))
        real(self)

    monkeypatch.setattr(Queue, "refresh", refresh)
    view = LiveStatus(queue.plan)
    assert not away
    away.append(OperationalError("select", {}, Exception("gone")))
    with pytest.raises(OperationalError):
        view._look()


def _raise(error: Exception) -> None:
    raise error


def test_the_live_page_says_what_is_done_running_failed_and_best(queue: Queue) -> None:
    view = LiveStatus(queue.plan)
    advance(queue, [0.4, "it broke"])
    lease = queue.lease_next()
    assert lease is not None
    queue.set_attr(lease, "round", [7, 30])
    view._look()
    seen = page(view)
    for words in ("1 done, 1 failed, 1 running, 2 waiting", "about", "left"):
        assert words in seen
    assert "running fedavg lr=0.3 (search): round 7 of 30," in seen
    assert "search 40.0 (2/5, 1 failed)" in seen


def test_what_was_trained_before_does_not_shorten_what_is_left(queue: Queue) -> None:
    view = LiveStatus(queue.plan)
    lease = queue.lease_next()
    assert lease is not None
    queue.complete(lease, 0.4, told(0.4, seconds=3600.0))
    view._look()
    assert view._seconds_left() is None
    assert "left" not in page(view)
    advance(queue, [0.5])
    view._look()
    view._began = time.monotonic() - 100
    assert view._seconds_left() == pytest.approx(350, rel=0.01), (
        "one more search, and two seeds with a quarter more data"
    )


def test_what_is_left_goes_by_rounds_and_not_by_those_of_an_earlier_command(queue: Queue) -> None:
    rounds = queue.plan.groups[0].config.values["train"]["rounds"]
    lease = queue.lease_next()
    assert lease is not None
    queue.set_attr(lease, "reached", rounds // 3)
    view = LiveStatus(queue.plan)
    view._look()
    assert view._seconds_left() is None, "nothing was trained since"
    queue.set_attr(lease, "reached", 2 * rounds // 3)
    view._look()
    view._began = time.monotonic() - 100
    thirds = 1 + 2 * 3 + 2 * 1.25 * 3  # the rest of this search, two more, and two seeds with a quarter more data
    assert view._seconds_left() == pytest.approx(100 * thirds, rel=0.01)


def test_nothing_is_said_of_what_is_left_before_a_trial_has_ended_or_a_minute_has_passed(queue: Queue) -> None:
    view = LiveStatus(queue.plan)
    view._began = time.monotonic() - 100
    view._look()
    assert time.monotonic() - view._began < 10, "no trial has begun: the workers are starting"
    lease = queue.lease_next()
    assert lease is not None
    queue.set_attr(lease, "reached", 1)
    view._began = time.monotonic() - 30
    view._look()
    assert view._seconds_left() is None, "its start is most of that time"
    view._began = time.monotonic() - 70
    assert view._seconds_left() is not None
    queue.complete(lease, 0.4, told(0.4))
    view._began = time.monotonic() - 5
    view._look()
    assert view._seconds_left() is not None


def test_what_is_left_of_a_search_counts_the_rounds_of_each_tuning_seed(plan: Plan) -> None:
    plan = plan._replace(tune=replace(plan.tune, seeds=2))
    queue = Queue(plan)
    queue.prepare()
    view = LiveStatus(plan)
    rounds = plan.groups[0].config.values["train"]["rounds"]
    lease = queue.lease_next()
    assert lease is not None
    queue.set_attr(lease, "reached", rounds)
    view._look()
    view._began = time.monotonic() - 100
    seeds = 1 + 2 * 2 + 2 * 1.25  # one more of this search, two of each other one, and two with a quarter more data
    assert view._seconds_left() == pytest.approx(100 * seeds, rel=0.01)


def test_what_is_left_of_a_higher_rung_are_the_rounds_that_the_one_below_has_not_trained(halving: Plan) -> None:
    queue = Queue(halving)
    queue.prepare()
    view = LiveStatus(queue.plan)
    assert [view._share_trained(slot) for slot in queue.plan.search_slots(0)] == [0, 0, 0, 0, 0, pytest.approx(1 / 3)]


def test_what_was_pruned_or_failed_took_the_rounds_that_it_had_and_leaves_none(queue: Queue) -> None:
    rounds = queue.plan.groups[0].config.values["train"]["rounds"]
    view = LiveStatus(queue.plan)
    for end in (queue.prune, lambda lease, _: queue.fail(lease, "it broke")):
        lease = queue.lease_next()
        assert lease is not None
        queue.set_attr(lease, "reached", rounds // 3)
        end(lease, told(0.1))
    view._look()
    view._began = time.monotonic() - 100
    assert view._seconds_left() == pytest.approx(100 / 2 * (3 + 2 * 1.25 * 3), rel=0.01), "a search and two seeds"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError("x"), r"The live status failed \(KeyError: 'x'\); trials go on.\n"),
        (
            OperationalError("select", {}, Exception("gone")),
            r"The sweep's database cannot be read now \(.*gone.*\); workers wait for it.\nThe sweep's database is .*\n",
        ),
    ],
)
def test_an_error_of_the_live_status_is_said_once_as_what_it_is(
    error: Exception, said: str, queue: Queue, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    view, looks = LiveStatus(queue.plan), []

    def look() -> None:
        looks.append(view)
        if len(looks) < 3:
            raise error
        view._over.set()

    monkeypatch.setattr(live, "EVERY", 0.001)
    monkeypatch.setattr(view, "_look", look)
    view._follow()
    assert re.fullmatch(said, capsys.readouterr().err)


def test_rounds_that_are_trained_a_second_time_take_their_time(queue: Queue) -> None:
    """A trial continues from its last checkpoint, which may be behind the round that it had reached."""
    rounds = queue.plan.groups[0].config.values["train"]["rounds"]
    lease = queue.lease_next()
    assert lease is not None
    queue.set_attr(lease, "reached", 2 * rounds // 3)
    view = LiveStatus(queue.plan)
    for reached in (rounds // 3, 2 * rounds // 3):
        queue.set_attr(lease, "reached", reached)
        view._look()
    view._began = time.monotonic() - 100
    assert view._seconds_left() == pytest.approx(100 * (1 + 2 * 3 + 2 * 1.25 * 3), rel=0.01)


def test_rounds_that_another_sweep_has_trained_say_nothing_of_the_speed(queue: Queue, tmp_path: Path) -> None:
    """A trial goes on from its record, whichever sweep has trained its rounds."""
    rounds = queue.plan.groups[0].config.values["train"]["rounds"]
    view = LiveStatus(queue.plan)
    lease = queue.lease_next()
    assert lease is not None
    view._look()
    queue.begin(lease, tmp_path, before=0, done=rounds // 3)
    view._look()
    view._began = time.monotonic() - 100
    assert view._seconds_left() is None, "nothing was trained since"
    queue.set_attr(lease, "reached", 2 * rounds // 3)
    view._look()
    thirds = 1 + 2 * 3 + 2 * 1.25 * 3  # the rest of this search, two more, and two seeds with a quarter more data
    assert view._seconds_left() == pytest.approx(100 * thirds, rel=0.01)


def test_a_log_says_at_times_what_is_running_and_what_is_left(
    queue: Queue, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = LiveStatus(queue.plan)
    monkeypatch.setattr("pflsweep.sweep.status.live.QUIET", 0)
    lease = queue.lease_next()
    assert lease is not None
    queue.set_attr(lease, "round", [1, 3])
    queue.set_attr(lease, "reached", 1)
    view._began = time.monotonic() - 60
    view._look()
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("running: fedavg lr=0.1 (search): round 1 of 3, 0 s; about ")
    assert line.endswith(" left in all")


def test_a_log_has_a_line_for_each_trial_that_ends(queue: Queue, capsys: pytest.CaptureFixture) -> None:
    advance(queue, [0.4])
    with LiveStatus(queue.plan):
        advance(queue, [0.5, "nan", 0.75])
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "a test: 5 trials, 1 of them done before"
    ends = sorted(line.partition(";")[0] for line in lines[1:])
    assert ends == [
        "[2/5] fedavg lr=0.2 (search): 50.0%",
        "[3/5] fedavg lr=0.3 (search): diverged: nan",
        "[4/5] fedavg lr=0.2 seed=0: 75.0%",
    ]


@pytest.mark.slow
def test_the_end_names_winners_and_means(queue: Queue, capsys: pytest.CaptureFixture) -> None:
    """A point that diverged has lost its search, which is not a failure of the sweep."""
    advance(queue, [0.4, 0.6, "nan", 0.75, 0.77])
    assert summary.print_results(queue, track=False) == 0
    out, err = capsys.readouterr()
    assert "train.lr=0.2" in out
    assert "At an end of the search" not in out
    assert "60.0" in out
    assert "76.0 ± 1.4 (5/5, 1 failed)" in out
    assert err == ""
    # Both seeds have the same folder
    assert "Records on other machines: 1 in gpu1:." in out


def test_the_end_says_that_a_point_without_a_result_leaves_no_winner(
    queue: Queue, capsys: pytest.CaptureFixture
) -> None:
    advance(queue, [0.4, 0.6, "it broke"])
    assert summary.print_results(queue, track=False) == 1
    out, err = capsys.readouterr()
    assert "no winner" in out
    assert "train.lr=0.2" not in out
    assert "the trial fedavg lr=0.3 (search) failed: it broke" in err
    assert "fedavg: no winner: 1 of 3 points has no result (it broke), so its final trials wait" in err
    assert "1 of 5 trials failed; the same command tries them again." in err


def test_the_end_says_which_winners_are_at_an_end_of_their_search(queue: Queue, capsys: pytest.CaptureFixture) -> None:
    advance(queue, [0.4, 0.5, 0.6, 0.75, 0.77])
    assert summary.print_results(queue, track=False) == 0
    said = "where a wider range may be better: train.lr=0.3 is the largest value tried (fedavg)."
    assert said in capsys.readouterr().out


def test_the_end_says_which_winners_are_the_first_of_equal_points(queue: Queue, capsys: pytest.CaptureFixture) -> None:
    advance(queue, [0.6, 0.4, 0.6, 0.75, 0.77])
    assert summary.print_results(queue, track=False) == 0
    out = capsys.readouterr().out
    assert "train.lr=0.1 (the first of 2 equal)" in out
    assert "At an end of the search" not in out, "the other is at the other end"


def test_a_winner_of_a_part_of_its_points_is_marked(plan: Plan, capsys: pytest.CaptureFixture) -> None:
    queue = Queue(plan._replace(tune=replace(plan.tune, partial=True)))
    queue.prepare()
    advance(queue, [0.4, 0.6, "it broke", 0.75, 0.77])
    assert summary.print_results(queue, track=False) == 1
    out, err = capsys.readouterr()
    assert "train.lr=0.2 †" in out
    assert "76.0 ± 1.4 †" in out
    assert "fedavg: † 1 of 3 points has no result (it broke); the winner was elected among the others" in err


def test_the_table_of_a_sweep(queue: Queue) -> None:
    assert groups.table(queue.sweep).to_dict("list") == {"method": ["fedavg"], "accuracy": ["0/5"]}
    advance(queue, [0.4, 0.6])
    now = groups.group_status(queue.sweep, 0)
    assert (now.done, now.total, now.best, now.point, now.final) == (2, 5, 0.6, {"train.lr": 0.2}, [])
    assert groups.spread([0.5]) == "50.0"
    assert groups.spread([0.5, 0.6]) == "55.0 ± 7.1"


def test_a_search_of_rounds_counts_those_of_each_point_and_of_the_winner(plan: Plan) -> None:
    config = changed(plan.groups[0].config, {"train.rounds": 4})
    space = {"train.rounds": parse_axis("train.rounds", {"grid": [2, 9]}, "a test")}
    points = [{"train.rounds": 2}, {"train.rounds": 9}]
    group = plan.groups[0]._replace(config=config, space=space, points=points, search_slot_count=2)
    queue = Queue(plan._replace(groups=[group]))
    queue.prepare()
    advance(queue, [0.4, 0.6, 0.75])
    slots = [Slot(0, False, 0), Slot(0, False, 1), Slot(0, True, 0)]
    assert [queue.sweep.rounds(slot) for slot in slots] == [2, 9, 9]
    assert summary._folders(queue.sweep) == {(Path("gone"), 9): slots[2]}
    (result,) = group_results(queue.sweep, [])
    assert (result.rounds, result.chosen, result.search) == (9, "rounds=9", [0.4, 0.6])


@pytest.mark.parametrize(("rounds", "here"), [(29, False), (30, True), (31, True)])
def test_a_record_of_fewer_rounds_is_not_the_results(rounds: int, here: bool, queue: Queue) -> None:
    """Another machine has trained all 30 rounds, and this one had stopped before."""
    own = queue.plan.runs / "a"
    own.mkdir(parents=True)
    files.write_json(own / "status.json", {"rounds": rounds})
    advance(queue, [0.4, 0.6, 0.5, 0.75])
    found = summary._folders(queue.sweep)
    assert found == {(own if here else Path("gone"), 30): Slot(0, True, 0)}


def test_a_damaged_record_does_not_hide_the_others(
    plan: Plan, capsys: pytest.CaptureFixture, caplog: pytest.LogCaptureFixture
) -> None:
    """It is named, and the table shows the queue's numbers."""
    group = plan.groups[0]
    queue = Queue(plan._replace(groups=[group._replace(config=changed(group.config, {"train.rounds": 3}))]))
    queue.prepare()
    records = [finished(plan.runs, "fedavg", [6, 8, 8, 8], seed=seed) for seed in (0, 1)]
    advance(queue, [0.4, 0.6, 0.5])
    for record in records:
        lease = queue.lease_next()
        assert lease is not None
        result = {"identity": record.meta["identity"], "folder": str(record.folder), "host": "here", "seconds": 0.0}
        queue.complete(lease, 0.75, {"trials": [result]})
    queue.refresh()
    assert [record.meta["seed"] for record in summary.records_of(queue.sweep)] == [0, 1]
    (records[0].folder / "meta.json").write_text("{")
    assert [record.meta["seed"] for record, _ in summary.final_records(queue.sweep)] == [1]
    assert summary.print_results(queue, track=False) == 0
    assert "75.0 ± 0.0 (5/5)" in capsys.readouterr().out
    assert "meta.json cannot be read" in caplog.text


def test_an_estimate_counts_the_trials_of_each_tuning_seed(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three points under two seeds, and two final trials."""
    monkeypatch.setattr(cost, "speed", lambda *_: cost.Speed(100.0, "its own runs"))
    said = summary.estimate(plan._replace(tune=replace(plan.tune, seeds=2)))
    assert "a test at scale paper: 8 trials, seeds 0, 1; 0 of them trained already; time for the other 8 on" in said


def test_a_search_as_a_picture(queue: Queue) -> None:
    advance(queue, [0.4])
    # A single point makes no picture
    assert pictures.search_figures(queue) == {}
    advance(queue, [0.6, 0.5])
    ((name, made),) = pictures.search_figures(queue).items()
    assert name == "search/fedavg"
    history, lr = made.axes
    assert history.lines[1].get_ydata().tolist() == pytest.approx([40, 60, 60])  # best so far
    assert sorted(lr.collections[0].get_offsets().tolist()) == [
        pytest.approx([x, y]) for x, y in ((0.1, 40), (0.2, 60), (0.3, 50))
    ]
    assert lr.collections[1].get_offsets().tolist() == [pytest.approx([0.2, 60])]
    assert lr.get_xlabel() == "train.lr"


def test_a_ledger_that_could_not_be_written_is_said_once_and_tried_again(
    queue: Queue, capsys: pytest.CaptureFixture
) -> None:
    told_of: list[int] = []

    def tell(queue: Queue) -> None:
        told_of.append(1)
        if len(told_of) < 3:
            raise UserError("runs/sweeps cannot be written to (No space left on device).")

    view = LiveStatus(queue.plan, tell)
    advance(queue, [0.4])
    for _ in range(4):
        view._look()
    assert len(told_of) == 3, "until it is written, and not again"
    assert capsys.readouterr().err.count("No space left on device). It is tried again.") == 1
