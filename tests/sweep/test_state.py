"""The state of a sweep, without a database: what is left, and what a search says about its final trials."""

import json
from dataclasses import replace
from typing import Any

import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState, create_trial

from pflsweep.sweep.attributes import POINT
from pflsweep.sweep.mlflow_names import group_results
from pflsweep.sweep.plan import Plan, Slot
from pflsweep.sweep.slot_state import SlotState
from pflsweep.sweep.state import SweepState

WON = {"train.lr": 0.2}


def state(status: str, lr: float = 0.1, value: float = 0.5, **attrs: Any) -> SlotState:
    """Return the state of a slot with a trial of Optuna at a learning rate; its accuracy is known where it is done."""
    done = status == "done"
    trial = create_trial(
        state=TrialState.COMPLETE if done else TrialState.FAIL,
        value=value if done else None,
        params={"train.lr": lr},
        distributions={"train.lr": FloatDistribution(0.01, 1)},
        user_attrs=attrs,
    )
    return SlotState(status, trial)


def sweep(plan: Plan, *searched: SlotState) -> SweepState:
    """Return the state of a sweep whose search has slots in these states; the final trials wait."""
    found = SweepState(plan)
    found.states = dict(zip(plan.search_slots(0), searched, strict=True)) | {
        slot: state("waiting") for slot in plan.final_slots(0)
    }
    return found


def test_the_best_point_wins_and_the_first_of_equal_ones(plan: Plan) -> None:
    found = sweep(plan, state("done", 0.1, 0.4), state("done", 0.2, 0.6), state("done", 0.3, 0.6))
    assert found.can_elect_winner(0)
    assert found.winner(0) == WON
    assert (found.left, found.finished) == (2, False)


@pytest.mark.parametrize(("third", "partial", "elects"), [
    ("pruned", False, True), ("diverged", False, True), ("failed", False, False), ("failed", True, True),
    ("due", True, False), ("running", True, False),
])  # fmt: skip
def test_a_winner_is_elected_when_each_point_has_a_result(plan: Plan, third: str, partial: bool, elects: bool) -> None:
    plan = plan._replace(tune=replace(plan.tune, partial=partial))
    found = sweep(plan, state("done", 0.1, 0.4), state("done", 0.2, 0.6), state(third, 0.3))
    assert found.can_elect_winner(0) == elects
    over = found.search_over(0)
    # A final trial that waits is blocked where the search is over and elects nobody
    assert found.adapt_to_search(Slot(0, True, 0), state("waiting")).status == (
        "blocked" if over and not elects else "waiting"
    )


@pytest.mark.parametrize(("kept", "status"), [(WON, "done"), ({"train.lr": 0.1}, "due")])
def test_a_final_trial_of_another_point_is_trained_again_and_superseded(plan: Plan, kept: dict, status: str) -> None:
    found = sweep(plan, state("done", 0.1, 0.4), state("done", 0.2, 0.6), state("diverged", 0.3))
    trained = state("done", 0.1, 0.7, result={"trials": [{"identity": "a"}]}, **{POINT: json.dumps(kept)})
    adapted = found.adapt_to_search(Slot(0, True, 0), trained)
    assert (adapted.status, adapted.superseded) == (status, () if status == "done" else ("a",))


def test_a_final_trial_waits_while_its_search_goes_on_again(plan: Plan) -> None:
    found = sweep(plan, state("done", 0.1, 0.4), state("done", 0.2, 0.6), state("waiting", 0.3))
    assert found.adapt_to_search(Slot(0, True, 0), state("done", **{POINT: json.dumps(WON)})).status == "waiting"


@pytest.mark.parametrize(("below", "partial", "status"), [
    (("done", "done", "failed"), False, "blocked"), (("done", "done", "failed"), True, "waiting"),
    (("failed", "diverged", "failed"), True, "waiting"), (("failed", "failed", "failed"), True, "blocked"),
])  # fmt: skip
def test_by_hyperband_a_point_without_a_result_is_not_promoted(
    halving: Plan, below: tuple[str, ...], partial: bool, status: str
) -> None:
    plan, last = halving._replace(tune=replace(halving.tune, partial=partial)), Slot(0, False, 5)
    found = sweep(plan, *map(state, below), *[state("waiting")] * 3)
    assert found.adapt_to_search(last, state("waiting")).status == status
    assert found.proposable(last) == (status == "waiting")


def test_by_hyperband_a_point_of_few_rounds_does_not_win(halving: Plan) -> None:
    """The best of the first three falls behind in the other rounds."""
    assert halving.compared_slots(0) == [Slot(0, False, k) for k in (3, 4, 5)]
    ends = [(0.1, 0.9), (0.2, 0.3), (0.3, 0.4), (0.4, 0.5), (0.5, 0.8), (0.1, 0.7)]
    found = sweep(halving, *(state("done", *end) for end in ends))
    assert found.winner(0) == {"train.lr": 0.5}
    assert found.rounds(Slot(0, False, 0)) == 3
    # MLflow's page of the sweep, too, shows the best of those that trained all rounds
    (result,) = group_results(found, [])
    assert result.search == [0.5, 0.8, 0.8]
