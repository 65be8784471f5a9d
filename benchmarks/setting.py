"""What all benchmarks share: a federation of CIFAR-10's shapes, the engine's rounds, and the plain loop beside them."""

import copy
import os
from collections.abc import Callable, Iterable
from datetime import date
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pflsweep.algorithms.fedala import FedALA
from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.algorithms.fedfomo import FedFomo
from pflsweep.algorithms.fedpg import FedPG
from pflsweep.algorithms.pfedme import PFedMe
from pflsweep.algorithms.pgfed import PGFed
from pflsweep.algorithms.scaffold import Scaffold
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
METHODS = {
    "fedavg": (FedAvg, {}),
    "pgfed": (PGFed, {"mu": 0.05, "alpha_lr": 0.01, "beta": 0.0, "estimate": "full"}),
    "pgfedmo": (PGFed, {"mu": 0.05, "alpha_lr": 0.01, "beta": 0.5, "estimate": "full"}),
    "fedfomo": (FedFomo, {"models": 5, "epsilon": 0.3, "decay": 0.05, "validation": 0.2}),
    "fedala": (FedALA, {"layers": 1, "share": 0.8, "rate": 1.0, "idle": 0.0, "draw": "random"}),
    "pfedme": (PFedMe, {"lam": 15.0, "inner_steps": 5, "inner_lr": 0.01, "beta": 1.0, "eval": "theta"}),
    "scaffold": (Scaffold, {"global_lr": 1.0}),
    "fedpg": (
        FedPG,
        {"form": "rate", "gamma": None, "p_base": "after", "col_scale": "unify", "reference": "median", "tau": None}
        | {"s": None, "beta": None},
    ),
}


def federation(clients: int, samples: int, test: int, device: str = "cpu") -> Federation:
    """Clients with as many samples each, see `federation_of`."""
    return federation_of([samples] * clients, [test] * clients, device)


def federation_of(
    samples: list[int], test: list[int], device: str = "cpu", shape: tuple[int, ...] = SHAPE
) -> Federation:
    """Random images of CIFAR-10's shape. samples, test: [N] how many each client has."""
    return random_federation(samples, test, device, shape)


def simulation(method: str, federation: Federation, **schedule: Any) -> Simulation:
    """One of METHODS, ready to run round after round."""
    cls, hyper = METHODS[method]
    epochs = schedule["epochs"]
    return engine(
        lambda task: Verbs.of(cls(task=task, opt=Sgd(0.0, 0.0), epochs=epochs, **hyper)), federation, **schedule
    )


def engine(
    verbs: Callable[[Task], Verbs],
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
    """A model with the verbs of some method, ready to run round after round."""
    torch.manual_seed(0)
    model = build(federation.dataset.shape, CLASSES)
    task = Task(model, precision)
    schedule = Schedule(
        10**9, participation, "share", epochs, batch, LR, 1.0, eval_every, 256, chunk, workers=workers
    )  # fmt: skip
    return Simulation(verbs(task), task, federation, schedule, task.vector(model))


def usual(model: nn.Sequential) -> nn.Sequential:
    """A model as one would write it by hand: PyTorch's own layers, and ReLU before pooling."""
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
        model = copy.deepcopy(self.model)
        optimiser = torch.optim.SGD(model.parameters(), lr=LR)
        for _ in range(self.epochs):
            for a, b in self.batches(x, y):
                optimiser.zero_grad()
                F.cross_entropy(model(a), b).backward()
                optimiser.step()
        return model

    def batches(self, x: Tensor, y: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
        return ((x[rows], y[rows]) for rows in torch.randperm(len(y)).split(self.batch))

    def round(self, ids: list[int] | None = None) -> None:
        """ids: the cohort; None: everybody."""
        train = self.train if ids is None else [self.train[i] for i in ids]
        models = [self.client(x, y) for x, y in train]
        total = sum(len(y) for _, y in train)
        with torch.no_grad():
            for mean, *own in zip(self.model.parameters(), *(m.parameters() for m in models), strict=True):
                mean.copy_(sum(w * (len(y) / total) for w, (_, y) in zip(own, train, strict=True)))

    @torch.no_grad()
    def evaluate(self, batch: int = 256) -> list[float]:
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


def compare(runs: dict[str, Callable[[], None]], repeat: int) -> dict[str, tuple[list[float], list[float]]]:
    """(wall, cpu) seconds of each, taken in turn so that a machine's moods meet all of them alike."""
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in runs}
    for run in runs.values():  # warm up
        run()
    for _ in range(repeat):
        for name, run in runs.items():
            wall, cpu = perf_counter(), process_time()
            run()
            times[name][0].append(perf_counter() - wall)
            times[name][1].append(process_time() - cpu)
    return times


def ratio(of: list[float], to: list[float]) -> float:
    """Median of the pairwise ratios: how many times as fast `of` is as `to`."""
    return median(b / a for a, b in zip(of, to, strict=True))
