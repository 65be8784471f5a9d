"""Make a trial's schedule, and refuse one that no machine, or not this one, could run."""

import math
from dataclasses import replace

import torch

from pflsweep.config.options import Train
from pflsweep.data.batching import Batching
from pflsweep.data.federation import Federation
from pflsweep.engine.simulation import Schedule
from pflsweep.engine.workers import possible, usable_cores
from pflsweep.ops import memory
from pflsweep.util.errors import UserError, in_gb

COPIES = 3  # copies of a model's weights that training one client holds at least
CROWD = 4  # worker processes allowed per core: slower than one a core, but harmless
FASTEST = 1_000_000  # training samples per second, more than any trial of the pages in reports/ trains
YEAR = 365.25 * 86400  # seconds
TOO_LONG = 10  # years


def schedule_of(train: Train, federation: Federation, size: int) -> Schedule:
    """Return the trial's schedule. size: parameters of the model. Raises UserError if no machine could run it."""
    usual = 1 if federation.device.type == "cpu" else federation.clients
    chunk = usual if train.chunk == "auto" else int(train.chunk)
    names = [name for name in Schedule.__dataclass_fields__ if name not in ("chunk", "workers", "batching")]
    batching = Batching(train.shuffle, train.last_batch, train.steps)
    schedule = Schedule(**{name: getattr(train, name) for name in names}, chunk=chunk, batching=batching)
    first, cohort = (schedule.cohort_size(federation.clients, at) for at in (1, 2))
    samples = sum(map(schedule.samples, federation.sizes.tolist())) / federation.clients
    _check_end(train, (first + (train.rounds - 1) * cohort) * samples)
    return replace(schedule, workers=_workers(train, federation.device, max(first, cohort), size))


def _check_end(train: Train, samples: float) -> None:
    """Raise UserError if the last round's learning rate would not fit 32 bits, or all rounds would take years.

    samples: training samples of all rounds.
    """
    last = math.log10(train.lr) + (train.rounds - 1) * math.log10(train.lr_decay)
    # Some methods divide by it
    if abs(last) >= 38:
        raise UserError(
            f"train.lr is {train.lr:g} and train.lr_decay {train.lr_decay:g}: after {train.rounds} rounds the learning "
            f"rate would be about 1e{last:.0f}, which 32 bits do not hold. Use a decay nearer to 1, or fewer rounds."
        )
    years = samples / FASTEST / YEAR
    if years > TOO_LONG:
        turn = f"train.epochs {train.epochs}" if train.steps is None else f"train.steps {train.steps}"
        raise UserError(
            f"train.rounds is {train.rounds} and {turn}: about {samples:.2g} training "
            f"samples in all, which are {years:,.0f} years at {FASTEST:,} a second. Use fewer."
        )


def _workers(train: Train, device: torch.device, cohort: int, size: int) -> int:
    """Return how many processes train a cohort: by default as many as this process has threads.

    They are never more than the cohort has clients. With fewer than half as many clients as cores, threads are faster.
    Raises UserError on several workers with several threads each, which a fork cannot have, and on more workers than
    the machine's cores and memory can hold.
    """
    threads, workers = train.threads, None if train.workers == "auto" else int(train.workers)
    if workers is not None:
        _check_workers(workers, device, cohort, size)
    if not possible(device):
        return 1
    if workers is None:
        cores = torch.get_num_threads()
        return min(cores, cohort) if threads in ("auto", 1) and 2 * cohort >= cores else 1
    if workers > 1 and threads not in ("auto", 1):
        raise UserError(
            f"train.workers is {workers} and train.threads {threads}, but workers are processes of one thread each: "
            "use train.threads=1, or train.workers=1."
        )
    return min(workers, cohort)


def _check_workers(workers: int, device: torch.device, cohort: int, size: int) -> None:
    """Raise UserError if `workers` processes are more than the machine's cores and memory can hold.

    size: parameters of the model.
    """
    most = CROWD * usable_cores()
    if workers > most:
        raise UserError(
            f"train.workers is {workers}: each is a process of one thread, and this machine has {usable_cores()} cores "
            f"for them, so that more than {most} ({CROWD} a core) would only wait for each other. A round has "
            f"{cohort} clients, which is another limit. Use train.workers=auto, or at most {most}."
        )
    processes = min(workers, cohort)
    needed, has = processes * COPIES * 4 * size, memory.total(device)
    if device.type == "cpu" and processes > 1 and needed > has:
        raise UserError(
            f"train.workers is {workers}: {processes} processes with {COPIES} times the model's "
            f"{in_gb(4 * size)} each (weights, their gradient and an update) take {in_gb(needed)}, and "
            f"this machine has {in_gb(has)}: use at most train.workers={max(1, int(has // (COPIES * 4 * size)))}."
        )
