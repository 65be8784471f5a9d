"""The engine's PGFed, FedALA and FedFomo against the literal transcriptions beside this file."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from pflsweep.algorithms.fedala import FedALA
from pflsweep.algorithms.fedfomo import FedFomo
from pflsweep.algorithms.pgfed import PGFed
from pflsweep.data.dataset import Dataset, Rows
from pflsweep.data.federation import Federation
from pflsweep.data.loader import ClientData
from pflsweep.engine.simulation import Schedule, Simulation
from pflsweep.methods.optimizer import Sgd
from pflsweep.methods.protocol import Turn, Verbs
from pflsweep.methods.task import Task
from pflsweep.ops.vmap import tree_map
from tests.reference import fedala, fedfomo, pgfed
from tests.reference.common import perceptron

SIZES, WIDTHS, ROUNDS, EPOCHS, LR, MOMENTUM = [9, 5, 14, 7, 11], [4, 6, 3], 6, 2, 0.1, 0.9


def federation() -> Federation:
    torch.manual_seed(7)
    n = sum(SIZES)
    x = torch.randn(n, WIDTHS[0], dtype=torch.float32)
    y = (x @ torch.randn(WIDTHS[0], WIDTHS[-1])).argmax(1)
    data = Dataset("toy", x, y, n, WIDTHS[-1], 1.0, torch.zeros(WIDTHS[0]), torch.ones(WIDTHS[0]), "toy")
    rows = np.split(np.arange(n), np.cumsum(SIZES)[:-1])
    return Federation(data, Rows(rows, rows), validation=0.0, seed=3, device="cpu", dtype=torch.float64)


class Run:
    """A simulation of the engine beside everything that the transcription needs to repeat it."""

    def __init__(self, method: type, chunk: int, participation: float = 0.6, **hyper: object) -> None:
        torch.manual_seed(0)
        model = nn.Sequential()
        for k, (wide, narrow) in enumerate(pairwise(WIDTHS)):
            layer = nn.Linear(wide, narrow)
            model.append(layer if k == len(WIDTHS) - 2 else nn.Sequential(layer, nn.ReLU()))
        self.task, self.federation = Task(model), federation()
        self.w0 = self.task.vector(model).double()
        built = method(task=self.task, opt=Sgd(MOMENTUM, 0.0), epochs=EPOCHS, **hyper)
        schedule = Schedule(ROUNDS, participation, "share", EPOCHS, 4, LR, 1.0, 1, 64, chunk)
        self.simulation = Simulation(Verbs.of(built), self.task, self.federation, schedule, self.w0)
        self.cohorts: list[list[int]] = []
        self.personal: list[torch.Tensor] = []
        self.servers: list = []
        self.downs: dict = {}  # what a client was sent in a round
        send = self.simulation.verbs.send

        def listen(server: object, turn: Turn) -> object:
            down = send(server, turn)
            for place, i in enumerate(turn.ids.tolist()):
                self.downs[turn.round, i] = tree_map(lambda v, k=place: v[k], down)
            return down

        self.simulation.verbs = self.simulation.verbs._replace(send=listen)
        for result in self.simulation.run():
            self.cohorts.append(result.ids.tolist())
            self.personal.append(torch.stack(list(self.simulation.personal_models())))
            self.servers.append(self.simulation.server)

    def rows(self, i: int) -> np.ndarray:
        return self.federation.rows["train"][i]

    def data(self, t: int, i: int):
        return ClientData.of(self.federation, [i], t, batch=4, large=64)

    def local(self, i: int, orders: list[np.ndarray]) -> list[torch.Tensor]:
        """Row numbers of the dataset as positions within client i's data."""
        return [torch.from_numpy(np.searchsorted(self.rows(i), order)) for order in orders]

    def batches(self, t: int, i: int) -> list[torch.Tensor]:
        return self.local(i, self.data(t, i)._chunk.shuffled(0, EPOCHS, "epochs"))

    def arguments(self) -> dict:
        size, _, loss = perceptron(WIDTHS)
        assert size == self.task.size
        clients = [self.federation.gather(torch.from_numpy(self.rows(i))) for i in range(len(SIZES))]
        given = {"loss": loss, "w0": self.w0, "clients": clients, "lr": LR, "momentum": MOMENTUM}
        return {**given, "cohorts": self.cohorts, "batches": self.batches}

    def check_personal(self, expected: list[dict]) -> None:
        for ours, theirs in zip(self.personal, expected, strict=True):
            for i in range(len(SIZES)):
                torch.testing.assert_close(ours[i], theirs["personal"][i], rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [1, 5])
@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("estimate", ["full", "ce"])
def test_pgfed(chunk: int, beta: float, estimate: str) -> None:
    run = Run(PGFed, chunk, mu=0.3, alpha_lr=0.05, beta=beta, estimate=estimate)
    expected = pgfed.run(**run.arguments(), mu=0.3, eta2=0.05, beta=beta, ce=estimate == "ce")
    run.check_personal(expected)
    for server, theirs in zip(run.servers, expected, strict=True):
        torch.testing.assert_close(server.w, theirs["theta"], rtol=0, atol=1e-10)
        torch.testing.assert_close(server.a, torch.as_tensor(theirs["A"], dtype=torch.float64), rtol=0, atol=1e-10)
        for k, j in enumerate(server.last.tolist()):
            torch.testing.assert_close(server.grads[k], theirs["grads"][j], rtol=0, atol=1e-10)
            torch.testing.assert_close(
                server.g1[k], torch.as_tensor(theirs["g1"][j], dtype=torch.float64), rtol=0, atol=1e-10
            )
    assert any(len(set(a) & set(b)) < len(b) for a, b in pairwise(run.cohorts))


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [1, 5])
@pytest.mark.parametrize("layers", [1, 2])
def test_fedala(chunk: int, layers: int) -> None:
    run = Run(FedALA, chunk, layers=layers, share=0.8, rate=1.0, idle=0.0, draw="random")

    def ala_batches(t: int, i: int, epoch: int) -> list[torch.Tensor]:
        data = run.data(t, i)
        count = int(np.ceil(0.8 * SIZES[i] - 1e-9))
        rows = data._chunk.generator(0, "ala").permutation(run.rows(i))[:count]
        return run.local(i, [rows[k : k + 4] for k in range(0, count, 4)])

    top = run.task.top(layers)
    expected = fedala.run(**run.arguments(), top=top, ala_batches=ala_batches, eta=1.0)
    for server, theirs in zip(run.servers, expected, strict=True):
        torch.testing.assert_close(server.w, theirs["theta"], rtol=0, atol=1e-10)
    rows = run.simulation.clients.get(torch.arange(len(SIZES)))
    for i in range(len(SIZES)):
        torch.testing.assert_close(rows.weight[i], expected[-1]["W"][i], rtol=0, atol=1e-10)
    assert (rows.weight < 1).any(), "nothing was learned: the comparison would be empty"
    run.check_personal(expected)


@pytest.mark.parametrize("chunk", [1, 5])
def test_fedfomo(chunk: int) -> None:
    run = Run(FedFomo, chunk, models=3, epsilon=0.3, decay=0.05, validation=0.3)
    rest = {i: run.data(1, i).holdout(0.3) for i in range(len(SIZES))}

    def batches(t: int, i: int) -> list[torch.Tensor]:
        return run.local(i, run.data(t, i).holdout(0.3)[0]._chunk.shuffled(0, EPOCHS, "epochs"))

    def chosen(t: int, i: int, p_row: object, available: object) -> list[int]:
        return [n for n in run.downs[t, i].ids.tolist() if n >= 0]

    expected = fedfomo.run(
        **{**run.arguments(), "batches": batches},
        train_rows=lambda i: run.local(i, [rest[i][0]._chunk.rows["train"][0]])[0],
        val_rows=lambda i: run.local(i, [rest[i][1]._chunk.rows["train"][0]])[0],
        chosen=chosen,
    )
    run.check_personal(expected)
    for server, theirs in zip(run.servers, expected, strict=True):
        torch.testing.assert_close(server.p, torch.as_tensor(theirs["P"], dtype=torch.float64), rtol=0, atol=1e-9)
    assert any(len(theirs["w"][i]) > 1 for theirs in expected for i in theirs["w"]), "nobody downloaded"
