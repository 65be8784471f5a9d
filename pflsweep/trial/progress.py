"""What a person sees while a trial trains: a bar on a terminal, a line now and then in a log."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch
from tqdm import tqdm

from pflsweep.config.fields import hyperparameters
from pflsweep.data.loader import ClientData
from pflsweep.engine.evaluate import cover, targets
from pflsweep.engine.simulation import Simulation
from pflsweep.ops.vmap import tree_map
from pflsweep.util.timing import shortest

QUIET = 10.0  # seconds between two lines in a log


_quiet = _mute = False  # while a sweep shows its trials together, and in the processes that it has started


@contextmanager
def quietly(mute: bool = False) -> Iterator[None]:
    """No word about single trials; mute: no word at all."""
    global _quiet, _mute
    before = _quiet, _mute
    _quiet, _mute = True, mute or _mute
    try:
        yield
    finally:
        _quiet, _mute = before


def warn(text: str) -> None:
    """Print a line on stderr, above the bar where there is one, also from the worker processes of a sweep."""
    tqdm.write(text, file=sys.stderr)


def say(text: str) -> None:
    """One line on stderr, above the bar where there is one."""
    if not _mute:
        warn(text)


def mention(text: str) -> None:
    """A line on a single trial, of which a sweep has many."""
    if not _quiet:
        say(text)


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    if seconds > 10 * 365 * 86400:
        return "more than 10 years"
    return f"{seconds / 3600:.1f} h" if seconds < 72 * 3600 else f"{seconds / 86400:.1f} days"


class Progress:
    """The rounds of one trial, from `done` to `total`."""

    def __init__(self, name: str, done: int, total: int) -> None:
        self._name, self._start, self._total = name, done, total
        self._began = self._said = perf_counter()
        self._terminal = sys.stderr.isatty() and not _quiet
        self._bar = tqdm(total=total, initial=done, desc=name, unit="round", disable=not self._terminal, leave=False)

    def round(self, row: dict[str, Any]) -> None:
        """Called after each round with its row of the record."""
        now, done = perf_counter(), row["round"]
        accuracy = row.get("personal_accuracy")
        text = f"accuracy {accuracy:.1%}" if accuracy is not None else ""
        self._bar.set_postfix_str(text, refresh=False)
        self._bar.update()
        first = done == self._start + 1
        if first or (now - self._said >= QUIET and not self._terminal):
            self._said = now
            left = (now - self._began) / (done - self._start) * (self._total - done)
            line = [
                f"round {done} of {self._total}",
                *([text] if text else []),
                f"about {duration(left)} left",
            ]
            mention(f"{self._name}: {', '.join(line)}")

    def close(self) -> None:
        self._bar.close()


def announce(name: str, simulation: Simulation) -> None:
    """Say what will be trained, and how long it takes if one gradient step is anything to go by."""
    federation, schedule = simulation.federation, simulation.schedule
    left = schedule.rounds - simulation.round
    if not left or _quiet:
        return
    share = simulation.cohort_size / federation.clients
    batches = sum(map(schedule.batches, federation.sizes.tolist()))
    rows = sum(map(len, cover(targets(federation, "test", simulation.metrics))))
    tested = rows / schedule.batch / schedule.eval_every
    # a forward pass is a third of a gradient step
    steps = left * (_passes(simulation) * share * batches + tested / 3)
    seconds = _seconds_a_step(simulation) * steps / schedule.workers
    begin = f"goes on after round {simulation.round}, " if simulation.round else ""
    say(
        f"{name}: {begin}{left} round{'s' * (left > 1)} of {simulation.cohort_size} of {federation.clients} "
        f"clients, {int(federation.sizes.sum()):,} training images, {simulation.task.size:,} parameters on "
        f"{federation.device}; about {duration(seconds)}, going by one gradient step"
    )


def _passes(simulation: Simulation) -> float:
    """What the method makes of an epoch."""
    method = simulation.verbs.method
    assert method is not None, "a trial has one"
    return method.passes(method.epochs, **{name: getattr(method, name) for name in hyperparameters(type(method))})


def _seconds_a_step(simulation: Simulation) -> float:
    """A timed gradient step on a batch of its own draws: nothing of it is kept or counted."""
    federation = simulation.federation
    task = simulation.task
    client = int(federation.sizes.argmax())
    data = ClientData.of(federation, [client], 0, batch=simulation.schedule.batch, large=1, purpose="warm-up")
    w = torch.zeros(1, task.size, device=federation.device, dtype=federation.dtype)
    threads = torch.get_num_threads()

    def step() -> None:
        batch = tree_map(lambda v: v[0], next(iter(data.train(1))))
        w.sub_(task.grad(w[0], batch), alpha=0.1).sum().item()

    torch.set_num_threads(1 if simulation.schedule.workers > 1 else threads)  # workers have one each
    try:
        return shortest(step)
    finally:
        torch.set_num_threads(threads)
