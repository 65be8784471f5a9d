"""The ledger: what a report needs of a sweep, at any moment."""

import json
from copy import deepcopy
from dataclasses import replace

from pflsweep.records.archive import KNOWN
from pflsweep.records.ledger import ledgers
from pflsweep.sweep import ledger
from pflsweep.sweep.plan import Plan
from pflsweep.sweep.queue import Queue


def test_the_ledger_says_what_was_asked_and_what_answers_it(plan: Plan) -> None:
    queue = Queue(plan)
    queue.prepare()

    def written() -> dict:
        queue.refresh()
        ledger.write(queue.sweep, ["algorithm=fedavg", "seed=0,1", "tune=grid"])
        return json.loads(ledger.path(plan).read_text())

    first = written()
    assert first["command"] == "pflsweep -m algorithm=fedavg seed=0,1 tune=grid"
    assert first["tracking"]["backend"] == "mlflow"
    (group,) = first["groups"]
    assert (group["method"], group["points"], group["points_settled"], group["winner"]) == ("fedavg", 3, 0, None)
    assert group["space"] == {"train.lr": [0.1, 0.2, 0.3]}
    assert "seed" not in group["config"]
    assert "paths.runs" not in group["config"]
    for value in (0.4, 0.6, None):
        lease = queue.lease_next()
        assert lease is not None
        assert written()["groups"][0]["winner"] is None, "nobody has won before the last point is settled"
        queue.fail(lease, "no loss is finite", diverged=True) if value is None else queue.complete(
            lease, value, {"trials": [{"identity": "ab", "test": each} for each in (0.3, 0.5)] if value == 0.6 else []}
        )
    queue.refresh()
    for identity in ("abc", None):
        lease = queue.lease_next()
        assert lease is not None
        if identity is None:
            queue.fail(lease, "it broke too")
        else:
            queue.complete(lease, 0.7, {"trials": [{"identity": identity}]})
    (group,) = written()["groups"]
    assert (group["winner"], group["winner_value"]) == ({"train.lr": 0.2}, 0.6)
    assert group["tried"] == [
        {"point": {"train.lr": 0.1}, "value": 0.4},
        {"point": {"train.lr": 0.2}, "value": 0.6, "test": 0.4},
    ]
    assert group["trials"] == {"0": "abc"}
    assert group["failed"] == {"1": "it broke too"}
    assert group["failed_points"] == ["no loss is finite"]
    assert (group["without_result"], group["superseded"]) == ([], [])


def test_a_reading_with_the_same_trials_has_a_ledger_of_its_own(plan: Plan) -> None:
    for reading in ("paper", "epochs"):
        queue = Queue(plan._replace(reading=reading))
        queue.prepare()
        ledger.write(queue.sweep, ["sweep=fedpg/table1", f"reading={reading}"])
    assert [(each.reading, each.id) for each in ledgers(plan.runs)] == [("paper", plan.id), ("epochs", plan.id)]


def test_sweeps_of_other_names_and_scales_keep_their_ledgers(plan: Plan) -> None:
    for name, scale in (("mine", "paper"), ("other", "paper"), ("mine", "100"), ("mine", "paper")):
        queue = Queue(plan._replace(name=name, scale=scale))
        queue.prepare()
        ledger.write(queue.sweep, [f"sweep={name}", f"scale={scale}"])
    found = ledgers(plan.runs)
    assert [(each.sweep, each.scale) for each in found] == [("other", "paper"), ("mine", "100"), ("mine", "paper")]
    assert {each.id for each in found} == {plan.id}
    assert all(KNOWN.fullmatch(f"sweeps/{each.path.name}") for each in found)


def test_commands_of_the_same_trials_have_one_ledger(plan: Plan) -> None:
    """Words that change no trial change a command's name, as where tune.partial=true is added after a crash."""
    plan.folder.mkdir(parents=True)
    (plan.folder / f"{plan.id}.json").write_text('{"sweep": "fedpg/table1", "scale": "paper"}')
    for name in ("tune=grid", "tune=grid tune.partial=true", "sweep"):
        queue = Queue(plan._replace(name=name))
        queue.prepare()
        ledger.write(queue.sweep, [name])
    (plan.folder / f"{plan.id}.json").unlink()
    assert [each.sweep for each in ledgers(plan.runs)] == ["sweep"]


def test_the_ledger_names_points_without_a_result_and_final_trials_that_are_superseded(plan: Plan) -> None:
    plan = plan._replace(tune=replace(plan.tune, partial=True))
    queue = Queue(plan)
    queue.prepare()

    def settle(value: float | None, identity: str = "") -> None:
        queue.revive()
        lease = queue.lease_next()
        assert lease is not None
        if value is None:
            queue.fail(lease, "out of memory")
        else:
            queue.complete(lease, value, {"trials": [{"identity": identity}]})

    def written() -> dict:
        queue.refresh()
        ledger.write(queue.sweep, [])
        return json.loads(ledger.path(plan).read_text())["groups"][0]

    for value in (0.4, 0.6, None):
        settle(value)
    settle(0.7, "a")
    group = written()
    assert (group["winner"], group["without_result"]) == ({"train.lr": 0.2}, ["out of memory"])
    assert (group["trials"], group["superseded"]) == ({"0": "a"}, [])
    # A command that wants all points has no final trials until the last one has a result
    strict = Queue(plan._replace(tune=replace(plan.tune, partial=False)))
    for each in (Queue.refresh, Queue.prepare):
        each(strict)
        ledger.write(strict.sweep, [])
        group = json.loads(ledger.path(plan).read_text())["groups"][0]
        assert (group["trials"], group["superseded"]) == ({}, ["a"])
    settle(0.9)
    group = written()
    assert (group["trials"], group["superseded"]) == ({}, ["a"])
    settle(0.8, "b")
    group = written()
    assert (group["winner"], group["without_result"]) == ({"train.lr": 0.3}, [])
    assert (group["trials"], group["superseded"]) == ({"0": "b"}, ["a"])


def test_the_ledger_keeps_no_password(plan: Plan) -> None:
    uri = "postgresql://lab:secret@host/runs"
    (group,) = plan.groups
    values = deepcopy(group.config.values)
    values["tracking"]["uri"] = uri
    word = f"tracking.uri='{uri}'"
    plan = plan._replace(groups=[group._replace(config=replace(group.config, values=values))])
    queue = Queue(plan)
    queue.prepare()
    ledger.write(queue.sweep, ["seed=0,1", word])
    text = ledger.path(plan).read_text()
    assert "secret" not in text
    assert json.loads(text)["tracking"]["uri"] == "postgresql://lab@host/runs"
    assert queue.plan.groups[0].config.values["tracking"]["uri"] == uri
