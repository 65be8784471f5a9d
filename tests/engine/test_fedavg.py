"""FedAvg on flat vectors equals FedAvg written with copies of a module and torch.optim.SGD."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.conformance.case import EPOCHS, SCHEDULE, Case, advance
from pflsweep.conformance.fixtures import fixture
from pflsweep.data.loader import ClientData
from pflsweep.engine.simulation import Simulation
from pflsweep.methods.optimizer import Sgd
from pflsweep.methods.task import Task


def literal(
    momentum: float, weight_decay: float, rounds: int, participation: float, optimiser_state: str = "fresh"
) -> Tensor:
    """Train with the same cohorts and batches, and all else written out."""
    federation, model = fixture()
    states: dict[int, Any] = {}  # by client, of its last turn
    cohorts = Case(lambda task, opt, epochs: FedAvg(task=task, opt=opt, epochs=epochs)).simulation(
        participation=participation
    )
    for round, result in zip(range(1, rounds + 1), cohorts.run(), strict=False):
        trained, weights = [], []
        for i in result.ids.tolist():
            batches = ClientData.of(federation, [i], round, batch=SCHEDULE.batch, large=8).train(EPOCHS)
            local = copy.deepcopy(model)
            lr = SCHEDULE.lr * SCHEDULE.lr_decay ** (round - 1)
            optimiser = torch.optim.SGD(local.parameters(), lr, momentum=momentum, weight_decay=weight_decay)
            if optimiser_state == "kept" and i in states:
                optimiser.load_state_dict({**optimiser.state_dict(), "state": states[i]})
            for batch in batches:
                optimiser.zero_grad()
                F.cross_entropy(local(batch.x[0]), batch.y[0]).backward()
                optimiser.step()
            states[i] = optimiser.state_dict()["state"]
            trained.append(local)
            weights.append(int(federation.sizes[i]))
        average(model, trained, weights)
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def average(model: nn.Module, trained: list[nn.Sequential], weights: list[int]) -> None:
    with torch.no_grad():
        for own, *theirs in zip(model.parameters(), *(local.parameters() for local in trained), strict=True):
            total = sum(w * p for w, p in zip(weights, theirs, strict=True))
            own.copy_(total / sum(weights))


def flat(
    momentum: float, weight_decay: float, rounds: int, participation: float, chunk: int, optimiser_state: str = "fresh"
) -> Tensor:
    def make(task: Task, opt: Sgd, epochs: int) -> FedAvg:
        return FedAvg(task=task, opt=Sgd(momentum, weight_decay), epochs=epochs)

    sim: Simulation = Case(make, optimiser_state=optimiser_state).simulation(participation=participation, chunk=chunk)
    return advance(sim, rounds).server.w


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [1, 6])
@pytest.mark.parametrize("participation", [0.5, 1.0])
@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.1), (0.9, 0.1)])
def test_fedavg_is_the_plain_loop(momentum: float, weight_decay: float, participation: float, chunk: int) -> None:
    ours = flat(momentum, weight_decay, 3, participation, chunk)
    theirs = literal(momentum, weight_decay, 3, participation)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [1, 6])
@pytest.mark.parametrize("participation", [0.5, 1.0])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_fedavg_with_kept_optimisers_is_the_plain_loop(weight_decay: float, participation: float, chunk: int) -> None:
    ours = flat(0.9, weight_decay, 4, participation, chunk, "kept")
    theirs, fresh = (literal(0.9, weight_decay, 4, participation, how) for how in ("kept", "fresh"))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)
    assert not torch.allclose(ours, fresh)


def test_momentum_and_weight_decay_matter() -> None:
    variants = [flat(m, d, 2, 1.0, 1) for m, d in ((0.0, 0.0), (0.9, 0.0), (0.0, 0.1))]
    assert not torch.allclose(variants[0], variants[1])
    assert not torch.allclose(variants[0], variants[2])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_sgd_is_torchs(momentum: float, weight_decay: float) -> None:
    draw = torch.Generator().manual_seed(0)
    start, *gradients = torch.randn(6, 9, generator=draw, dtype=torch.float64)
    parameter = nn.Parameter(start.clone())
    theirs = torch.optim.SGD([parameter], 0.1, momentum=momentum, weight_decay=weight_decay)
    opt, w = Sgd(momentum, weight_decay), start.clone()
    state = opt.init(w[None])[0]
    for g in gradients:
        parameter.grad = g.clone()
        theirs.step()
        w, state = opt.update(w, state, g.clone(), 0.1)
    torch.testing.assert_close(w, parameter.detach(), rtol=1e-12, atol=0)
