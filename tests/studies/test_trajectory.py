"""Both trajectories of one client, and their plane, compared with simulations and numpy."""

from typing import Any

import numpy as np
import pytest
import torch

from pflsweep.algorithms.fedala import FedALA
from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.conformance.fixtures import fixture
from pflsweep.engine.simulation import Schedule, Simulation
from pflsweep.methods.optimizer import Sgd
from pflsweep.methods.protocol import Verbs
from pflsweep.methods.task import Task
from pflsweep.plugins.ala import Ala
from pflsweep.studies.study import next_turn
from pflsweep.studies.trajectory import Trajectory, principal_plane

ROUNDS, CLIENT = 6, 2
ALA = {"layers": 1, "share": 0.8, "rate": 1.0, "draw": "random"}
SEEN = {"client": CLIENT, "since": 0.35, "grid": 3, "margin": 0.1}


def simulation(method: type, participation: float = 1.0, momentum: float = 0.0, **hyper: Any) -> Simulation:
    made = fixture()
    task = Task(made.model)
    built = method(task=task, opt=Sgd(momentum, 0.0), epochs=1, **hyper)
    kept = "kept" if momentum else "fresh"
    schedule = Schedule(ROUNDS, participation, "share", 1, 4, 0.1, 1.0, 1, 8, 1, kept)
    return Simulation(Verbs.of(built), task, made.federation, schedule, task.vector(made.model))


def watched(idle: float) -> tuple[Simulation, Trajectory]:
    sim = simulation(FedALA, **ALA, idle=idle)
    study = Trajectory(method=sim.verbs.method, plugins=(), **SEEN)
    study.look(sim)
    for _ in sim.run():
        study.look(sim)
    return sim, study


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_turn_looked_at_is_the_turn_that_follows(momentum: float) -> None:
    sim = simulation(FedAvg, momentum=momentum)
    for _ in range(3):
        start, end = next_turn(sim, CLIENT)
        assert torch.equal(start, sim.server.w)
        sent, aggregate = [], sim.verbs.aggregate
        sim.verbs = sim.verbs._replace(aggregate=lambda server, up, turn, to=sent, then=aggregate: (
            to.append(up.w[CLIENT].clone()), then(server, up, turn))[1])  # fmt: skip
        sim._next()
        sim.verbs = sim.verbs._replace(aggregate=aggregate)
        assert torch.equal(end, sent[0])


@pytest.mark.parametrize(("idle", "acts_from"), [(0.5, 4), (0.0, 1)])
def test_both_ways_are_those_of_the_simulations_they_stand_for(idle: float, acts_from: int) -> None:
    _, study = watched(idle)
    own, plain = simulation(FedALA, **ALA, idle=idle), simulation(FedAvg)
    # 35% of 6 rounds
    first = 2
    for round in range(1, ROUNDS + 1):
        ours, theirs = (torch.stack(next_turn(sim, CLIENT)) for sim in (own, plain))
        if round >= first:
            seen = study.rounds[round - first]
            assert len(seen) == (2 if round >= acts_from else 1)
            assert torch.equal(seen[0], ours)
            assert torch.equal(seen[-1], theirs)
        own._next()
        plain._next()
    assert len(study.rounds) == ROUNDS - first + 1


def test_points_and_surface_have_the_losses_of_the_models() -> None:
    sim, study = watched(0.5)
    table = study.table(sim)
    points, surface = (table[table["what"] == what] for what in ("point", "surface"))
    assert len(points) == 2 * 2 * len(study.rounds)
    assert set(points.loc[points["ala"].astype(bool), "round"]) == {4, 5, 6}
    x, y = sim.federation.gather(torch.from_numpy(sim.federation.rows["train"][CLIENT]))

    def loss(w: torch.Tensor) -> float:
        return float(torch.nn.functional.cross_entropy(sim.task.logits(w, x), y))

    last = points[(points["round"] == 6) & (points["at"] == "end")].set_index("series")["loss"]
    assert last["with"] == pytest.approx(loss(study.rounds[-1][0, 1]))
    assert last["without"] == pytest.approx(loss(study.rounds[-1][1, 1]))
    early = points[points["round"] == 3].drop(columns="series")
    assert early.iloc[:2].reset_index(drop=True).equals(early.iloc[2:].reset_index(drop=True))
    plane = principal_plane(torch.cat([models.flatten(0, 1) for models in study.rounds]))
    for _, row in surface.iterrows():
        assert row["loss"] == pytest.approx(loss(plane.at(row["c1"], row["c2"])))
    assert len(surface) == 9
    assert surface["c1"].min() < points["c1"].min()
    assert surface["c2"].max() > points["c2"].max()


def test_the_plane_is_that_of_a_singular_value_decomposition() -> None:
    models = torch.from_numpy(np.random.default_rng(0).normal(size=(7, 40)) * np.array([5, 3, *[0.1] * 38]) + 2)
    plane = principal_plane(models)
    apart = (models - models.mean(0)).numpy()
    _, lengths, axes = np.linalg.svd(apart, full_matrices=False)
    for own, theirs in zip(plane.axes.numpy(), axes, strict=False):
        np.testing.assert_allclose(np.abs(own @ theirs), 1)
    np.testing.assert_allclose(plane.coordinates.numpy(), apart @ plane.axes.numpy().T, atol=1e-10)
    np.testing.assert_allclose(plane.shares, (lengths**2 / (lengths**2).sum())[:2])
    farthest = plane.coordinates.abs().argmax(0)
    assert (plane.coordinates.gather(0, farthest[None]) > 0).all()
    np.testing.assert_allclose(plane.at(0.0, 0.0), models.mean(0))


def test_models_that_do_not_move_have_a_plane_too() -> None:
    plane = principal_plane(torch.ones(4, 5))
    assert torch.isfinite(plane.coordinates).all()
    assert torch.isfinite(plane.at(0.0, 0.0)).all()


def test_ala_plugged_in_is_followed_like_fedala() -> None:
    sim = simulation(FedAvg)
    ala = Ala(task=sim.task, **ALA, idle=0.5)
    sim = Simulation(Verbs.of(sim.verbs.method, ala), sim.task, sim.federation, sim.schedule, sim.server.w)
    study = Trajectory(method=FedAvg(task=sim.task, opt=Sgd(0.0, 0.0), epochs=1), plugins=(ala,), **SEEN)
    study.look(sim)
    for _ in sim.run():
        study.look(sim)
    _, other = watched(0.5)
    assert all(torch.equal(a, b) for a, b in zip(study.rounds, other.rounds, strict=True))
