"""ALA's learning curves: their beginning, that they are the method's own steps, and the rounds that they are of."""

from typing import Any

import pytest
import torch

from pflsweep.algorithms.fedala import FedALA
from pflsweep.studies.weight_learning import WeightLearning
from tests.studies.test_trajectory import ALA, ROUNDS, simulation

CLIENT = 2
OPTIONS = {"client": CLIENT, "curves": 3, "weight_epochs": 4}


def watched(participation: float = 1.0, idle: float = 0.0, **changes: Any) -> tuple[Any, WeightLearning]:
    sim = simulation(FedALA, participation, **ALA, idle=idle)
    study = WeightLearning(method=sim.verbs.method, plugins=(), **{**OPTIONS, **changes})
    study.look(sim)
    for _ in sim.run():
        study.look(sim)
    return sim, study


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "rounds"),
    [({}, [2, 4, 6]), ({"curves": 9}, [2, 3, 4, 5, 6]), ({"curves": 1}, [2]), ({"idle": 0.5}, [4, 5, 6])],
)
def test_rounds_are_spread_from_alas_first_to_the_last(options: dict[str, Any], rounds: list[int]) -> None:
    sim, study = watched(**options)
    table = study.table(sim)
    assert sorted(set(table["round"])) == rounds
    assert table.groupby("round")["epoch"].apply(list).tolist() == [[0, 1, 2, 3, 4]] * len(rounds)


def test_an_epoch_is_the_methods_own() -> None:
    """After the initial stage the method learns for one epoch, which is the first one of the curve."""
    sim = simulation(FedALA, **ALA, idle=0.0)
    for _ in range(3):
        sim._next()
    (ala,) = sim.verbs.method.plugins()
    given, data = sim.next_turn(torch.tensor([CLIENT]))
    assert given.client.converged.all()
    before, after, *_ = ala.curve(given, data, 2)
    start = sim.verbs.start(given, data)

    def loss(weight: torch.Tensor) -> float:
        mix = given.client.own + (given.down.w[:, sim.task.head] - given.client.own) * weight
        w = torch.cat([given.down.w[:, : sim.task.head.start], mix], 1)[0]
        batches = list(data.sample(ala.share, "ala"))
        x, y = torch.cat([b.x[0] for b in batches]), torch.cat([b.y[0] for b in batches])
        return float(torch.nn.functional.cross_entropy(sim.task.logits(w, x), y))

    assert before == pytest.approx(loss(given.client.weight))
    assert after == pytest.approx(loss(start.weight))
    assert after < before


def test_a_client_without_a_turn_before_is_left_out() -> None:
    sim, study = watched(participation=0.2, curves=ROUNDS)
    cohorts, plain = [], simulation(FedALA, 0.2, **ALA, idle=0.0)
    cohorts = [result.round for result in plain.run() if CLIENT in result.ids]
    first = min(cohorts, default=ROUNDS)
    assert sorted(set(study.table(sim)["round"])) == list(range(first + 1, ROUNDS + 1))
    assert 1 < first + 1 <= ROUNDS, "else this tests nothing"
