"""What benchmarks share: simulations on random images, a plain loop beside them, and runs that are timed in turn."""

import copy
import os
from collections.abc import Callable, Iterable
from datetime import date
from statistics import median
from time import perf_counter, process_time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pflsweep.commands.check import method_and_defaults
from pflsweep.data.federation import Federation
from pflsweep.engine.simulation import Schedule, Simulation
from pflsweep.methods.optimizer import Sgd
from pflsweep.methods.protocol import Verbs
from pflsweep.methods.task import Task
from pflsweep.models import cnn, layers
from pflsweep.ops.products import provider
from pflsweep.trial.speed import random_federation
from pflsweep.util import processor

Build = Callable[[tuple[int, ...], int], nn.Sequential]
SHAPE, CLASSES, LR = (3, 32, 32), 10, 0.01


def federation(
    clients: int, samples: int, test: int, device: str = "cpu", shape: tuple[int, ...] = SHAPE
) -> Federation:
    """Return clients with as many random images each."""
    return random_federation([samples] * clients, [test] * clients, device, shape)


def simulation(
    method: str,
    federation: Federation,
    *,
    epochs: int,
    batch: int,
    participation: float = 1.0,
    chunk: int = 1,
    eval_every: int = 10**9,
    workers: int = 1,
    build: Build = cnn.build,
    precision: str = "fp32",
) -> Simulation:
    """Return a simulation that runs round after round. method: an option, which has its own defaults."""
    cls, hyper = method_and_defaults(method, None)
    torch.manual_seed(0)
    model = build(federation.dataset.shape, CLASSES)
    task = Task(model, precision)
    schedule = Schedule(
        10**9, participation, "share", epochs, batch, LR, 1.0, eval_every, 256, chunk, workers=workers
    )  # fmt: skip
    verbs = Verbs.of(cls(task=task, opt=Sgd(0.0, 0.0), epochs=epochs, **hyper))
    return Simulation(verbs, task, federation, schedule, task.vector(model))


def usual(model: nn.Sequential) -> nn.Sequential:
    """Return a model as one would write it by hand: PyTorch's own layers, and ReLU before pooling."""
    for module in model.modules():
        if isinstance(module, layers.Conv2d):
            module.__class__ = nn.Conv2d
        if isinstance(module, layers.Linear):
            module.__class__ = nn.Linear
    for block in model:
        last = list(block.children())[-2:]
        if list(map(type, last)) == [nn.MaxPool2d, nn.ReLU]:
            block[-2], block[-1] = last[::-1]
    return model


class PlainLoop:
    """FedAvg as one would write it by hand: float tensors in memory, clients one after the other, eager torch.optim."""

    def __init__(self, federation: Federation, *, epochs: int, batch: int, build: Build = cnn.build) -> None:
        torch.manual_seed(0)
        self.model = usual(build(federation.dataset.shape, CLASSES)).to(federation.device)
        self.epochs, self.batch = epochs, batch
        self.train = [federation.gather(torch.from_numpy(rows)) for rows in federation.rows["train"]]
        self.test = [federation.gather(torch.from_numpy(rows)) for rows in federation.rows["test"]]

    def client(self, x: Tensor, y: Tensor) -> nn.Module:
        """Return the global model after a client's local training."""
        model = copy.deepcopy(self.model)
        optimiser = torch.optim.SGD(model.parameters(), lr=LR)
        for _ in range(self.epochs):
            for a, b in self.batches(x, y):
                optimiser.zero_grad()
                F.cross_entropy(model(a), b).backward()
                optimiser.step()
        return model

    def batches(self, x: Tensor, y: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
        """Return the batches of an epoch."""
        return ((x[rows], y[rows]) for rows in torch.randperm(len(y)).split(self.batch))

    def round(self, ids: list[int] | None = None) -> None:
        """Train a round of FedAvg. ids: the cohort; None: all clients."""
        train = self.train if ids is None else [self.train[i] for i in ids]
        models = [self.client(x, y) for x, y in train]
        total = sum(len(y) for _, y in train)
        with torch.no_grad():
            for mean, *own in zip(self.model.parameters(), *(m.parameters() for m in models), strict=True):
                mean.copy_(sum(w * (len(y) / total) for w, (_, y) in zip(own, train, strict=True)))

    @torch.no_grad()
    def evaluate(self, batch: int = 256) -> list[float]:
        """Return the accuracy of the global model on each client's test images."""
        return [
            sum(int((self.model(a).argmax(1) == b).sum()) for a, b in zip(x.split(batch), y.split(batch), strict=True))
            / len(y)
            for x, y in self.test
        ]


def machine(device: str = "cpu") -> str:
    """Return the date, the device and PyTorch's version, for the head of a table."""
    where = torch.cuda.get_device_name() if device == "cuda" else _processor()
    return f"{date.today()}, {where}, {os.cpu_count()} cores, torch {torch.__version__}"


def _processor() -> str:
    """Return the processor's name, its vectors' kind, and what computes large products."""
    return f"{processor.name()} ({torch.backends.cpu.get_cpu_capability()}, large products by {provider()})"


def synchronize() -> None:
    """Wait for the GPU, if there is one: kernels run asynchronously."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def compare(runs: dict[str, Callable[[], object]], repeat: int) -> dict[str, tuple[list[float], list[float]]]:
    """Return the wall and CPU seconds of each run, by its name.

    Runs take turns, so that other work on the machine slows all of them alike. The first turn is not counted.
    """
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in runs}
    for turn in range(repeat + 1):
        for name, run in runs.items():
            synchronize()
            wall, cpu = perf_counter(), process_time()
            run()
            synchronize()
            if turn:
                times[name][0].append(perf_counter() - wall)
                times[name][1].append(process_time() - cpu)
    return times


def ratio(of: list[float], to: list[float]) -> float:
    """Return how many times as fast `of` is as `to`: the median ratio of their seconds, pair by pair."""
    return median(b / a for a, b in zip(of, to, strict=True))
