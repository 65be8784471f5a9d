"""Measure how fast a device trains: rounds of FedAvg on random images, in each way to run them."""

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.data.dataset import Dataset, Rows
from pflsweep.data.federation import Federation
from pflsweep.engine.simulation import Schedule, Simulation
from pflsweep.methods.optimizer import Sgd
from pflsweep.methods.protocol import Verbs
from pflsweep.methods.task import Task
from pflsweep.models import cnn, torchvision
from pflsweep.trial.process import arithmetic
from pflsweep.util.errors import one_line

CLASSES, NEVER = 10, 10**9
ROUNDS = 3  # timed rounds of a measurement, if its seconds allow


class Workload(NamedTuple):
    """A federation of random images and a model. samples: training samples of each client."""

    name: str
    clients: int
    participation: float
    samples: int
    batch: int
    shape: tuple[int, ...]
    build: Callable[[tuple[int, ...], int], nn.Sequential]


def _resnet(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    return torchvision.build(shape, classes, name="resnet18", norm="group", groups=32)


WORKLOADS = (
    Workload("FedALA's: CNN on 32x32x3, 20 clients, batch 10", 20, 1.0, 200, 10, (3, 32, 32), cnn.build),
    Workload(
        "PGFed's table 7: CNN on 32x32x3, 25 of 100 clients, batch 128", 100, 0.25, 256, 128, (3, 32, 32), cnn.build
    ),
    Workload("ResNet-18 on 64x64x3, 20 clients, batch 10", 20, 1.0, 20, 10, (3, 64, 64), _resnet),
)


class Measurement(NamedTuple):
    """The speed of one workload in one way."""

    workload: str
    way: str
    images: float | None  # training images per second; None if it was not measured
    memory: float | None  # most bytes that a GPU has held; None on a CPU
    why: str = ""  # reason why it was not measured


def random_federation(samples: list[int], test: list[int], device: str, shape: tuple[int, ...]) -> Federation:
    """Return clients with random images: nothing has to be downloaded, and speed does not depend on the content.

    samples, test: training and test samples of each client [N].
    """
    n = sum(samples) + sum(test)
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (n, *shape), dtype=torch.uint8, generator=generator)
    y = torch.randint(0, CLASSES, (n,), generator=generator)
    half = torch.full((shape[0], 1, 1), 0.5)
    data = Dataset("random", x, y, sum(samples), CLASSES, 1 / 255, half, half, "random")
    cut = np.split(np.arange(n), np.cumsum([*samples, *test])[:-1])
    rows = Rows(cut[: len(samples)], cut[len(samples) :])
    return Federation(data, rows, validation=0.0, seed=0, device=device)


def speeds(device: str, seconds: float, workloads: tuple[Workload, ...] = WORKLOADS) -> Iterator[Measurement]:
    """Yield the speed of each workload on one CPU core, and on a device in each way.

    seconds: for all together; a measurement that has begun is finished.
    """
    end = time.monotonic() + seconds
    ways: dict[str, dict[str, Any]] = {
        "CPU, one core": {"device": "cpu", "precision": "fp32", "chunk": 1},
        f"{device}, client by client, fp32": {"device": device, "precision": "fp32", "chunk": 1},
        **{
            f"{device}, cohort at once, {precision}": {"device": device, "precision": precision, "chunk": NEVER}
            for precision in ("fp32", "tf32", "bf16")
        },
    }
    each = seconds / max(1, len(workloads) * len(ways))
    for workload in workloads:
        for way, how in ways.items():
            if time.monotonic() >= end:
                yield Measurement(workload.name, way, None, None, "not measured, since the time was over")
                continue
            try:
                yield Measurement(workload.name, way, *measured(workload, seconds=each, **how))
            except (RuntimeError, NotImplementedError) as error:
                # Too little memory, or an operation that the device lacks in this precision
                yield Measurement(workload.name, way, None, None, one_line(error)[:200])


def measured(
    workload: Workload, *, device: str, precision: str, chunk: int, seconds: float
) -> tuple[float, float | None]:
    """Return training images per second, the median over rounds, and the most bytes that a GPU has held."""
    fed = random_federation([workload.samples] * workload.clients, [1] * workload.clients, device, workload.shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = workload.build(workload.shape, CLASSES)
    task = Task(model, precision)
    schedule = Schedule(
        NEVER, workload.participation, "share", 1, workload.batch, 0.01, 1.0, NEVER, 256, min(chunk, workload.clients)
    )
    verbs = Verbs.of(FedAvg(task=task, opt=Sgd(0.0, 0.0), epochs=1))
    rounds = Simulation(verbs, task, fed, schedule, task.vector(model)).run()
    gpu, threads = device.startswith("cuda"), torch.get_num_threads()
    if gpu:
        torch.cuda.reset_peak_memory_stats()
    torch.set_num_threads(1)
    try:
        with arithmetic(precision):
            begin = time.monotonic()
            took: list[float] = []
            while len(took) <= ROUNDS and (not took or time.monotonic() - begin < seconds):
                before = time.perf_counter()
                images = next(rounds).images
                if gpu:
                    torch.cuda.synchronize()
                took.append((time.perf_counter() - before) / images)
    finally:
        torch.set_num_threads(threads)
    # The first round is cold
    return 1 / median(took[1:] or took), float(torch.cuda.max_memory_allocated()) if gpu else None
