"""Small models on one thread: `python -m benchmarks.small [--repeat R]` prints a table.

A step of a small model is mostly overhead. The engine stands beside a loop as a student writes it (nn.Sequential,
autograd, optim.SGD), on random images of the shapes of Fashion-MNIST and CIFAR-10: images a second to the loop's. Then
the methods' local steps beside FedAvg's, and the evaluation of many personal models beside plain forward passes. All
runs are taken in turn within this process; a ratio is the median of those of CPU time.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch

from benchmarks.common import PlainLoop, compare, federation, machine, ratio, simulation
from benchmarks.training import global_accuracy, only_fit
from pflsweep.engine.evaluate import OWN
from pflsweep.models import cnn, mlp

FASHION, CIFAR = (1, 28, 28), (3, 32, 32)
MLP = partial(mlp.build, hidden=(200, 200))
BATCHES = {  # of each model and shape: batch sizes, each with the images a client that take about half a second
    "MLP 784-200-200-10": (MLP, FASHION, {10: 3_000, 50: 10_000}),
    "CNN, MNIST's shape": (cnn.build, FASHION, {10: 600, 128: 1_280}),
    "CNN, CIFAR-10's shape": (cnn.build, CIFAR, {10: 400, 128: 768}),
}
BESIDE = ("pgfed", "fedala", "pfedme", "scaffold", "fedpg")


def training(repeat: int) -> Iterator[tuple[str, float, float, float]]:
    """Yield what is trained, images a second of the engine, their ratio to the loop's, and its lower bound."""
    for name, (build, shape, batches) in BATCHES.items():
        for batch, samples in batches.items():
            fed = federation(1, samples, 1, shape=shape)
            engine = simulation("fedavg", fed, epochs=1, batch=batch, build=build)
            plain = PlainLoop(fed, epochs=1, batch=batch, build=build)
            next(engine.run())
            times = compare({"engine": only_fit(engine), "plain": partial(plain.client, *plain.train[0])}, repeat)
            ours, theirs = (times[who][1] for who in ("engine", "plain"))
            yield f"{name}, batch {batch}", samples / sorted(ours)[len(ours) // 2], ratio(ours, theirs), 1.0


def methods(repeat: int) -> Iterator[tuple[str, float]]:
    """Yield each method with the images a second of its local steps, divided by FedAvg's."""
    fed = federation(3, 1000, 50, shape=FASHION)
    engines = {name: simulation(name, fed, epochs=1, batch=50, build=MLP) for name in ("fedavg", *BESIDE)}
    for engine in engines.values():
        next(engine.run())  # from round 2 on all have everything to do
    times = compare({name: only_fit(engine) for name, engine in engines.items()}, repeat)
    for name in BESIDE:
        yield name, ratio(times[name][1], times["fedavg"][1])


def evaluation(repeat: int) -> float:
    """Return the speed of FedPG's S- and G-acc. beside plain forward passes: each client's MLP on all images."""
    times = global_accuracy(MLP, FASHION, 100, 10_000, replace(OWN, all=True, subset=0.5), repeat)
    return ratio(times["ours"][1], times["plain"][1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5)
    repeat = parser.parse_args().repeat
    torch.set_num_threads(1)
    print(f"{machine()}, one thread\n\n| training | images/s | to the plain loop's | at least |\n|-|-|-|-|", flush=True)
    for what, speed, value, least in training(repeat):
        print(f"| {what} | {speed:,.0f} | {value:.2f} | {least:.1f} |", flush=True)
    print("\n| local steps, MLP, batch 50 | images/s to FedAvg's |\n|-|-|", flush=True)
    for name, value in methods(repeat):
        print(f"| {name} | {value:.2f} |", flush=True)
    print(f"\nG-acc and S-acc of 100 MLPs on 10,000 images, to plain forward passes: {evaluation(repeat):.2f}")


if __name__ == "__main__":
    main()
