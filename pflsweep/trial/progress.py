"""Show the progress of a trial: a bar on a terminal, a line from time to time in a log."""

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
from pflsweep.util.errors import counted
from pflsweep.util.timing import shortest

QUIET = 10.0  # seconds between two lines in a log

# True while a sweep shows its trials together (quiet), and in the worker processes that it has started (mute)
_quiet = _mute = False


@contextmanager
def quietly(mute: bool = False) -> Iterator[None]:
    """Context without messages about single trials; with `mute`, without messages of `say` at all."""
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
    """Print a line on stderr, above the bar where there is one; not in the worker processes of a sweep."""
    if not _mute:
        warn(text)


def mention(text: str) -> None:
    """Print a line about a single trial; not within a sweep, which has many."""
    if not _quiet:
        say(text)


def duration(seconds: float) -> str:
    """Return seconds as text in a suitable unit, such as `12 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    if seconds > 10 * 365 * 86400:
        return "more than 10 years"
    return f"{seconds / 3600:.1f} h" if seconds < 72 * 3600 else f"{seconds / 86400:.1f} days"


class Progress:
    """The progress of one trial from round `done` to `total`."""

    def __init__(self, name: str, done: int, total: int) -> None:
        self._name, self._start, self._total = name, done, total
        self._began = self._said = perf_counter()
        self._terminal = sys.stderr.isatty() and not _quiet
        self._bar = tqdm(total=total, initial=done, desc=name, unit="round", disable=not self._terminal, leave=False)

    def round(self, row: dict[str, Any]) -> None:
        """Show a finished round. row: its row of the record."""
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
        """Remove the bar."""
        self._bar.close()


def announce(
    name: str, simulation: Simulation, private: tuple[float, float] | None = None, fine_tuning: int = 0
) -> None:
    """Say what will be trained, and how long it takes by the measured time of one gradient step.

    private: clip and noise of DP-SGD, whose steps take longer. fine_tuning: steps of all new clients after the rounds.
    """
    federation, schedule = simulation.federation, simulation.schedule
    left = schedule.rounds - simulation.round
    if not left or _quiet:
        return
    cohort = simulation.cohort_size
    first = schedule.cohort_size(federation.clients, simulation.round + 1)
    batches = sum(map(schedule.batches, federation.sizes.tolist())) / federation.clients  # of a mean client
    rows_of = cover(targets(federation, simulation.metrics.rows, simulation.metrics))
    rows = sum(len(rows_of(client)) for client in range(federation.clients))
    tested = rows / schedule.batch / schedule.eval_every
    # A forward pass takes a third of a gradient step
    trained = (first + (left - 1) * cohort) * batches
    steps = _relative_gradients(simulation) * trained + left * tested / 3
    seconds = _seconds_a_step(simulation, private) * (steps / schedule.workers + fine_tuning)
    begin = f"goes on after round {simulation.round}, " if simulation.round else ""
    who = f"{cohort} of {federation.clients} clients{', all in the first' * (first > cohort)}"
    say(
        f"{name}: {begin}{counted(left, 'round')} of {who}, {int(federation.sizes.sum()):,} training images, "
        f"{simulation.task.size:,} parameters on {federation.device}; about {duration(seconds)}, going by one gradient "
        "step"
    )


def _relative_gradients(simulation: Simulation) -> float:
    """Return how many gradients a sample takes where FedAvg takes one."""
    method = simulation.verbs.method
    assert method is not None, "a trial has one"
    values = {name: getattr(method, name) for name in hyperparameters(type(method))}
    clients, cohort = simulation.federation.clients, simulation.cohort_size
    return method.relative_gradients(method.epochs, clients=clients, cohort=cohort, **values)


def _seconds_a_step(simulation: Simulation, private: tuple[float, float] | None) -> float:
    """Time a gradient step in seconds. Its batch is drawn for this purpose, so the trial's draws stay as they are."""
    federation = simulation.federation
    task = simulation.task
    client = int(federation.sizes.argmax())
    plain = ClientData.of(federation, [client], 0, batch=simulation.schedule.batch, large=1, purpose="warm-up")
    data = plain if private is None else plain.poisson(*private)
    w = torch.zeros(1, task.size, device=federation.device, dtype=federation.dtype)
    threads = torch.get_num_threads()

    def step() -> None:
        batch = tree_map(lambda v: v[0], next(iter(data.train(1))))
        w.sub_(task.grad(w[0], batch), alpha=0.1).sum().item()

    # Worker processes have one thread each
    torch.set_num_threads(1 if simulation.schedule.workers > 1 else threads)
    try:
        return shortest(step)
    finally:
        torch.set_num_threads(threads)
