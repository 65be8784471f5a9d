"""The state of a sweep, without a database: what is left, and what a search says about its final trials."""

from dataclasses import replace
from typing import Any

import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState, create_trial

from pflsweep.sweep.plan import Job, Plan
from pflsweep.sweep.slots import POINT, SlotState, as_kept
from pflsweep.sweep.state import SweepState

WON = {"train.lr": 0.2}


def slot(status: str, lr: float = 0.1, value: float = 0.5, **attrs: Any) -> SlotState:
    """Return a slot with a trial of Optuna at a learning rate, whose accuracy is known where it is done."""
    done = status == "done"
    trial = create_trial(
        state=TrialState.COMPLETE if done else TrialState.FAIL,
        value=value if done else None,
        params={"train.lr": lr},
        distributions={"train.lr": FloatDistribution(0.01, 1)},
        user_attrs=attrs,
    )
    return SlotState(status, trial)


def state(plan: Plan, *searched: SlotState) -> SweepState:
    """Return a state whose search has these slots; the final trials wait."""
    found = SweepState(plan)
    found.slots = dict(zip(plan.searched(0), searched, strict=True)) | {job: slot("waiting") for job in plan.final(0)}
    return found


def test_the_best_point_wins_and_the_first_of_equal_ones(plan: Plan) -> None:
    found = state(plan, slot("done", 0.1, 0.4), slot("done", 0.2, 0.6), slot("done", 0.3, 0.6))
    assert found.electable(0)
    assert found.winner(0) == WON
    assert (found.left, found.finished) == (2, False)


@pytest.mark.parametrize(("third", "partial", "elects"), [
    ("pruned", False, True), ("diverged", False, True), ("failed", False, False), ("failed", True, True),
    ("lost", True, False), ("running", True, False),
])  # fmt: skip
def test_a_winner_is_elected_when_each_point_has_a_result(plan: Plan, third: str, partial: bool, elects: bool) -> None:
    plan = plan._replace(tune=replace(plan.tune, partial=partial))
    found = state(plan, slot("done", 0.1, 0.4), slot("done", 0.2, 0.6), slot(third, 0.3))
    assert found.electable(0) == elects
    over = found.search_over(0)
    # A final trial that waits is blocked where the search is over and elects nobody
    assert found.judged(Job(0, True, 0), slot("waiting")).status == ("blocked" if over and not elects else "waiting")


@pytest.mark.parametrize(("kept", "status"), [(WON, "done"), ({"train.lr": 0.1}, "lost")])
def test_a_final_trial_of_another_point_is_trained_again_and_superseded(plan: Plan, kept: dict, status: str) -> None:
    found = state(plan, slot("done", 0.1, 0.4), slot("done", 0.2, 0.6), slot("diverged", 0.3))
    trained = slot("done", 0.1, 0.7, result={"trials": [{"identity": "a"}]}, **{POINT: as_kept(kept)})
    judged = found.judged(Job(0, True, 0), trained)
    assert (judged.status, judged.superseded) == (status, () if status == "done" else ("a",))


def test_a_final_trial_waits_while_its_search_goes_on_again(plan: Plan) -> None:
    found = state(plan, slot("done", 0.1, 0.4), slot("done", 0.2, 0.6), slot("waiting", 0.3))
    assert found.judged(Job(0, True, 0), slot("done", **{POINT: as_kept(WON)})).status == "waiting"
