"""A tiny federation in float64, and a way to run a method in it: `simulate(FedProx, {"mu": 0.1}, rounds=3)`.

`FEDERATION` has clients of different sizes, each without one of the classes. For numbers worked out on paper, `by_hand`
makes a federation of given samples, and `Quadratic` is a task whose gradient is a matrix product.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pflsweep.data.batching import DEFAULT, Batching
from pflsweep.data.dataset import Dataset, Rows
from pflsweep.data.federation import Federation
from pflsweep.data.loader import ClientData
from pflsweep.engine.clients import Clients
from pflsweep.engine.evaluate import OWN, Metrics
from pflsweep.engine.simulation import RoundResult, Schedule, Simulation
from pflsweep.methods.optimizer import Sgd
from pflsweep.methods.protocol import Given, Method, Plugin, Verbs
from pflsweep.methods.task import Batch, Loss, Task, cross_entropy, mean_over
from pflsweep.models import mlp
from pflsweep.ops.vmap import leaves, own_copy, select

SIZES = (7, 12, 1, 20, 5)  # training samples of each client: with batch 4, 2 to 5 steps an epoch, or one
CLASSES, FEATURES = 3, 4
EVERYBODY = len(SIZES)


def by_hand(
    clients: list[list[tuple[list[float], int]]],
    classes: int = 1,
    keys: list[int] | None = None,
    seed: int = 0,
) -> Federation:
    """Return a federation of given clients, each a list of samples (x, y), for training and for test."""
    samples = [sample for client in clients for sample in client]
    ends = np.cumsum([len(client) for client in clients])
    rows = [np.arange(end - len(client), end) for client, end in zip(clients, ends, strict=True)]
    x, y = torch.tensor([x for x, _ in samples], dtype=torch.float64), torch.tensor([y for _, y in samples])
    dataset = Dataset("by hand", x, y, len(y), classes, scale=1, mean=torch.zeros(1), std=torch.ones(1), checksum="")
    return Federation(
        dataset, Rows(rows, rows), validation=0.0, seed=seed, device="cpu", dtype=torch.float64, stable_ids=keys
    )


def federation(sizes: tuple[int, ...] = SIZES, keys: list[int] | None = None, classes: int = CLASSES) -> Federation:
    """Return clients with Gaussian samples. Their classes depend on their keys: with three classes, each lacks one."""
    clients = []
    for n, key in zip(sizes, keys or range(len(sizes)), strict=True):
        rng = np.random.default_rng(key)
        labels = [(key + k % max(1, classes - 1)) % classes for k in range(n)]
        clients.append([((rng.normal(size=FEATURES) + y).tolist(), y) for y in labels])
    return by_hand(clients, classes, keys)


FEDERATION = federation()


def network(hidden: tuple[int, ...] = (5,), classes: int = CLASSES, seed: int = 0) -> tuple[Task, Tensor]:
    """Return a small perceptron as a task, and its initial weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = mlp.build((FEATURES,), classes, hidden).double()
    task = Task(model)
    return task, task.vector(model)


NETWORK = network()


class Quadratic(Task):
    """f(w) = 1/2 (w - m)^T H (w - m), m the mean of the batch's x [B, P]: its gradient is H (w - m).

    The extractor is w[:bodies], the head the rest.
    """

    def __init__(self, curvature: list[list[float]], bodies: int = 1) -> None:
        self.h = torch.tensor(curvature, dtype=torch.float64)
        body, head = nn.Linear(1, bodies, bias=False), nn.Linear(1, len(curvature) - bodies, bias=False)
        super().__init__(nn.Sequential(body, head))

    def value_and_grad(
        self,
        w: Tensor,
        batch: Batch,
        loss: Loss = cross_entropy,
        part: slice | None = None,
        top: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        apart = w - mean_over(batch.x, batch)
        g = self.h @ apart
        return apart @ g / 2, g.clone() if part is None else g[part].clone()

    def views(self, w: Tensor) -> dict[str, Tensor]:
        return {"w": w}

    def grads(self, w: Tensor, batch: Batch) -> dict[str, Tensor]:
        return {"w": self.value_and_grad(w, batch)[1]}

    def loss(self, w: Tensor, batch: Batch) -> Tensor:
        return self.value_and_grad(w, batch)[0]

    def logits(self, w: Tensor, x: Tensor) -> Tensor:
        # Evaluation needs logits; samples of a quadratic are of class 0
        return x.new_zeros(len(x), 1)


# Examples worked out by hand: with batch 1 client A takes one step a round, B two
ONE_AND_TWO: list = [[([4, 0], 0)], [([-4, 0], 0)] * 2]
STILL = Quadratic([[1, 0], [0, 0]]), torch.tensor([0.0, 7.0])  # the second number never moves


class Run(NamedTuple):
    """A finished simulation."""

    method: Any
    simulation: Simulation
    results: list[RoundResult]

    @property
    def server(self) -> Any:
        return self.simulation.server

    @property
    def w(self) -> Tensor:
        """Return the server's model, or the part of it that is shared."""
        return self.simulation.server.w

    @property
    def clients(self) -> Any:
        """Return all clients' state, [N, ...] each."""
        store: Clients = self.simulation.clients
        return store.get(torch.arange(len(store.seen)))

    @property
    def personal(self) -> Tensor:
        """Return the personal models, [N, P]."""
        return torch.stack(list(self.simulation.personal_models()))

    @property
    def traffic(self) -> tuple[float, float]:
        """Return the floats (down, up) of the last round for one client."""
        traffic = self.results[-1].traffic
        return traffic.floats_down, traffic.floats_up


def make(
    method: type[Method], hyper: dict[str, Any] | None = None, *, task: Task = NETWORK[0], epochs: int = 2,
    momentum: float = 0.0, weight_decay: float = 0.0,
) -> Any:  # fmt: skip
    """Return a method with its hyperparameters and the settings of a short run."""
    return method(task=task, opt=Sgd(momentum, weight_decay), epochs=epochs, **(hyper or {}))


def simulate(
    method: type[Method], hyper: dict[str, Any] | None = None, *, rounds: int = 2, chunk: int = 1,
    participation: float = 1.0, weights: str = "share", epochs: int = 2, batch: int = 4, lr: float = 0.1,
    lr_decay: float = 1.0, momentum: float = 0.0, weight_decay: float = 0.0, optimiser_state: str = "fresh",
    federation: Federation = FEDERATION, network: tuple[Task, Tensor] = NETWORK, plugins: tuple[Plugin, ...] = (),
    batching: Batching = DEFAULT, sampling: str = "uniform", metrics: Metrics = OWN,
    first_round: str = "cohort", lr_of: str = "round",
) -> Run:  # fmt: skip
    """Train a method, with every round evaluated. chunk: clients that run at once (EVERYBODY: all)."""
    task, w0 = network
    made = make(method, hyper, task=task, epochs=epochs, momentum=momentum, weight_decay=weight_decay)
    schedule = Schedule(
        rounds, participation, weights, epochs, batch, lr, lr_decay, eval_every=1, eval_batch=16, chunk=chunk,
        optimiser_state=optimiser_state, batching=batching, sampling=sampling,
        first_round=first_round, lr_of=lr_of,
    )  # fmt: skip
    simulation = Simulation(Verbs.of(made, *plugins), task, federation, schedule, w0, metrics)
    return Run(made, simulation, list(simulation.run()))


class Opened(NamedTuple):
    """A chunk of clients right before training, for tests of `fit`."""

    given: Given
    data: ClientData
    work: Any


def opened(run: Run, ids: list[int]) -> Opened:
    """Return clients at the start of one more round of a finished run, as one chunk."""
    simulation, chosen = run.simulation, torch.tensor(ids)
    turn = simulation._turn(chosen)
    down, labels = run.method.send(simulation.server, turn), simulation.federation.class_counts[chosen]
    given = Given(down, select(run.clients, chosen), turn, labels)
    data = simulation._data(chosen, simulation.round, "train")
    return Opened(given, data, own_copy(run.method.start(given, data)))


def close(got: Any, expected: Any, tolerance: float = 1e-10) -> None:
    """Assert equality to 1e-10 of tensors, trees of them, or lists of numbers."""
    if isinstance(expected, list):
        expected = torch.tensor(expected, dtype=torch.float64)
    for a, b in zip(leaves(got), leaves(expected), strict=True):
        torch.testing.assert_close(a, b, rtol=0.0, atol=tolerance)


def same_in_chunks(method: type[Method], hyper: dict[str, Any] | None = None, **settings: Any) -> None:
    """Assert that one round gives the same state and personal models client by client, in pairs and all at once."""
    one, two, all_ = (simulate(method, hyper, rounds=1, chunk=k, **settings) for k in (1, 2, EVERYBODY))
    for other in (two, all_):
        close(other.server, one.server)
        close(other.clients, one.clients)
        close(other.personal, one.personal)


def newest_until_sampled(run: Run) -> None:
    """Assert that a client is evaluated with its own model, and before its first turn with the newest global one."""
    for i in range(EVERYBODY):
        assert torch.equal(run.personal[i], run.clients.w[i] if i in run.results[0].ids else run.w)
