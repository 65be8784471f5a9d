"""Make the page of `pflsweep doctor --gpu`: the conformance suite and speeds of a device, in ten minutes."""

import platform
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from typing import NamedTuple

import torch
from joblib import Parallel, delayed

from pflsweep import __version__
from pflsweep.commands.check import case_of, method_and_defaults, statement, verdict
from pflsweep.config.hydra_loader import option_files
from pflsweep.conformance.case import Case
from pflsweep.conformance.properties import ON_A_DEVICE, Property
from pflsweep.engine.workers import usable_cores
from pflsweep.ops import memory
from pflsweep.report.markdown import inline, table
from pflsweep.trial.metadata import commit
from pflsweep.trial.process import arithmetic
from pflsweep.trial.speed import WORKLOADS, Measurement, Workload, speeds
from pflsweep.util import processor
from pflsweep.util.errors import counted, in_gb

MINUTES = 10
# Shares of the time: for comparing each method with the CPU, and for the speeds. The rest is for the other properties.
FIRST, SPEED = 0.35, 0.3
WORST = 40  # seconds that a test or measurement may still take when the time is over
SHARE = 2e9  # bytes of a GPU for each process that tries properties, most of them for CUDA and its libraries


class Tried(NamedTuple):
    """A property of a method on a device. why: the reason where it failed; "" if it holds; None: not tried."""

    method: str
    property: str
    why: str | None


def page(
    device: str,
    seconds: float = 60 * MINUTES - WORST,
    methods: list[str] | None = None,
    workloads: tuple[Workload, ...] = WORKLOADS,
    say: Callable[[str], None] = lambda line: None,
    at_once: int = 1,
) -> tuple[str, int]:
    """Return the page of a device as markdown, and the number of properties that failed.

    seconds: time for all. methods: names of algorithms; None: all. say: called with a line about each step. at_once:
    processes that try properties; speeds are measured by one alone.
    """
    began, torch_threads = time.monotonic(), torch.get_num_threads()
    # With models this small, threads only wait for each other
    torch.set_num_threads(1)
    try:
        names = methods or _methods()
        say(f"{len(names)} methods on {device}, each beside the CPU")
        tried = _tried(names, device, ON_A_DEVICE[:1], began + FIRST * seconds, at_once)
        say(f"Speed of {counted(len(workloads), 'workload')}")
        fast = list(speeds(device, SPEED * seconds, workloads))
        say(f"The other {len(ON_A_DEVICE) - 1} properties of each method, until {seconds / 60:.0f} minutes are over")
        tried += _tried(names, device, ON_A_DEVICE[1:], began + seconds, at_once)
    finally:
        torch.set_num_threads(torch_threads)
    failed = [each for each in tried if each.why]
    lines = [
        f"# pflsweep on {device_name(device)}",
        f"Written by `pflsweep doctor --gpu` at {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, in "
        f"{(time.monotonic() - began) / 60:.1f} minutes. Please paste it into an issue.",
        table(["", "this machine"], [[name, inline(value)] for name, value in _machine(device).items()]),
        "## Conformance",
        _summary(tried, len(names)),
        table(["property", "holds", "failed", "not tried"], _by_property(tried)),
        *(["Failed:\n", *(f"- {inline(f'{e.method}: {e.property}: {e.why}')}" for e in failed)] if failed else []),
        "## Speed",
        "Training images a second of FedAvg on random images, without evaluation; median of up to three rounds.",
        table(["workload", "way", "images/s", "times one core", "memory"], _by_speed(fast)),
    ]
    return "\n\n".join(line.rstrip("\n") for line in lines) + "\n", len(failed)


def device_name(device: str) -> str:
    """Return a GPU's product name; the device itself for a CPU."""
    return torch.cuda.get_device_name() if device.startswith("cuda") else device


def _methods() -> list[str]:
    """Return the names of all algorithms, without the variants in as_run/."""
    return [name for name in option_files("algorithm") if not name.startswith("as_run/")]


@cache
def _case(name: str, device: str) -> Case:
    """Return the test case of an algorithm on a device."""
    return replace(case_of(*method_and_defaults(name, None)), device=device)


def processes(device: str) -> int:
    """Return how many processes may try properties at once on a device: one a core, as far as its memory goes."""
    return max(1, min(usable_cores(), int(memory.total(torch.device(device)) / SHARE)))


def _tried(names: list[str], device: str, properties: tuple[Property, ...], end: float, at_once: int) -> list[Tried]:
    """Return the results of properties, each for all methods. After `end` (monotonic seconds) no more are tried."""
    jobs = (delayed(_try)(name, device, property_, end) for property_ in properties for name in names)
    return Parallel(n_jobs=at_once)(jobs)


def _try(name: str, device: str, property_: Property, end: float) -> Tried:
    says = statement(property_)
    if time.monotonic() >= end:
        return Tried(name, says, None)
    torch.set_num_threads(1)
    case = _case(name, device)
    # The arithmetic that a trial has
    with arithmetic(case.precision):
        return Tried(name, says, verdict(property_, case))


def _summary(tried: list[Tried], methods: int) -> str:
    """Return a sentence on how many properties hold and failed."""
    done = [each for each in tried if each.why is not None]
    failed = sum(bool(each.why) for each in done)
    left = len(tried) - len(done)
    return (
        f"{methods} methods, {len(ON_A_DEVICE)} properties each: {len(done) - failed} of {len(done)} that were tried "
        f"hold, {failed} failed" + (f"; {left} were not tried, since the time was over." if left else ".")
    )


def _by_property(tried: list[Tried]) -> list[list[str]]:
    """Return rows of a table: a property, and how many methods it holds for, failed for and was not tried for."""
    rows = []
    for says in dict.fromkeys(each.property for each in tried):
        whys = [each.why for each in tried if each.property == says]
        rows.append([inline(says), *map(str, (whys.count(""), sum(map(bool, whys)), whys.count(None)))])
    return rows


def _by_speed(fast: list[Measurement]) -> list[list[str]]:
    """Return rows of a table: workload, way, images per second, multiple of one core, memory."""
    one_core = {each.workload: each.images for each in fast if each.way.startswith("CPU")}
    rows = []
    for each in fast:
        base = one_core.get(each.workload)
        times = f"{each.images / base:.2f}" if each.images and base else "-"
        shown = f"{each.images:,.0f}" if each.images else inline(each.why)
        held = f"{each.memory / 1e9:.2f} GB" if each.memory is not None else "-"
        rows.append([inline(each.workload), inline(each.way), shown, times, held])
    return rows


def _machine(device: str) -> dict[str, str]:
    """Return hardware and versions by name."""
    found = {"device": device_name(device)}
    if device.startswith("cuda"):
        gpu = torch.cuda.get_device_properties(device)
        found |= {"memory": in_gb(gpu.total_memory), "compute capability": f"{gpu.major}.{gpu.minor}"}
        found |= {"CUDA of PyTorch": str(torch.version.cuda)}
    return found | {
        "processor": processor.name(),
        "PyTorch": torch.__version__,
        "Python": platform.python_version(),
        "platform": platform.platform(),
        "pflsweep": f"{__version__}, commit {commit() or 'unknown'}",
    }
