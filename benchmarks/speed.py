"""The reference settings side by side in one process:
`python -m benchmarks.speed [a b c stack memory growth] [--repeat R] [--device cpu|cuda]`.

A: FedALA's setting, 20 clients, Dirichlet 0.1, all take part, batch 10, 1 epoch. B: PGFed's, 25 of 100 clients,
Dirichlet 0.3, 5 epochs, with the batch of 128 of its table 7 (it trains with batches of 10). C: ResNet-18 on 64x64x3,
20 clients, batch 10, a few steps. Images are random and few; the method is FedAvg.
stack: trials of A that train as one cohort beside the same one by one. On a GPU a cohort trains in one chunk, in three
precisions, and nothing goes to worker processes.
The engine stands beside (1) the plain eager sequential loop with one and with two threads, and (2) the same with a
DataLoader per client and an evaluation of all clients in each round, as public libraries have it. All take the same
cohorts in turn; ratios are medians over the rounds, and above 1 if the engine is faster.
"""

import argparse
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.common import LR, SHAPE, Build, PlainLoop, federation, machine, simulation, synchronize
from pflsweep.data.federation import Federation
from pflsweep.engine.simulation import RoundResult, Simulation
from pflsweep.engine.stack import StackMember, run_stack
from pflsweep.engine.workers import usable_cores
from pflsweep.models import cnn, torchvision
from pflsweep.report import style
from pflsweep.trial import process
from pflsweep.trial.speed import random_federation

CORES = usable_cores()


@dataclass(frozen=True)
class Setting:
    """A federation's sizes, and how it is trained.

    samples: of a client on average, for training; a third as many for its test.
    """

    clients: int
    participation: float
    alpha: float
    samples: int
    batch: int
    epochs: int
    shape: tuple[int, ...] = SHAPE
    build: Build = cnn.build

    def sizes(self) -> list[int]:
        """Samples of each client, where each of ten classes is shared out by Dir(alpha); at least ten."""
        shares = np.random.default_rng(0).dirichlet([self.alpha] * self.clients, size=10).mean(0)
        return [max(10, round(self.samples * self.clients * share)) for share in shares]


SETTINGS = {
    "a": Setting(clients=20, participation=1.0, alpha=0.1, samples=500, batch=10, epochs=1),
    "b": Setting(clients=100, participation=0.25, alpha=0.3, samples=200, batch=128, epochs=5),
    "c": Setting(
        20, 1.0, 0.1, 20, 10, 1, (3, 64, 64), partial(torchvision.build, name="resnet18", norm="group", groups=32)
    ),
}
TARGETS = {"cpu": {"a": 1.15, "b": 1.0}, "cuda": {"a": 20.0, "b": 5.0}}
EVALUATED = 1.5


class Loaders(PlainLoop):
    """The plain loop with a DataLoader per client, which also serves evaluation, in batches of the same size."""

    def batches(self, x: Tensor, y: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
        return DataLoader(TensorDataset(x, y), self.batch, shuffle=True)

    @torch.no_grad()
    def evaluate(self, batch: int = 0) -> list[float]:
        loaders = (DataLoader(TensorDataset(x, y), self.batch) for x, y in self.test)
        return [sum(int((self.model(a).argmax(1) == b).sum()) for a, b in loader) for loader in loaders]


def engines(setting: Setting, fed: Federation) -> dict[str, Simulation]:
    """Return the engine in its modes. The one that is compared with others comes second."""
    if fed.device.type == "cuda":
        cohort_at_once = {
            f"engine, {kind}": simulation_of(setting, fed, precision=kind, chunk=setting.clients)
            for kind in ("fp32", "tf32", "bf16")
        }
        return {"engine, chunks of 1": simulation_of(setting, fed), **cohort_at_once}
    ours = {f"engine, {n} workers": simulation_of(setting, fed, workers=n) for n in sorted({1, CORES})}
    return {**ours, "engine, bf16": simulation_of(setting, fed, workers=CORES, precision="bf16")}


def compare(setting: Setting, repeat: int, device: str) -> None:
    """Print the table of a setting, whose rounds take turns."""
    sizes = setting.sizes()
    fed = random_federation(sizes, [max(1, n // 3) for n in sizes], device, setting.shape)
    how = {"epochs": setting.epochs, "batch": setting.batch, "build": setting.build}
    ours = engines(setting, fed)
    plain, loaders = PlainLoop(fed, **how), Loaders(fed, **how)
    seen: dict[str, list[float]] = {}  # seconds for each image of a round
    # CPU seconds of all processes for each image, which a busy machine changes less; with evaluation, except of "plain"
    busy: dict[str, list[float]] = {}
    for k in range(repeat + 1):
        for name, sim in ours.items():
            began = processors()
            result = on_threads(1, partial(next_in, sim))
            if k:
                used = processors() - began
                busy.setdefault(f"{name}, evaluated", []).append(used / result.images)
                seen.setdefault(name, []).append(result.seconds / result.images)
                seen.setdefault(f"{name}, evaluated", []).append(with_evaluation(result) / result.images)
        ids = result.ids.tolist()
        for threads in sorted({1, CORES}):
            rounds = {"plain": partial(plain.round, ids), "DataLoader": partial(evaluated, loaders, ids)}
            for name, run in rounds.items():
                began = processors()
                took = on_threads(threads, partial(seconds, run))
                if k:
                    seen.setdefault(f"{name}, {threads} threads", []).append(took / result.images)
                    busy.setdefault(f"{name}, {threads} threads", []).append((processors() - began) / result.images)
    floors = [on_threads(n, partial(floor, setting, len(ids), device)) for n in sorted({1, CORES})]
    show(setting, seen, busy, max(floors), list(ours), device)


def next_in(sim: Simulation) -> RoundResult:
    """A round, in the precision that its task says, as a trial has it."""
    with process.arithmetic(sim.task.precision):
        return next(sim.run())


def evaluated(loop: PlainLoop, ids: list[int]) -> None:
    """Run a round of the plain loop, and evaluate it."""
    loop.round(ids)
    loop.evaluate()


def show(
    setting: Setting,
    seen: dict[str, list[float]],
    busy: dict[str, list[float]],
    floor: float,
    ours: list[str],
    device: str,
) -> None:
    """Print the table of a setting, and the ratios with their targets."""
    print(f"\n{setting}\n\n| | images/s | of the floor | CPU us an image |\n|-|-|-|-|")
    for name, times in seen.items():
        rate = 1 / median(times)
        used = f"{1e6 * median(busy[name]):.0f}" if name in busy else ""
        print(f"| {name} | {rate:,.0f} | {rate / floor:.2f} | {used} |")
    together = int(setting.participation * setting.clients * setting.batch)
    print(f"| floor: one model at batch {together} | {floor:,.0f} | | |")
    name = next(name for name, each in SETTINGS.items() if each is setting)
    target, first, chosen, others = TARGETS[device].get(name), ours[0], ours[1], ours[2:]
    best = {kind: min((n for n in seen if n.startswith(kind)), key=lambda n: median(seen[n])) for kind in
            ("plain", "DataLoader")}  # fmt: skip
    for one, other, least in (
        (chosen, best["plain"], target),
        (f"{chosen}, evaluated", best["DataLoader"], EVALUATED),
        (chosen, first, None),
        *((other, chosen, None) for other in others),
    ):
        ratios = [b / a for a, b in zip(seen[one], seen[other], strict=True)]
        wanted = "" if least is None else f" (target {least}: {'met' if median(ratios) >= least else 'missed'})"
        print(
            f"\n{one} / {other}: **{median(ratios):.2f}**, {min(ratios):.2f} to {max(ratios):.2f}{wanted}", flush=True
        )


def simulation_of(setting: Setting, fed: Federation, method: str = "fedavg", **more: Any) -> Simulation:
    """Return a simulation in a setting, all of whose rounds are evaluated."""
    how = {"epochs": setting.epochs, "batch": setting.batch, "build": setting.build, "eval_every": 1}
    return simulation(method, fed, participation=setting.participation, **{**how, **more})


def stack(repeat: int, device: str) -> None:
    """Print images/s of 2 to 16 trials of A, with 100 samples a client: one by one, and as one cohort."""
    setting = replace(SETTINGS["a"], samples=100)
    chunk = setting.clients if device == "cuda" else 1
    sizes = setting.sizes()
    fed = random_federation(sizes, [1] * len(sizes), device, SHAPE)
    print("\n| trials of A | images/s one by one | as one cohort | ratio |\n|-|-|-|-|")
    for trials in (2, 4, 8, 16):
        sims = [simulation_of(setting, fed, chunk=chunk, eval_every=10**9) for _ in range(trials)]
        for k, sim in enumerate(sims):
            sim.schedule = replace(sim.schedule, lr=LR * (1 + k / trials))
        images, verbs = sum(next_in(sim).images for sim in sims), [sim.verbs for sim in sims]
        apart, together = [], []
        for _ in range(repeat + 1):
            for sim, own in zip(sims, verbs, strict=True):
                sim.verbs = own
            apart.append(seconds(lambda sims=sims: [next_in(sim) for sim in sims]))
            together.append(seconds(partial(run_stack, [partial(run_as_member, sim) for sim in sims])))
        rates = [images / median(times[1:]) for times in (apart, together)]
        ratio = median(a / b for a, b in zip(apart[1:], together[1:], strict=True))
        print(f"| {trials} | {rates[0]:,.0f} | {rates[1]:,.0f} | {ratio:.2f} |", flush=True)


def run_as_member(sim: Simulation, member: StackMember) -> RoundResult:
    """Run a round of a trial as a member of a stack."""
    member.join(sim)
    return next_in(sim)


def floor(setting: Setting, clients: int, device: str) -> float:
    """Return the images a second of one model whose batch has the whole cohort's images."""
    model = setting.build(setting.shape, 10).to(device)
    optimiser = torch.optim.SGD(model.parameters(), lr=LR)
    x = torch.rand(clients * setting.batch, *setting.shape, device=device)
    y = torch.randint(0, 10, (len(x),), device=device)

    def step() -> None:
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimiser.step()

    step()
    return len(x) / median(seconds(step) for _ in range(5))


def processors() -> float:
    """Return the CPU seconds of this process and of those that it has ended."""
    return sum(os.times()[:4])


def seconds(run: Callable[[], object]) -> float:
    """Return the wall seconds of a run."""
    began = time.perf_counter()
    run()
    synchronize()
    return time.perf_counter() - began


def with_evaluation(result: RoundResult) -> float:
    """Return the seconds of a round and its evaluation."""
    return result.seconds + result.eval_seconds


def on_threads(count: int, run: Callable[[], Any]) -> Any:
    """Return what a run returns with so many threads of PyTorch."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        return run()
    finally:
        torch.set_num_threads(before)


# Memory, and how cost grows


@contextmanager
def watched() -> Iterator[list[float]]:
    """Context that yields a list, whose entry is the peak of the GB that this process and its children take, with each
    shared page once.
    """
    peak, over = [0.0], threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            peak[0] = max(peak[0], sum(map(resident, tree(os.getpid()))))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


def tree(pid: int) -> list[int]:
    """Return a process and all that descend from it."""
    try:
        found = [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in
                 (task / "children").read_text().split()]  # fmt: skip
    except OSError:
        return []
    return [pid, *(each for child in found for each in tree(child))]


def resident(pid: int) -> float:
    """Return the GB that a process takes, a shared page by its part."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 2**20


def memory() -> None:
    """Print the peak memory of 100 clients of the CNN, all in every round, with the methods that keep most."""
    print("\n| 100 clients of the CNN, peak GB | 1 process | workers |\n|-|-|-|")
    for method in ("fedavg", "fedala", "pgfedmo", "fedfomo"):
        peaks = []
        for workers in (1, CORES):
            setting = Setting(100, 1.0, 0.1, 60, 10, 1)
            sim = simulation_of(setting, federation(100, 60, 2), method, workers=workers)
            with watched() as peak:
                for _ in range(3):
                    on_threads(1, lambda sim=sim: next(sim.run()))
            peaks.append(peak[0])
            del sim
        print(f"| {method} | {peaks[0]:.2f} | {peaks[1]:.2f} |", flush=True)


class Growth(NamedTuple):
    """What a round costs at a number of clients and a size of the cohort."""

    clients: int
    cohort: int
    seconds: float  # a round
    evaluation: float  # of all clients
    rows: int  # of clients that had a turn
    peak: float  # GB


def growth() -> None:
    """A round of 10 to 10,000 clients at a cohort of 50, and with cohorts of 1 to 400 of 1,000 clients, where
    a client keeps a model (FedALA, 20 images each); printed, and drawn to docs/growth.png.
    """
    print("\n| clients | cohort | seconds a round | evaluation | rows seen | peak GB |\n|-|-|-|-|-|-|")
    by_clients = [grown(clients, min(50, clients)) for clients in (10, 100, 1_000, 10_000)]
    by_cohort = [grown(1_000, cohort) for cohort in (1, 10, 50, 100, 200, 400)]
    draw_growth(by_clients, by_cohort)


def draw_growth(by_clients: list[Growth], by_cohort: list[Growth]) -> None:
    """Draw docs/growth.png: against the number of clients, and against the cohort."""
    panels = {
        "clients, at most 50 of them in a round": {each.clients: each for each in by_clients},
        "clients in a round, of 1,000": {each.cohort: each for each in by_cohort},
    }
    with style.figure(9, 3.4, ncols=2) as (made, axes):
        for panel, (label, points) in zip(axes, panels.items(), strict=True):
            looks = style.series_styles()
            for what, unit in (
                ("seconds", "a round (s)"),
                ("evaluation", "evaluation of all (s)"),
                ("peak", "memory (GB)"),
            ):
                panel.plot(list(points), [getattr(each, what) for each in points.values()], label=unit, **next(looks))
            panel.set(xlabel=label, ylabel="seconds, or GB", xscale="log", yscale="log")
        axes[0].legend()
    style.save(made, Path("docs/growth"), kinds=("png",))


def grown(clients: int, cohort: int, rounds: int = 3) -> Growth:
    """Return medians over all rounds but the first, in which the engine measures how long its work takes."""
    fed = federation(clients, 20, 1)
    sim = simulation_of(Setting(clients, cohort / clients, 0.1, 20, 10, 1), fed, "fedala", workers=CORES)
    with watched() as peak:
        results = [on_threads(1, lambda: next(sim.run())) for _ in range(rounds)]
    took, evaluated = (median(getattr(r, what) for r in results[1:]) for what in ("seconds", "eval_seconds"))
    found = Growth(clients, cohort, took, evaluated, int(sim.clients.seen.sum()), peak[0])
    print(f"| {clients:,} | {cohort} | {took:.2f} | {evaluated:.2f} | {found.rows} | {found.peak:.2f} |", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", default=["memory", *SETTINGS, "stack", "growth"])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--device", choices=list(TARGETS), default="cpu")
    options = parser.parse_args()
    print(f"{machine(options.device)}, load {os.getloadavg()[0]:.1f}")
    for what in options.what:
        if what in SETTINGS:
            compare(SETTINGS[what], options.repeat, options.device)
        elif what == "stack":
            stack(options.repeat, options.device)
        else:
            {"memory": memory, "growth": growth}[what]()


if __name__ == "__main__":
    main()
