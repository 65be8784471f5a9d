"""Points of searches: they cover the space evenly from the first ones on, and proposals depend on no worker."""

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optuna.trial import FrozenTrial, TrialState, create_trial
from scipy.stats import qmc

from pflsweep.config.options import Tune
from pflsweep.sweep.plan import Plan, Slot
from pflsweep.sweep.queue import Lease, Queue
from pflsweep.sweep.sampling import AHEAD, FIRST, first_points, propose, sobol
from pflsweep.sweep.search_space import Point, Space, distributions, parse_axis
from tests.sweep.sweeping import MAIN, age_heartbeats, database, numbers, require_each_once, require_same, run

SPACE: Space = {
    key: parse_axis(key, content, "a test")
    for key, content in {
        "train.lr": {"grid": [1e-4, 0.1], "log": True},
        "algorithm.mu": {"grid": [0, 1], "range": [0.0, 1.0]},
        "algorithm.layers": {"grid": [1, 2, 3, 4]},
        "algorithm.kind": {"grid": ["a", "b"]},
    }.items()
}


def tuned(sampler: str, seed: int = 0) -> Tune:
    """Return the keys of a search on which its points depend."""
    known = {"points": None, "split": "validation", "validation": 0.2, "view": "personal", "round": "last", "seeds": 1}
    return Tune.of({**known, "prune": "none", "sampler": sampler, "seed": seed})


TPE = tuned("tpe")


def bins(values: list[float], low: float, high: float, count: int) -> list[int]:
    """Return how many values are in each of several equal parts of a range."""
    return np.histogram(values, bins=count, range=(low, high))[0].tolist()


@pytest.mark.parametrize("seed", range(5))
def test_the_first_points_cover_each_axis_evenly(seed: int) -> None:
    points = sobol(SPACE, 8, seed)
    assert bins([math.log10(point["train.lr"]) for point in points], -4, -1, 8) == [1] * 8
    assert bins([point["algorithm.mu"] for point in points], 0, 1, 8) == [1] * 8
    assert Counter(point["algorithm.layers"] for point in points) == {1: 2, 2: 2, 3: 2, 4: 2}
    assert Counter(point["algorithm.kind"] for point in points) == {"a": 4, "b": 4}


def test_two_axes_together_are_covered_better_than_by_chance() -> None:
    found = np.array([[math.log10(p["train.lr"]) / 3 + 4 / 3, p["algorithm.mu"]] for p in sobol(SPACE, 32, 1)])
    by_chance = [qmc.discrepancy(np.random.default_rng(k).random((32, 2))) for k in range(20)]
    assert qmc.discrepancy(found) < min(by_chance) / 2


def test_whole_numbers_have_the_same_share_each_and_stay_in_their_range() -> None:
    whole = parse_axis("algorithm.models", {"grid": [1, 3]}, "a test")
    found = Counter(point["n"] for point in sobol({"n": whole}, 300, 0))
    assert set(found) == {1, 2, 3}
    assert max(found.values()) - min(found.values()) <= 3
    # Rounding to four digits would leave this range
    narrow = parse_axis("train.lr", {"grid": [0.123456, 0.123459]}, "a test")
    assert all(0.123456 <= point["lr"] <= 0.123459 for point in sobol({"lr": narrow}, 20, 0))
    assert narrow.value(0.123458) == 0.123459


def test_more_points_continue_fewer_and_methods_get_others() -> None:
    tune = tuned("random")
    points = first_points(tune, SPACE, 20, "fedala cifar10")
    assert first_points(tune, SPACE, 11, "fedala cifar10") == points[:11]
    assert first_points(TPE, SPACE, 20, "fedala cifar10") == points[:FIRST]
    assert first_points(tuned("cmaes"), SPACE, 20, "fedala cifar10") == []
    for other in (
        first_points(tune, SPACE, 20, "pgfed cifar10"),
        first_points(tune, SPACE, 20, "fedala mnist"),
        first_points(tuned("random", 1), SPACE, 20, "fedala cifar10"),
    ):
        assert not {point["train.lr"] for point in other} & {point["train.lr"] for point in points}


def score(point: dict[str, Any]) -> float:
    """Return a score whose maximum is at lr = 0.01, mu = 0.3."""
    return 1 - (math.log10(point["train.lr"]) + 2) ** 2 / 9 - (point["algorithm.mu"] - 0.3) ** 2


def told(params: dict[str, Any], value: float | None = None, **user_attrs: Any) -> FrozenTrial:
    state = TrialState.FAIL if value is None else TrialState.COMPLETE
    return create_trial(
        state=state, value=value, params=params, distributions=distributions(SPACE), user_attrs=user_attrs
    )


def searched(count: int, of: Callable[[dict[str, Any]], FrozenTrial], tune: Tune = TPE) -> list[FrozenTrial]:
    """Return the trials of a search, tried one after another."""
    trials: list[FrozenTrial] = []
    first = first_points(tune, SPACE, count, "a")
    for k in range(count):
        trials.append(of(first[k] if k < len(first) else propose(tune, SPACE, "a", trials, k)))
    return trials


@pytest.mark.parametrize(("sampler", "count"), [("tpe", 30), ("cmaes", 80)])
def test_proposals_learn_and_differ_between_methods(sampler: str, count: int) -> None:
    tune = tuned(sampler)
    trials = searched(count, lambda params: told(params, score(params)), tune)
    values = [trial.value or 0.0 for trial in trials]
    assert np.mean(values[-8:]) > np.mean(values[:8]) + 0.1
    assert propose(tune, SPACE, "another", trials, 20) != trials[20].params


@pytest.mark.parametrize("sampler", ["tpe", "cmaes"])
def test_a_proposal_depends_on_the_needed_results_alone(sampler: str) -> None:
    tune = tuned(sampler)
    trials = searched(20, lambda params: told(params, score(params)), tune)
    needed, others = trials[: 20 - AHEAD + 1], trials[20 - AHEAD + 1 :]
    proposed = propose(tune, SPACE, "a", trials, 20)
    assert propose(tune, SPACE, "a", [*needed, *(told(trial.params, 0.99) for trial in others)], 20) == proposed
    # A slot that is not leased yet, so without a point
    waiting = create_trial(state=TrialState.WAITING)
    assert propose(tune, SPACE, "a", [*needed, *[waiting] * len(others)], 20) == proposed
    opposite = [told(trial.params, 1 - (trial.value or 0)) for trial in needed]
    assert propose(tune, SPACE, "a", [*opposite, *others], 20) != proposed


def test_what_diverged_is_avoided_and_what_crashed_says_nothing() -> None:
    def bad(**attrs: Any) -> int:
        """Return how many of the proposals have a learning rate at which trials end in this way."""

        def end(params: dict[str, Any]) -> FrozenTrial:
            return told(params, **attrs) if params["train.lr"] > 0.003 else told(params, score(params))

        return sum(trial.params["train.lr"] > 0.003 for trial in searched(40, end)[FIRST + AHEAD :])

    assert bad(diverged=True) < 0.6 * bad()
    crashed = [told(params) for params in first_points(TPE, SPACE, FIRST, "a")]
    assert propose(TPE, SPACE, "a", crashed, FIRST).keys() == SPACE.keys()


@pytest.fixture
def tpe(plan: Plan) -> Plan:
    """Return the plan with 16 points by TPE."""
    tune = replace(plan.tune, sampler="tpe")
    group = plan.groups[0]._replace(space=SPACE, points=first_points(tune, SPACE, 16, "fedavg"), search_slot_count=16)
    return plan._replace(tune=tune, groups=[group])


def drawn(queue: Queue) -> list[Point]:
    """Return the point of each slot of the search."""
    queue.refresh()
    trials = [queue.sweep.states[slot].trial for slot in queue.plan.search_slots(0)]
    return [queue.plan.groups[0].point_of(trial.params) for trial in trials if trial is not None]


def search_alone(plan: Plan) -> list[Point]:
    queue = Queue(plan)
    queue.prepare()
    while (lease := queue.lease_next()) is not None and not lease.slot.final:
        queue.complete(lease, score(lease.point), {})
    return drawn(queue)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow
def test_who_finishes_first_and_who_is_killed_changes_no_point(seed: int, tpe: Plan) -> None:
    """Several workers finish in random order; some give their slots back, some fall silent and are replaced."""
    alone = search_alone(tpe)
    draw, plan = random.Random(seed), tpe._replace(id=f"{seed + 1}" * 16)
    workers = [Queue(plan) for _ in range(5)]
    workers[0].prepare()
    held: list[tuple[Queue, Lease]] = []
    most = 0
    while not all(workers[0].sweep.states[slot].status == "done" for slot in plan.search_slots(0)):
        queue = draw.choice(workers)
        queue.refresh()
        if draw.random() < 0.6 and (lease := queue.lease_next()) is not None:
            held.append((queue, lease))
            if lease.slot.number >= FIRST:
                most = max(most, sum(lease.slot.number >= FIRST for _, lease in held))
        elif held:
            queue, lease = held.pop(draw.randrange(len(held)))
            end = draw.random()
            if end < 0.7:
                queue.complete(lease, score(lease.point), {})
            elif end < 0.85:
                queue.release(lease)
            else:
                # All running trials are taken over, and their workers store nothing any more
                age_heartbeats(queue)
                held = []
                workers[0].revive()
        workers[0].refresh()
    assert drawn(workers[0]) == alone
    assert 1 < most <= AHEAD


def test_points_that_are_known_are_seen_before_they_begin(tpe: Plan) -> None:
    queue = Queue(tpe)
    queue.prepare()
    assert drawn(queue)[:FIRST] == tpe.groups[0].points
    assert drawn(queue)[FIRST:] == [{}] * 8
    assert queue.plan.known_point(Slot(0, False, FIRST)) is None


SEARCH = [
    "-m", "algorithm=fedprox,pgfed", "seed=0", "tune=tpe", "tune.points=12", "train.rounds=2", "partition.clients=6",
    "model.hidden=[16]", "checkpoint.models=false", "workers.heartbeat=1",
]  # fmt: skip
DIES = """
import os, signal
from pflsweep.sweep import worker
outcome, told = worker.outcome, [0]

def dying(*arguments):
    told[0] += 1
    if told[0] == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return outcome(*arguments)

worker.outcome = dying
"""


@pytest.mark.slow
def test_several_workers_that_are_killed_train_the_trials_of_one(tmp_path: Path) -> None:
    one, three = tmp_path / "one", tmp_path / "three"
    alone = run(one, *SEARCH)
    assert alone.returncode == 0, alone.stderr
    boot = f"from pflsweep.sweep.launch import processes\nprocesses.BOOT = {DIES!r} + processes.BOOT\n"
    killed = run(three, *SEARCH, "workers.count=2", code=boot + MAIN)
    assert killed.returncode == 0, killed.stderr
    assert "A worker died (SIGKILL" in killed.stderr
    require_each_once(database(three), 26)
    assert len(numbers(one)) == 26
    require_same(one, three)
