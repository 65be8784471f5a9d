"""A plan that tests of the queue and of its status share."""

from dataclasses import replace
from pathlib import Path

import pytest

from pflsweep.config.compose import compose
from pflsweep.config.options import Tune, Workers
from pflsweep.sweep.plan import Group, Plan, changed
from pflsweep.sweep.search_space import parse_axis


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """Return a plan with three points of lr in one group, and two seeds."""
    config = compose([f"paths.runs={tmp_path}"])
    space = {"train.lr": parse_axis("train.lr", {"grid": [0.1, 0.2, 0.3]}, "a test")}
    group = Group("", "fedavg", config, space, [{"train.lr": lr} for lr in (0.1, 0.2, 0.3)], 3)
    tune = {"sampler": "grid", "split": "validation", "validation": 0.2, "view": "personal", "round": "last"}
    tune |= {"seeds": 1, "seed": 0, "points": None, "prune": "none", "partial": False, "scale": None}
    workers = {"count": 1, "stack": 1, "backend": "processes", "address": None, "storage": None, "heartbeat": 1}
    return Plan("0" * 16, "a test", [group], [0, 1], Tune.of(tune), Workers.of(workers))


@pytest.fixture
def halving(plan: Plan) -> Plan:
    """Return a plan of five points by hyperband: slots 0 to 2 train three of nine rounds, and slots 3 to 5 all, where
    the last one goes on with the best of the first three.
    """
    rates, config = [0.1, 0.2, 0.3, 0.4, 0.5], changed(plan.groups[0].config, {"train.rounds": 9})
    space, points = {"train.lr": parse_axis("train.lr", {"grid": rates}, "a test")}, [{"train.lr": lr} for lr in rates]
    group = plan.groups[0]._replace(config=config, space=space, points=points, search_slot_count=6)
    return plan._replace(groups=[group], tune=replace(plan.tune, sampler="hyperband"))
