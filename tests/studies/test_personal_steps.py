"""The steps of both objectives compared with plain PyTorch."""

import numpy as np
import pytest
import torch

from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.conformance.fixtures import CLIENTS, fixture
from pflsweep.data.loader import ClientData
from pflsweep.engine.simulation import Schedule, Simulation
from pflsweep.methods.optimizer import Sgd
from pflsweep.methods.protocol import Verbs
from pflsweep.methods.task import Batch, Task
from pflsweep.studies.personal_steps import PersonalSteps

OPTIONS = {"steps": 3, "mu": 0.5, "lr": 0.2, "batch": 4, "others": 2}


def finished() -> tuple[Simulation, FedAvg]:
    made = fixture()
    task = Task(made.model)
    method = FedAvg(task=task, opt=Sgd(0.0, 0.0), epochs=1)
    schedule = Schedule(2, 1.0, "share", 1, 4, 0.1, 1.0, 2, 8, 1)
    simulation = Simulation(Verbs.of(method), task, made.federation, schedule, task.vector(made.model))
    for _ in simulation.run():
        pass
    return simulation, method


def study(method: FedAvg, **changes: float) -> PersonalSteps:
    return PersonalSteps(method=method, plugins=(), **{**OPTIONS, **changes})


@pytest.mark.parametrize("explicit", [True, False])
def test_steps_descend_the_objective(explicit: bool) -> None:
    """Eq. 4 is written out with autograd, each f_j by itself."""
    simulation, method = finished()
    of, client, task, federation = study(method), 0, simulation.task, simulation.federation
    pool = [of._drawn(simulation, step) for step in range(of.steps)]
    first, *rest = of._models(simulation, client, pool if explicit else None)
    assert torch.equal(first, simulation.global_model())
    data = ClientData.of(federation, [client], simulation.round, batch=4, large=8, purpose="study")
    w = first.clone()
    for step, (batch, got) in enumerate(zip(data.train(of.steps), rest, strict=False)):
        free = w.clone().requires_grad_()

        def risk(x, y, at=free):
            return torch.nn.functional.cross_entropy(task.logits(at, x), y)

        objective = risk(batch.x[0], batch.y[0])
        if explicit:
            others = [risk(*federation.gather(pool[step][j])) for j in range(CLIENTS) if j != client]
            objective = objective + of.mu / (CLIENTS - 1) * sum(others)
        objective.backward()
        w = w - of.lr * free.grad
        torch.testing.assert_close(got, w, rtol=0, atol=1e-12)
    assert len(rest) == of.steps


def test_the_pool_is_of_each_clients_own_rows_and_of_another_draw_each_step() -> None:
    simulation, method = finished()
    drawn = [study(method, others=3)._drawn(simulation, step).numpy() for step in range(2)]
    for rows, own in zip(drawn[0], simulation.federation.rows["train"], strict=True):
        assert set(rows) <= set(own)
    assert not np.array_equal(*drawn)


def test_both_objectives_begin_alike_and_are_one_without_mu() -> None:
    simulation, method = finished()
    for mu in (0.0, 0.5):
        table = study(method, mu=mu).table(simulation)
        assert len(table) == 2 * CLIENTS * (OPTIONS["steps"] + 1)
        explicit, implicit = (table[table["objective"] == name].reset_index() for name in ("explicit", "implicit"))
        start = explicit["step"] == 0
        assert explicit[start]["loss"].equals(implicit[start]["loss"])
        assert explicit["loss"].equals(implicit["loss"]) == (mu == 0)
    own = simulation.evaluate()["global"]
    np.testing.assert_allclose(explicit[start]["loss"], own.loss)
    assert explicit[start]["correct"].tolist() == own.correct.tolist()


def test_a_small_client_begins_its_rows_anew() -> None:
    """Client 1 has one row, so three steps are three epochs."""
    simulation, method = finished()
    assert len(list(study(method)._models(simulation, 1, None))) == 4


def test_more_others_are_a_closer_estimate() -> None:
    simulation, method = finished()
    task, federation, w = simulation.task, simulation.federation, simulation.global_model()

    def step(others: int) -> torch.Tensor:
        of = study(method, steps=1, others=others)
        both = [list(of._models(simulation, 0, pool))[1] for pool in ([of._drawn(simulation, 0)], None)]
        return (both[1] - both[0]) / (of.lr * of.mu)

    rows = federation.rows["train"][1:]
    batches = [federation.gather(torch.from_numpy(own)) for own in rows]
    exact = sum(task.grad(w, Batch(x, y, None, None, None)) for x, y in batches) / len(batches)
    assert (step(400) - exact).norm() < 0.2 * (step(1) - exact).norm()
