"""Speed beside a plain loop: `python -m benchmarks.training [--repeat R] [--device cpu|cuda]` prints a table.

Each row is a median of ratios of runs taken in turn in this process. FedAvg's rows at one CPU thread are CPU time, all
others wall time (on a CPU with two threads). Above 1 the first is faster; in rows in seconds it is slower.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple
from unittest.mock import patch

import torch

from benchmarks.common import (
    CLASSES,
    SHAPE,
    Build,
    PlainLoop,
    compare,
    federation,
    machine,
    ratio,
    simulation,
)
from pflsweep.config.options import Metrics
from pflsweep.engine.evaluate import OWN, score, targets
from pflsweep.engine.simulation import Simulation
from pflsweep.methods import stock
from pflsweep.methods.task import Task
from pflsweep.models import cnn
from pflsweep.ops.vmap import own_copy
from pflsweep.trial.speed import random_federation

BATCH = 256  # of evaluation
EPOCHS = 5  # of the PGFed rows: its extra pass over the data weighs 1 / E


class Row(NamedTuple):
    """A row of the table."""

    what: str
    setting: str
    measured: float
    target: str
    met: bool


def speed(batch: int, samples: int, threads: int, repeat: int, device: str) -> Row:
    """Return the row of FedAvg's training beside the plain loop."""
    fed = federation(3, samples, 1, device)
    engine = simulation("fedavg", fed, epochs=1, batch=batch)
    plain = PlainLoop(fed, epochs=1, batch=batch)
    times = compare({"engine": next_round(engine), "plain": plain.round}, repeat)
    kind = 1 if threads == 1 and device == "cpu" else 0  # CPU time, or wall time
    value, least = ratio(times["engine"][kind], times["plain"][kind]), 0.93 if batch == 10 else 0.95
    name = f"batch {batch}, {threads} thread{'s' * (threads > 1)}"
    return Row("FedAvg, images/s to the plain loop's", name, value, f">= {least}", value >= least)


def unequal(setting: str, samples: list[int], repeat: int, device: str) -> Row:
    """Return the row of a cohort at once: clients that have ended are left out, or padded to the end.

    The largest client takes 70 to 80 steps.
    """
    fed = random_federation(samples, [1] * len(samples), device, SHAPE)
    epochs = 1 + 600 // max(samples)
    engine = simulation("fedavg", fed, epochs=epochs, batch=10, chunk=len(samples))

    def padded() -> None:
        with patch.object(stock, "COPY", 10**9), patch.object(stock, "RECORD", 10**9):
            next(engine.run())

    times = compare({"padded": padded, "left out": next_round(engine)}, repeat)
    value = ratio(times["left out"][0], times["padded"][0])
    return Row("A cohort at once, images/s to padding clients that have ended", setting, value, ">= 1.2", value >= 1.2)


def evaluated(repeat: int, device: str) -> Row:
    """Return the row of a round after which all clients are evaluated."""
    fed = federation(6, 200, 70, device)
    engine = simulation("fedavg", fed, epochs=1, batch=10, eval_every=1)
    plain = PlainLoop(fed, epochs=1, batch=10)

    def both() -> None:
        plain.round()
        plain.evaluate()

    times = compare({"engine": next_round(engine), "plain": both}, repeat)
    value = ratio(times["engine"][0], times["plain"][0])
    return Row("round and evaluation of every client, to the plain loop's", "batch 10", value, ">= 0.9", value >= 0.9)


def everywhere(repeat: int, device: str) -> Row:
    """Return the row of G-acc of the CNN."""
    clients, images = (100, 10_000) if device == "cuda" else (20, 2_000)  # what is compared is linear in both
    times = global_accuracy(cnn.build, SHAPE, clients, images, replace(OWN, all=True), repeat, device)
    value, most = 1 / ratio(times["ours"][0], times["plain"][0]), 1.2 if device == "cuda" else 1.05
    setting = f"{clients} models, {images:,} images"
    return Row("G-acc, seconds to plain forward passes'", setting, value, f"<= {most}", value <= most)


def global_accuracy(
    build: Build, shape: tuple[int, ...], clients: int, images: int, metrics: Metrics, repeat: int, device: str = "cpu"
) -> dict[str, tuple[list[float], list[float]]]:
    """Return the times of scoring each client's own model on everybody's test data ("ours"), and of plain forward
    passes over data in memory ("plain").
    """
    fed = federation(clients, 1, images // clients, device, shape)
    torch.manual_seed(0)
    models = [build(shape, CLASSES).to(device) for _ in range(clients)]
    task = Task(build(shape, CLASSES).to(device))
    vectors = [task.vector(model) for model in models]
    rows = targets(fed, "test", metrics)
    x, y = fed.gather(torch.from_numpy(rows["all"][0]).to(fed.device))
    hits: dict[str, list[int]] = {}

    def ours() -> None:
        found = score(task, task.logits, enumerate(vectors), fed, rows, BATCH)
        hits["ours"] = found["all"].correct.astype(int).tolist()

    @torch.no_grad()
    def plain() -> None:
        pairs = list(zip(x.split(BATCH), y.split(BATCH), strict=True))
        hits["plain"] = [int(sum((model(a).argmax(1) == b).sum() for a, b in pairs)) for model in models]

    times = compare({"ours": ours, "plain": plain}, repeat)
    assert hits["ours"] == hits["plain"]
    return times


def pgfed(repeat: int, device: str) -> Iterator[Row]:
    """Yield the rows of PGFed beside FedAvg: its round, with one more pass over the data, and its steps."""
    fed = federation(3, 200, 1, device)
    both = {name: simulation(name, fed, epochs=EPOCHS, batch=10) for name in ("fedavg", "pgfed")}
    next(both["pgfed"].run())  # from round 2 on it has everything to do
    times = compare({name: next_round(engine) for name, engine in both.items()}, repeat)
    value, least = ratio(times["pgfed"][0], times["fedavg"][0]), 0.95 * EPOCHS / (EPOCHS + 1)
    yield Row(
        "PGFed's round, images/s to FedAvg's",
        f"batch 10, E={EPOCHS}",
        value,
        f">= {least:.2f}",
        value >= least,
    )
    fits = compare({name: only_fit(engine) for name, engine in both.items()}, repeat)
    value = ratio(fits["pgfed"][0], fits["fedavg"][0])
    yield Row("PGFed's local steps, images/s to FedAvg's", f"batch 10, E={EPOCHS}", value, ">= 0.9", value >= 0.9)


def fedala(repeat: int, device: str) -> Iterator[Row]:
    """Yield the rows of FedALA beside FedAvg: the converging first stage, and a usual round."""
    fed = federation(3, 200, 200, device)
    both = {name: simulation(name, fed, epochs=1, batch=10) for name in ("fedavg", "fedala")}
    forward = simulation("fedavg", fed, epochs=1, batch=10)
    next(both["fedala"].run())
    state = both["fedala"].state()
    state = {
        **state,
        "clients": {**state["clients"], "rows": [[r.clone() for r in rows] for rows in state["clients"]["rows"]]},
    }

    def first_stage() -> None:
        both["fedala"].load(state)
        next(both["fedala"].run())

    runs = {"fedavg": next_round(both["fedavg"]), "first": first_stage}
    stage = compare(runs, repeat)
    cost = 1 / ratio(stage["first"][0], stage["fedavg"][0]) - 1  # rounds' worth, beyond the round itself
    yield Row("FedALA's first, converging stage, in FedAvg rounds", "batch 10, s=.8", cost, "<= 2", cost <= 2)
    next(both["fedala"].run())
    runs = {name: next_round(engine) for name, engine in both.items()}
    times = compare({**runs, "forward": lambda: forward.evaluate()}, repeat)
    trained = ratio(times["forward"][0], times["fedavg"][0])  # a pass of training to a forward pass of as many images
    most = 1.05 * (1 + 0.8 / trained)
    cost = 1 / ratio(times["fedala"][0], times["fedavg"][0])
    yield Row("FedALA's round to FedAvg's, seconds", "batch 10, s=.8", cost, f"<= {most:.2f}", cost <= most)


def next_round(simulation: Simulation) -> Callable[[], object]:
    """Return a function that runs a round."""
    return lambda: next(simulation.run())


def only_fit(simulation: Simulation) -> Callable[[], object]:
    """Return a function that takes the local steps of one client in the state that the simulation is in."""
    given, data = simulation.next_turn(torch.tensor([0]))
    verbs = simulation.verbs
    return lambda: verbs.fit(given, data, own_copy(verbs.start(given, data)))


def rows(repeat: int, device: str) -> Iterator[Row]:
    """Yield the rows of the table."""
    for threads in (1, 2) if device == "cpu" else (1,):
        torch.set_num_threads(threads)
        yield speed(10, 300, threads, repeat, device)
        yield speed(128, 768, threads, repeat, device)
    # Shares of a draw of ten classes' Dirichlet distribution
    yield unequal("6 clients, Dirichlet 0.3, batch 10", [73, 182, 82, 120, 25, 110], repeat, device)
    yield unequal(
        "20 clients, Dirichlet 0.1, batch 10",
        [114, 28, 83, 10, 39, 52, 10, 10, 39, 10, 10, 22, 10, 37, 61, 70, 84, 26, 31, 75],
        repeat,
        device,
    )
    yield evaluated(repeat, device)
    yield everywhere(repeat, device)
    yield from pgfed(repeat, device)
    yield from fedala(repeat, device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    print(f"{machine(options.device)}\n")
    print("| what | setting | measured | target | |\n|-|-|-|-|-|", flush=True)
    for row in rows(options.repeat, options.device):
        met = "met" if row.met else "missed"
        print(f"| {row.what} | {row.setting} | {row.measured:.2f} | {row.target} | {met} |", flush=True)


if __name__ == "__main__":
    main()
