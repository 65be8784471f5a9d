"""The ledger: what a report needs of a sweep, as it stands at any moment."""

import json
from copy import deepcopy

from pflsweep.sweep import ledger
from pflsweep.sweep.board import Board
from pflsweep.sweep.plan import Plan


def test_the_ledger_says_what_was_asked_and_what_answers_it(plan: Plan) -> None:
    board = Board(plan)
    board.prepare()

    def written() -> dict:
        board.refresh()
        ledger.write(board, ["algorithm=fedavg", "seed=0,1", "tune=grid"])
        return json.loads(ledger.path(board).read_text())

    first = written()
    assert first["command"] == "pflsweep -m algorithm=fedavg seed=0,1 tune=grid"
    assert first["tracking"]["backend"] == "mlflow"
    (group,) = first["groups"]
    assert (group["method"], group["points"], group["points_settled"], group["winner"]) == ("fedavg", 3, 0, None)
    assert group["space"] == {"train.lr": [0.1, 0.2, 0.3]}
    assert "seed" not in group["config"]
    assert "paths.runs" not in group["config"]
    for value in (0.4, 0.6, None):
        claim = board.claim()
        assert claim is not None
        assert written()["groups"][0]["winner"] is None, "nobody has won before the last point is settled"
        board.fail(claim, "it broke") if value is None else board.tell(claim, value, {"trials": []})
    board.refresh()
    for identity in ("abc", None):
        claim = board.claim()
        assert claim is not None
        if identity is None:
            board.fail(claim, "it broke too")
        else:
            board.tell(claim, 0.7, {"trials": [{"identity": identity}]})
    (group,) = written()["groups"]
    assert (group["winner"], group["winner_value"]) == ({"train.lr": 0.2}, 0.6)
    assert group["tried"] == [{"point": {"train.lr": 0.1}, "value": 0.4}, {"point": {"train.lr": 0.2}, "value": 0.6}]
    assert group["trials"] == {"0": "abc"}
    assert group["failed"] == {"1": "it broke too"}
    assert group["failed_points"] == ["it broke"]


def test_the_ledger_keeps_no_password(plan: Plan) -> None:
    uri = "postgresql://lab:secret@host/runs"
    (group,) = plan.groups
    values = deepcopy(group.config.values)
    values["tracking"]["uri"] = uri
    word = f"tracking.uri='{uri}'"
    plan = plan._replace(groups=[group._replace(config=group.config._replace(values=values))])
    board = Board(plan)
    board.prepare()
    ledger.write(board, ["seed=0,1", word])
    text = ledger.path(board).read_text()
    assert "secret" not in text
    assert json.loads(text)["tracking"]["uri"] == "postgresql://lab@host/runs"
    assert board.plan.groups[0].config.values["tracking"]["uri"] == uri
